"""Four nodes, of which operators take some out under load. The successor serves before the drained replica goes, so
that no call is refused and no stream is cut; a node that is cordoned keeps what it has and is granted nothing; one
that is retired is heard no more."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import trio

from lunanexa_core.deployment import Assignment
from lunanexa_core.ids import DeploymentId, NodeId
from lunanexa_core.outcomes import Outcome
from lunanexa_core.southbound.documents import Directive
from lunanexa_core.southbound.heartbeat import ReplicaState
from lunanexa_simulation.client import Ending
from lunanexa_simulation.run import Run
from lunanexa_simulation.scenarios.steps import at_rest, served, until_listed
from lunanexa_simulation.world import DEPLOYMENT, World, open_world
from lunanexa_simulation.world_plan import WorldPlan

PLAN: Final = WorldPlan(nodes=4, engine_arguments=("--ttft-ms", "32", "--itl-ms", "128"))
LOADING_MS: Final = 4_000
"""An engine takes so long to start: long enough for calls and streams meanwhile."""
STREAMS: Final = 3
LONG_TOKENS: Final = 320
"""A stream of them lasts longer than an engine takes to start, and than one that is told to stop still has."""
CALLS: Final = 8
DRAINED_MS: Final = 60_000


async def main(run: Run) -> None:
    """The scenario."""
    async with open_world(run, PLAN) as world:
        for node in world.nodes:
            node.machine.faults.spawn_ms = LOADING_MS
        await world.start()
        await world.deploy(replicas=1)
        await until_listed(world, "at first")
        await _the_only_replica_moves(world)
        await _two_at_once(world)
        await _cordoned(world)
        await _retired(world)
        await served(world, "after all")
        await at_rest(world, "after all")
        await world.stop()


async def _the_only_replica_moves(world: World) -> None:
    node = _placed(world)[0].node
    async with _called(world, "while it moves"):
        async with world.streams(STREAMS, "on the node that drains", max_tokens=LONG_TOKENS) as streams:
            document = await _direct(world, node, Directive.DRAIN, "fan")
            world.check("the drain tells what is in progress", document["in_flight"] >= STREAMS, document)
            await world.until("the successor is being started", lambda: len(_placed(world)) == 2, within_ms=500)
            world.check("and meanwhile the old one serves", _serving(world) == {node}, _serving(world))
            await world.until(
                "the successor serves", lambda: _serving(world) == {_placed(world)[1].node}, within_ms=8_000
            )
            world.check("the old one ends what it has", len(_placed(world)) == 2, _placed(world))
        for body, answer in streams:
            world.check("no stream is cut", answer.ending is Ending.WHOLE, answer)
            world.check_answer("and each is the engine's", body, answer)
        await _until_drained(world, node)
    world.check("nothing runs on it", not _host(world, node).engines(), _host(world, node).running())
    await _direct(world, node, Directive.ACTIVE)


async def _two_at_once(world: World) -> None:
    status, answer = await world.operate("PUT", f"/admin/v1/deployments/{DEPLOYMENT}/replicas", {"replicas": 2})
    world.check("the deployment is scaled", status == 200, answer)
    await world.until("both replicas are routable", lambda: world.routable() == 2, within_ms=60_000)
    nodes = [assignment.node for assignment in _placed(world)]
    async with _called(world, "while two move"):
        async with world.streams(STREAMS, "on both") as streams:
            for node in nodes:
                await _direct(world, node, Directive.DRAIN)
        world.check("no stream is cut by two drains", all(one.ending is Ending.WHOLE for _, one in streams), streams)
        for node in nodes:
            await _until_drained(world, node)
    world.check("both replicas run elsewhere", not set(nodes) & {one.node for one in _placed(world)}, _placed(world))
    world.check("and are routable", world.routable() == 2, world.routable())
    for node in nodes:
        await _direct(world, node, Directive.ACTIVE)


async def _cordoned(world: World) -> None:
    node, other = (assignment.node for assignment in _placed(world))
    processes = _host(world, node).running()
    await _direct(world, node, Directive.CORDON)
    for number in range(CALLS):
        answer = await world.client.chat(world.prompt(f"past the cordoned node ({number})", max_tokens=2))
        world.check("a call passes the cordoned node", answer.ending is Ending.WHOLE, answer)
        starts = world.sight.grants.granted_starts[answer.workload or ""]  # type: ignore[index]  # a WorkloadId, told as text
        world.check(
            "the other one serves", set(starts) <= {start for _, start in _host(world, other).running()}, starts
        )
    await _direct(world, node, Directive.ACTIVE)
    world.check("its engine ran on", _host(world, node).running() == processes, _host(world, node).running())
    await world.until("it serves again", lambda: world.routable() == 2, within_ms=5_000)


async def _retired(world: World) -> None:
    node = _placed(world)[0].node
    async with _called(world, "while it retires"):
        await _direct(world, node, Directive.RETIRE, "sold")
        await world.until("it is retired", lambda: world.kernel.state.nodes[node].retired, within_ms=DRAINED_MS)
    world.check("a retired node runs nothing", not _host(world, node).engines(), _host(world, node).running())
    sequence = world.kernel.observed.nodes[node].sequence
    await trio.sleep(world.plan.policy.node_lease_ms / 1_000)
    world.check("it is heard no more", world.kernel.observed.nodes[node].sequence == sequence)
    world.check("and nobody calls it lost", not await _alerts(world))
    status, answer = await world.operate("PUT", f"/admin/v1/nodes/{node}/directive", {"directive": "active"})
    refused = (status, answer["error"]["code"]) == (403, Outcome.NODE_RETIRED.value)
    world.check("and for good", refused, answer)


# --- what is asked and seen ---


@asynccontextmanager
async def _called(world: World, when: str) -> AsyncIterator[None]:
    """Somebody calls all the while, and is never refused; at every quiescent instant there is a replica that serves,
    and one more than wanted at most."""
    over = trio.Event()

    def fault() -> str | None:
        wanted = world.kernel.state.deployments[DeploymentId(DEPLOYMENT)].spec.replicas
        if len(_placed(world)) > wanted + 1:
            return f"{len(_placed(world))} replicas of {wanted}"
        return None if world.routable() else "none serves"

    async def call() -> None:
        number = 0
        while not over.is_set():
            number += 1
            body = world.prompt(f"{when} ({number})", max_tokens=4)
            answer = await world.client.chat(body)
            world.check(f"every call is served {when}", answer.ending is Ending.WHOLE, answer)
            world.check_answer(f"with the engine's answer {when}", body, answer)
            await trio.sleep(0.25)

    with world.watched(f"one more than wanted at most, one that serves at least, {when}", fault):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(call)
            yield
            over.set()


async def _direct(world: World, node: NodeId, directive: Directive, reason: str | None = None) -> Any:
    body = {"directive": directive.value, "reason": reason}
    status, answer = await world.operate("PUT", f"/admin/v1/nodes/{node}/directive", body)
    world.check(f"{directive.value} is taken at once", status == 200 and answer["directive"] == directive.value, answer)
    return answer


async def _until_drained(world: World, node: NodeId) -> None:
    async def drained() -> bool:
        _, document = await world.operate("GET", f"/admin/v1/nodes/{node}")
        return bool(document["drained"])

    await world.until_told(f"{node} is drained", drained, within_ms=DRAINED_MS)


async def _alerts(world: World) -> Any:
    _, document = await world.operate("GET", "/admin/v1/status")
    return document["alerts"]


def _placed(world: World) -> list[Assignment]:
    return [assignment for _, assignment in sorted(world.kernel.state.assignments.items())]


def _serving(world: World) -> set[NodeId]:
    reports = world.sight.routable(world.kernel, DeploymentId(DEPLOYMENT))
    assert all(report.state is ReplicaState.READY for report in reports)
    return {world.kernel.state.assignments[report.assignment].node for report in reports}


def _host(world: World, node: NodeId) -> Any:
    return next(host for host in world.nodes if host.name == node)
