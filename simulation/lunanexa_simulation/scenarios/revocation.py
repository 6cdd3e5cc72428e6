"""A node is revoked under streams: at once nothing is granted to it and nothing of it is heard, what it had is placed
elsewhere, and it comes back by a new token alone."""

from typing import Final

import trio

from lunanexa_core.events import NodeCertified
from lunanexa_core.ids import NodeId
from lunanexa_simulation.client import Ending
from lunanexa_simulation.node_host import NodeHost
from lunanexa_simulation.run import Run
from lunanexa_simulation.scenarios.steps import at_rest, changes, receipts_of, served, until_listed
from lunanexa_simulation.world import World, open_world
from lunanexa_simulation.world_plan import WorldPlan

PLAN: Final = WorldPlan(nodes=2, engine_arguments=("--ttft-ms", "32", "--itl-ms", "256"))
STREAMS: Final = 3
CALLS: Final = 4
BACK_MS: Final = 60_000


async def main(run: Run) -> None:
    """The scenario."""
    async with open_world(run, PLAN) as world:
        await world.start()
        await world.deploy(replicas=1)
        await until_listed(world, "at first")
        node = _host_of(world, _place(world))
        await _revoked_under_streams(world, node)
        await _nothing_of_it_is_heard(world, node)
        await _back_by_a_token(world, node)
        await served(world, "after all")
        await at_rest(world, "after all")
        await world.stop()


async def _revoked_under_streams(world: World, node: NodeHost) -> None:
    async with world.streams(STREAMS, "on the revoked node") as streams:
        await world.dither("revoked", 1_000)
        status, document = await world.operate("POST", f"/admin/v1/nodes/{node.name}/revoke", {"reason": "stolen"})
        world.check("the node is revoked", (status, document["revoked"]) == (200, True), document)
        world.check("nothing of it is routable from then on", world.routable() == 0, world.routable())
        await world.until("its replica is placed elsewhere", lambda: _place(world) != node.name, within_ms=2_000)
        await world.until("and serves there", lambda: world.routable() == 1, within_ms=BACK_MS)
        for number in range(CALLS):
            answer = await world.client.chat(world.prompt(f"elsewhere ({number})", max_tokens=2))
            world.check("calls are served elsewhere", answer.ending is Ending.WHOLE, answer)
    for body, answer in streams:
        world.check_answer("a stream has the engine's answer, or its beginning", body, answer)
        world.check("with one receipt", len(receipts_of(world, answer.workload)) == 1)


async def _nothing_of_it_is_heard(world: World, node: NodeHost) -> None:
    sequence = world.kernel.observed.nodes[node.name].sequence
    renewed = len(changes(world, NodeCertified))
    await trio.sleep(3 * world.plan.policy.node_lease_ms / 1_000)
    world.check("it is not heard", world.kernel.observed.nodes[node.name].sequence == sequence)
    world.check("and given no certificate", len(changes(world, NodeCertified)) == renewed)
    shown = node.own_credentials().certificate
    world.check("its own is void", shown is not None and shown.serial in world.kernel.state.revoked, shown)
    status, document = await world.operate("POST", f"/admin/v1/nodes/{node.name}/token", {})
    world.check("its name is not given away by mistake", status == 409, document)


async def _back_by_a_token(world: World, node: NodeHost) -> None:
    number = world.nodes.index(node)
    await node.stop()
    await world.let_in(number, again=True)
    await world.start_agent(number)
    await world.until("it is heard again", lambda: world.heard(node.name), within_ms=BACK_MS)
    await world.deploy(replicas=2)
    await world.until("and serves again", lambda: world.routable() == 2, within_ms=BACK_MS)


def _place(world: World) -> NodeId:
    """Where the first replica is assigned."""
    return next(iter(world.kernel.state.assignments.values())).node


def _host_of(world: World, name: NodeId) -> NodeHost:
    return next(node for node in world.nodes if node.name == name)
