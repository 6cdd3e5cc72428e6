"""Four nodes and two replicas. A node is cut off, or dies for good: its replica comes up elsewhere at once, and when
the node returns it is told to stop what it has. Who waits for a node that died without a word waits until it is lost,
and no longer. One that returns before its successor serves goes on as it was. When most nodes are late at once nothing
is re-placed, and the status says so."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import trio

from lunanexa_core.deployment import Assignment
from lunanexa_core.events import AssignmentPlaced, Liveness
from lunanexa_core.ids import AssignmentId, NodeId
from lunanexa_simulation.client import Answer, Ending
from lunanexa_simulation.faults import Way, join, part, reboot_node
from lunanexa_simulation.run import Run
from lunanexa_simulation.scenarios.steps import at_rest, changes, receipts_of, served, until_listed
from lunanexa_simulation.trace import virtual_ms
from lunanexa_simulation.world import World, open_world
from lunanexa_simulation.world_plan import WorldPlan

REPLICAS: Final = 2
LOADING_MS: Final = 2_000
FOREVER_MS: Final = 300_000
ASKED: Final = 4
"""Streams, and as many calls: all slots of both replicas."""
ANSWER_MS: Final = 2_500
"""Twice what an answer takes."""
BACK_MS: Final = 40_000
"""An agent that was cut off tries again within half a minute."""


async def main(run: Run) -> None:
    """The scenario."""
    async with open_world(run, WorldPlan(nodes=4)) as world:
        _load_in(world, LOADING_MS)
        await world.start()
        await world.deploy(replicas=REPLICAS)
        await _until_both(world, "at first")
        await until_listed(world, "at first")
        with _never_one_assignment_twice(world):
            await _cut_off(world)
            await _back_before_its_successor(world)
            await _dead(world)
            await _most_are_late(world)
            await _retired_unheard(world)
        await served(world, "after all")
        await at_rest(world, "after all")
        await world.stop()


async def _cut_off(world: World) -> None:
    """The cut node can't be told: its engine runs on until it hears of its successor."""
    number = _number(world, _placed(world)[0].node)
    name, engines = world.nodes[number].name, world.nodes[number].running()
    await world.dither("cut off", 500)
    part(world, number, Way.BOTH)
    await _until_lost(world, number)
    began_ms = virtual_ms()
    answer = await world.client.chat(world.prompt("of the one that is left", max_tokens=2))
    world.check("the other replica serves meanwhile", answer.ending is Ending.WHOLE, answer)
    await _until_both(world, "when one was replaced")
    world.trace(f"replaced {virtual_ms() - began_ms} ms after the loss")
    world.check("the lost node is given up", name not in {one.node for one in _placed(world)}, _placed(world))
    world.check("its engine runs on, and is granted nothing", world.nodes[number].running() == engines)
    join(world, number)
    await world.until(
        "the node that returns stops what it had", lambda: not world.nodes[number].engines(), within_ms=BACK_MS
    )
    await _until_ready(world, number)
    world.check("two replicas are left", len(_placed(world)) == REPLICAS, _placed(world))


async def _back_before_its_successor(world: World) -> None:
    """Nothing was won by the move yet: the one that serves stays, as the process that it was."""
    number = _number(world, _placed(world)[0].node)
    engines = world.nodes[number].running()
    _load_in(world, FOREVER_MS)
    part(world, number, Way.TO_CONTROLLER)
    await _until_lost(world, number)
    await world.until("a successor is placed", lambda: len(_placed(world)) == REPLICAS + 1, within_ms=2_000)
    join(world, number)
    await _until_both(world, "when it is back")
    world.check("its engine is the same", world.nodes[number].running() == engines, world.nodes[number].running())
    await world.until("the successor is taken back", lambda: len(_placed(world)) == REPLICAS, within_ms=2_000)
    _load_in(world, LOADING_MS)


async def _dead(world: World) -> None:
    """Its power is gone, with its engine; when it comes back there is nothing for it to do."""
    number = _number(world, _placed(world)[0].node)
    await _asked_as_it_dies(world, number)
    await _until_both(world, "when the dead node was replaced")
    await world.start_agent(number)
    await _until_ready(world, number)
    world.check("it is given nothing of its own", world.nodes[number].name not in {one.node for one in _placed(world)})
    await world.until("its old engine is not started", lambda: not world.nodes[number].engines(), within_ms=20_000)


async def _asked_as_it_dies(world: World, number: int) -> None:
    """Nobody hears of its end. Of whom nothing was told yet, another replica answers; who was told something is told
    that there is no more."""
    ((_, start),) = world.nodes[number].running()
    calls: list[tuple[Mapping[str, Any], Answer]] = []

    async def call(about: str) -> None:
        body = world.prompt(about)
        calls.append((body, await world.client.chat(body)))

    def all_pass() -> bool:
        held = [one.start for one in world.kernel.observed.held.values()]
        return len(held) == 2 * ASKED and len(world.nodes[number].at_door()) >= held.count(start)

    async with trio.open_nursery() as nursery, world.streams(ASKED, "as a machine dies") as streams:
        for one in range(ASKED):
            nursery.start_soon(call, f"as a machine dies ({one})")
        await world.until("engines work for all", all_pass, within_ms=500)
        await world.dither("the machine dies", 200)
        reboot_node(world, number)
        await _until_lost(world, number)
        lost_ms = virtual_ms()
    world.check("nobody waits for a lost node", virtual_ms() - lost_ms <= ANSWER_MS, virtual_ms() - lost_ms)
    for asked, ending, failures in (
        (calls, Ending.WHOLE, ["node_lost", None]),
        (streams, Ending.ERROR_FRAME, ["node_lost"]),
    ):
        told = [(one, receipts_of(world, one[1].workload)) for one in asked]
        world.check("each has one receipt", all(len(receipts) == 1 for _, receipts in told), told)
        lost = [(one, of[0].settlement.attempts) for one, of in told if of[0].settlement.attempts[0].start == start]
        world.check("some were asked of it", bool(lost), told)
        for (body, answer), attempts in lost:
            world.check_answer("what was told is one engine's answer, or its beginning", body, answer)
            right = answer.ending is ending and [one.failure for one in attempts] == failures
            world.check("it is tried again, or told, as it has to be", right, (answer, attempts))
        others = [answer for (_, answer), of in told if of[0].settlement.attempts[0].start != start]
        world.check("the others notice nothing", all(one.ending is Ending.WHOLE for one in others), others)


async def _retired_unheard(world: World) -> None:
    """A node that is retired while it is lost is refused when it returns, and still told to stop what it has."""
    number = _number(world, _placed(world)[0].node)
    name = world.nodes[number].name
    part(world, number, Way.BOTH)
    await _until_lost(world, number)
    status, answer = await world.operate("PUT", f"/admin/v1/nodes/{name}/directive", {"directive": "retire"})
    world.check("a lost node is retired", status == 200, answer)
    await world.until("nobody waits for it", lambda: world.kernel.state.nodes[name].retired, within_ms=1_000)
    await _until_both(world, "without the retired node")
    world.check("its engine runs on", bool(world.nodes[number].engines()))
    join(world, number)
    await world.until("it stops it when it is told", lambda: not world.nodes[number].engines(), within_ms=BACK_MS)
    world.check("and is none of the fleet", world.kernel.state.nodes[name].retired)


async def _most_are_late(world: World) -> None:
    """The controller hears but one node, which could have a replica: that is its own fault until shown otherwise."""
    placed, before = _placed(world), len(changes(world, AssignmentPlaced))
    spare = next(number for number, node in enumerate(world.nodes) if node.name not in {one.node for one in placed})
    late = [number for number in range(len(world.nodes)) if number != spare]
    for number in late:
        part(world, number, Way.TO_CONTROLLER)
    for number in late:
        await _until_lost(world, number)
    alerts = await _alerts(world)
    world.check("the status says so", [one["code"] for one in alerts] == ["evictions_frozen"], alerts)
    for number in late:
        join(world, number)
    await _until_both(world, "when all are heard again")
    world.check("nothing was re-placed", len(changes(world, AssignmentPlaced)) == before, _placed(world))
    world.check("all replicas are where they were", _placed(world) == placed, _placed(world))
    world.check("and the alert is over", not await _alerts(world))


# --- what is seen ---


@contextmanager
def _never_one_assignment_twice(world: World) -> Iterator[None]:
    """Beyond one node's one process: no assignment has engines on two nodes, whoever can hear whom."""

    def fault() -> str | None:
        nodes: dict[AssignmentId, NodeId] = {}
        for host in world.nodes:
            for assignment, _ in host.running():
                if nodes.setdefault(assignment, host.name) != host.name:
                    return f"{assignment} runs on {nodes[assignment]} and on {host.name}"
        return None

    with world.watched("no assignment runs on two nodes", fault):
        yield


def _load_in(world: World, ms: int) -> None:
    for node in world.nodes:
        node.machine.faults.spawn_ms = ms


def _placed(world: World) -> list[Assignment]:
    return [assignment for _, assignment in sorted(world.kernel.state.assignments.items())]


def _number(world: World, node: NodeId) -> int:
    return next(number for number, host in enumerate(world.nodes) if host.name == node)


async def _until_both(world: World, when: str) -> None:
    await world.until(f"both replicas are routable {when}", lambda: world.routable() == REPLICAS, within_ms=BACK_MS)
    await world.until(f"nothing is left over {when}", lambda: len(_placed(world)) == REPLICAS, within_ms=LOADING_MS)


async def _until_lost(world: World, number: int) -> None:
    await _until(world, number, Liveness.LOST, world.plan.policy.node_lease_ms + 3_000)


async def _until_ready(world: World, number: int) -> None:
    await _until(world, number, Liveness.READY, BACK_MS)


async def _until(world: World, number: int, liveness: Liveness, within_ms: int) -> None:
    name = world.nodes[number].name
    await world.until(
        f"{name} is {liveness.value}",
        lambda: world.kernel.state.nodes[name].liveness is liveness,
        within_ms=within_ms,
    )


async def _alerts(world: World) -> Any:
    _, document = await world.operate("GET", "/admin/v1/status")
    return document["alerts"]
