"""Disks that are full, gone, slow or that fail to say what they did, under traffic: the controller's, then a node's.
Whoever asks meanwhile is told 503 and when to come again, or is served; nobody is told that a key or a model is
unknown. What was open is settled once when the disk is back, whoever settles it twice, and neither gateway nor node is
blamed for it."""

from collections.abc import Mapping
from typing import Any, Final

import attrs
import trio

from lunanexa_core.admission.settle import given_up
from lunanexa_core.commands import SettleWorkload
from lunanexa_core.events import LivenessChanged
from lunanexa_core.outcomes import Outcome
from lunanexa_simulation.client import Answer, Ending
from lunanexa_simulation.disk import DiskFaults
from lunanexa_simulation.faults import crash_engine
from lunanexa_simulation.run import Run
from lunanexa_simulation.scenarios.steps import at_rest, changes, listed, receipts_of, served, until_listed
from lunanexa_simulation.world import World, open_world
from lunanexa_simulation.world_plan import WorldPlan

PLAN: Final = WorldPlan(engine_arguments=("--ttft-ms", "32", "--itl-ms", "64"))
TOKENS: Final = 32
STREAMS: Final = 3
CALLERS: Final = 4
LEASE_MS: Final = PLAN.policy.node_lease_ms
Asked = tuple[Mapping[str, Any], Answer]


@attrs.frozen(kw_only=True)
class Case:
    """One fault of the controller's disk; how long it lasts at least, and how much longer the seed may have it."""

    name: str
    faults: DiskFaults
    at_least_ms: int
    more_ms: int = 1_000


CASES: Final = (
    Case(name="full for a moment", faults=DiskFaults(full=True, delay_ms=2), at_least_ms=300),
    Case(name="full for longer than a lease", faults=DiskFaults(full=True, delay_ms=2), at_least_ms=LEASE_MS + 2_000),
    Case(name="gone", faults=DiskFaults(unavailable=True, delay_ms=2), at_least_ms=3_000),
    Case(name="slow", faults=DiskFaults(delay_ms=400), at_least_ms=3_000),
    Case(name="very slow", faults=DiskFaults(delay_ms=3_500), at_least_ms=LEASE_MS),
    Case(name="silent about what it wrote", faults=DiskFaults(unknown_outcomes=3, delay_ms=2), at_least_ms=1_000),
)


async def main(run: Run) -> None:
    """The scenario."""
    async with open_world(run, PLAN) as world:
        await world.start()
        await world.deploy()
        await until_listed(world, "at first")
        start = world.newest_start()
        for case in CASES:
            await _controllers_disk(world, case)
        await _settled_twice(world)
        world.check("no engine is started anew for it", world.newest_start() == start, world.newest_start())
        await _nodes_disk(world)
        await served(world, "after all")
        await world.stop()


async def _controllers_disk(world: World, case: Case) -> None:
    disk, usual = world.controller.disk, world.controller.disk.faults
    calls: list[Asked] = []
    blamed = len(changes(world, LivenessChanged))
    async with (
        trio.open_nursery() as nursery,
        world.streams(STREAMS, f"while the disk is {case.name}", max_tokens=TOKENS) as streams,
    ):
        await world.dither(f"disk {case.name}", 1_500)
        world.trace(f"the controller's disk is {case.name}")
        disk.faults = attrs.evolve(case.faults)
        for number in range(CALLERS):
            await trio.sleep(case.at_least_ms / 1_000 / CALLERS)
            nursery.start_soon(_call, world, f"{case.name} ({number})", number % 2 == 0, calls)
        if case.faults.full or case.faults.unavailable:
            world.check(f"nothing is listed that can't be called, {case.name}", not await listed(world))
        await world.dither(f"disk back {case.name}", case.more_ms)
        world.trace("the controller's disk is well again")
        disk.faults = usual
    await at_rest(world, f"when it was {case.name}")
    for body, answer in (*streams, *calls):
        _check_told(world, body, answer, case.name)
    told = changes(world, LivenessChanged)[blamed:]
    world.check(f"no node is blamed for a disk that is {case.name}", not told, told)
    await until_listed(world, f"when it was {case.name}")


async def _call(world: World, about: str, stream: bool, calls: list[Asked]) -> None:
    body = world.prompt(about, stream=stream, max_tokens=TOKENS)
    calls.append((body, await world.client.chat(body)))


def _check_told(world: World, body: Mapping[str, Any], answer: Answer, when: str) -> None:
    """Served, or told honestly that the store is not there; one receipt for whatever was admitted."""
    world.check_answer(f"what came is the engine's answer or its beginning, {when}", body, answer)
    if answer.ending is Ending.REFUSED:
        honest = answer.status == 503 and answer.error in (*_STORE, _UNLEASED) and answer.retry_after_s is not None
        world.check(f"a refusal is 503 with Retry-After, {when}", honest, answer)
    else:
        whole = answer.ending is Ending.WHOLE
        told = whole or (answer.ending is Ending.ERROR_FRAME and answer.error in _STORE)
        world.check(f"an answer is whole, or says what failed, {when}", told, answer)
    receipts = receipts_of(world, answer.workload)
    if answer.error in (Outcome.STORE_UNAVAILABLE.value, _UNLEASED):
        world.check(f"what was refused has no receipt, {when}", not receipts, receipts)
        return
    world.check(f"what was admitted has one receipt, {when}", len(receipts) == 1, receipts)
    settlement = receipts[0].settlement
    done = settlement.outcome is None and settlement.usage.output_tokens == TOKENS
    world.check(f"which says what the engine did, {when}", done, settlement)


async def _settled_twice(world: World) -> None:
    """While the disk does not say what it wrote, a workload is settled by two who do not know of each other, in one
    breath, then by its own gateway, and then again and again: the first one counts."""
    kernel = world.kernel
    async with world.streams(1, "settled twice", max_tokens=TOKENS) as streams:
        (workload,) = kernel.state.open
        lost = given_up(workload, "gateway_lost", kernel.observed, kernel.now())
        both = (lost, attrs.evolve(lost, detail="overdue"))
        world.controller.disk.faults.unknown_outcomes = 1
        async with trio.open_nursery() as nursery:
            for settlement in both:
                nursery.start_soon(kernel.ask, SettleWorkload(settlement), "gateway")
    ((body, answer),) = streams
    receipts = receipts_of(world, workload)
    once = len(receipts) == 1 and receipts[0].settlement in both
    world.check("what is settled twice has one receipt", once, receipts)
    told = (answer.ending, answer.error)
    world.check("who asked is told what it says", told == (Ending.ERROR_FRAME, Outcome.INTERNAL.value), answer)
    world.check_answer("after the beginning of the engine's answer", body, answer)
    before = world.kernel.head.sequence
    for settlement in (lost, attrs.evolve(lost, outcome=None, detail=None)):
        again = await kernel.ask(SettleWorkload(settlement), "gateway")
        world.check("whoever settles it again is told of that receipt", again == receipts[0], again)
    world.check("and nothing is written", world.kernel.head.sequence == before)
    await at_rest(world, "when it was settled twice")


_STORE: Final = (Outcome.STORE_UNAVAILABLE.value, Outcome.RECEIPT_UNAVAILABLE.value)
_UNLEASED: Final = Outcome.STARTING.value
"""The node's lease has run out meanwhile; until its next heartbeat it serves nobody."""


async def _nodes_disk(world: World) -> None:
    """The engine serves on; but none is started whose start can't be recorded, and no document is followed that
    can't be kept."""
    node, usual = world.nodes[0], world.nodes[0].disk.faults
    world.trace(f"{node.name}: the disk is full")
    node.disk.faults = attrs.evolve(usual, full=True)
    await world.dither("node's disk full", 2_000)
    body = world.prompt("while the node's disk is full", max_tokens=TOKENS)
    answer = await world.client.chat(body)
    world.check("an engine that runs serves on", answer.ending is Ending.WHOLE, answer)
    world.check_answer("with its answer", body, answer)
    start, kept = world.newest_start(), node.accepted()
    assert start is not None
    await world.deploy(slots=world.plan.engine_slots + 1)
    await world.until(
        "a newer document is there",
        lambda: world.kernel.state.nodes[node.name].generation > (kept or (0, 0))[1],
        within_ms=1_000,
    )
    await trio.sleep(3)
    world.check("a document that can't be kept is not followed", node.accepted() == kept, node.accepted())
    crash_engine(world, start)
    await world.until("its engine is gone", lambda: not node.engines(), within_ms=world.plan.linger_ms + 1_000)
    await world.dither("engine gone", 8_000)
    world.check("no start that can't be recorded", not node.engines(), node.running())
    world.check("what does not run is not listed", not await listed(world))
    world.trace(f"{node.name}: the disk is well again")
    node.disk.faults = usual
    await world.until("the newest document is followed", lambda: node.accepted() != kept, within_ms=30_000)
    await until_listed(world, "when the node's disk is well")
    slots = [report.slots for report in world.kernel.state.replicas.values()]
    world.check("as it says", slots == [world.plan.engine_slots + 1], slots)
