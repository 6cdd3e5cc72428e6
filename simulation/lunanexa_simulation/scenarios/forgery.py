"""Somebody who can speak on the network, under streams. What is said in a node's name without its key, or said again,
counts for nothing and changes nothing; a node that is silent is lost in its time though its words are repeated, and its
own lease lapses though old answers are. Documents that are forged, for others, or gone back to are not followed: the
node says why and follows on what it had, its engines live, and nobody's stream is cut."""

from functools import partial
from typing import Any, Final

import trio

from lunanexa_core.events import Liveness
from lunanexa_core.southbound.documents import Directive, SignedDocument
from lunanexa_core.state_digest import state_digest
from lunanexa_simulation.client import Ending
from lunanexa_simulation.controller_host import HOST, NODE_PORT
from lunanexa_simulation.faults import crash_controller
from lunanexa_simulation.node_host import NodeHost
from lunanexa_simulation.run import Run
from lunanexa_simulation.scenarios.between import Between
from lunanexa_simulation.scenarios.forged_documents import forged_documents
from lunanexa_simulation.scenarios.forged_heartbeats import FORGED, STALE, Case, forged_heartbeats, says
from lunanexa_simulation.scenarios.steps import at_rest, calling, served, until_listed
from lunanexa_simulation.world import World, open_world
from lunanexa_simulation.world_plan import WorldPlan

PLAN: Final = WorldPlan(nodes=2, engine_arguments=("--ttft-ms", "32", "--itl-ms", "256"))
STREAMS: Final = 4
LEASE_MS: Final = PLAN.policy.node_lease_ms
BACK_MS: Final = 40_000


async def main(run: Run) -> None:
    """The scenario."""
    async with open_world(run, PLAN) as world:
        between = Between()
        world.controller.before_nodes = between.before
        await world.start()
        await world.deploy(replicas=2)
        await _until_both(world, "at first")
        await until_listed(world, "at first")
        old = between.heartbeats(world.nodes[0].name)[0]
        world.nodes[0].crash()
        await world.start_agent(0)
        await _until_both(world, "by another boot")
        async with world.streams(STREAMS, "while heartbeats are forged") as streams:
            await _heartbeats(world, between, old)
        world.check("no stream is cut for it", {one.ending for _, one in streams} == {Ending.WHOLE}, streams)
        async with calling(world, "while a node is spoken for"):
            await _a_silent_node(world, between)
        crash_controller(world)
        await world.start_controller()
        await _until_both(world, "in another epoch")
        async with world.streams(STREAMS, "while documents are forged") as streams:
            await _documents(world, between)
        world.check("no stream is cut for those", {one.ending for _, one in streams} == {Ending.WHOLE}, streams)
        await served(world, "after all")
        await at_rest(world, "after all")
        await world.stop()


async def _heartbeats(world: World, between: Between, old: SignedDocument) -> None:
    node, kernel = world.nodes[0], world.kernel
    assert kernel.state.nodes[node.name].past_boots, "there is an older boot"
    with world.watched("nothing that was forged is ever taken", lambda: _forged(world)):
        for case in forged_heartbeats(world, between, old):
            before = (state_digest(kernel.state), kernel.head.sequence)
            told = await says(world, node, case)
            world.check(f"{case.name} is refused", told == case.told, told)
            after = (state_digest(kernel.state), kernel.head.sequence)
            world.check(f"{case.name} changes nothing", after == before, world.sight.rows[before[1] :])
    liveness = {one.liveness for one in kernel.state.nodes.values()}
    world.check("and nobody is blamed", liveness == {Liveness.READY} and kernel.state.recovery is None, liveness)


def _forged(world: World) -> str | None:
    found = (reading.heartbeat for reading in world.kernel.observed.nodes.values())
    return next((f"{one.node} is heard by it" for one in found if one.agent_version == FORGED), None)


async def _a_silent_node(world: World, between: Between) -> None:
    """Each side hears old words of the other in its stead, and neither takes them for a sign of life."""
    node, kernel = world.nodes[0], world.kernel
    running, copies = node.running(), between.heartbeats(node.name)[-3:]
    between.lie(node.name, "heartbeat", between.answers(node.name)[-1])
    await world.until("it is told an old answer", lambda: bool(between.lied(node.name, "heartbeat")), within_ms=5_000)
    reading = kernel.observed.nodes[node.name]
    lost = trio.Event()

    async def repeat() -> None:
        while not lost.is_set():
            for copy in copies:
                told = await says(world, node, Case("a copy", node.own_credentials(), copy, STALE))
                world.check("what is repeated is refused", told == STALE, told)
            await trio.sleep(0.5)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(repeat)
        await world.until("it is lost in its time", lambda: _lost(world, node), within_ms=LEASE_MS + 3_000)
        lost.set()
    world.check("by its own last word", kernel.observed.nodes.get(node.name, reading) is reading)
    world.check("it has no lease of old answers", (node.lease_left_ms() or 0) <= 0, node.lease_left_ms())
    world.check("it was told some", between.lied(node.name, "heartbeat") > 1)
    between.lie(node.name, "heartbeat", None)
    await _until_both(world, "when it is heard again")
    world.check("by the same engine", node.running() == running, node.running())


def _lost(world: World, node: NodeHost) -> bool:
    return world.kernel.state.nodes[node.name].liveness is Liveness.LOST


async def _documents(world: World, between: Between) -> None:
    node = world.nodes[0]
    for name, lie, refusal in forged_documents(world, between):
        await _followed(world, node)
        accepted, running = node.accepted(), node.running()
        between.lie(node.name, "desired", lie(between.documents(node.name)[-1]))
        world.network.cut(HOST, NODE_PORT)  # Else the node would wait for what the controller says next.
        told = None if refusal is None else refusal.value
        await world.until(f"{name} is refused", partial(_refused, world, node, between, told), within_ms=BACK_MS)
        shown = await _shown(world, node)
        world.check(f"the status says so of {name}", shown == told, shown)
        world.check(f"{name} is not followed", node.accepted() == accepted, node.accepted())
        world.check(f"its engine runs on in spite of {name}", node.running() == running, node.running())
        between.lie(node.name, "desired", None)
    await _followed(world, node)
    if world.kernel.state.nodes[node.name].directive is Directive.CORDON:
        await _followed(world, node)
    world.check("no refusal is left", await _shown(world, node) is None)
    await _until_both(world, "after what was forged")


async def _followed(world: World, node: NodeHost) -> None:
    """The controller's own word is followed as ever, and takes back what was refused."""
    cordoned = world.kernel.state.nodes[node.name].directive is Directive.CORDON
    directive = Directive.ACTIVE if cordoned else Directive.CORDON
    body = {"directive": directive.value, "reason": None}
    status, answer = await world.operate("PUT", f"/admin/v1/nodes/{node.name}/directive", body)
    world.check("a directive is taken", status == 200, answer)
    await world.until("the controller's word is followed", lambda: _follows(world, node), within_ms=BACK_MS)


def _follows(world: World, node: NodeHost) -> bool:
    newest = (world.kernel.epoch, world.kernel.state.nodes[node.name].generation)
    heartbeat = world.kernel.observed.nodes[node.name].heartbeat
    return (heartbeat.epoch, heartbeat.generation) == newest and heartbeat.document_refusal is None


def _refused(world: World, node: NodeHost, between: Between, told: str | None) -> bool:
    """More than once: the node asks again, whatever it was given."""
    heartbeat = world.kernel.observed.nodes[node.name].heartbeat
    return between.lied(node.name, "desired") > 1 and heartbeat.document_refusal == told


async def _shown(world: World, node: NodeHost) -> Any:
    _, document = await world.operate("GET", "/admin/v1/status")
    return next(one["document_refusal"] for one in document["nodes"] if one["node"] == node.name)


async def _until_both(world: World, when: str) -> None:
    await world.until(f"both replicas are routable {when}", lambda: world.routable() == 2, within_ms=BACK_MS)
