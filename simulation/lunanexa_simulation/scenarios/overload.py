"""More callers than one slot and a short queue can take: those beyond it are told when to come back, those in it
are served in their order, a deadline passes in the queue or is refused at once, and a drain lets what is in finish."""

from collections.abc import Mapping
from typing import Any, Final

import trio

from lunanexa_core.outcomes import Outcome
from lunanexa_core.policy import Policy
from lunanexa_simulation.client import Answer, Ending
from lunanexa_simulation.run import Run
from lunanexa_simulation.scenarios.steps import at_rest, listed, receipt_of, until_listed, waiting
from lunanexa_simulation.trace import virtual_ms
from lunanexa_simulation.world import World, open_world
from lunanexa_simulation.world_plan import WorldPlan

QUEUE: Final = 3
CALLERS: Final = 8
PLAN: Final = WorldPlan(engine_slots=1, policy=Policy(queue_requests_max=QUEUE))
SHORT_MS: Final = 300
"""Less than the one call ahead takes."""
SLACK_MS: Final = 100


async def main(run: Run) -> None:
    """The scenario."""
    async with open_world(run, PLAN) as world:
        await world.start()
        await world.deploy()
        await until_listed(world, "at first")
        await _deadline_in_the_queue(world)
        await _more_than_fit(world)
        await _deadline_that_cannot_be_kept(world)
        await _drain(world)
        await world.stop()


async def _deadline_in_the_queue(world: World) -> None:
    """Nobody knows yet how long a call takes, so it is let in."""
    async with world.streams(1, "ahead of a deadline") as streams:
        began_ms = virtual_ms()
        answer = await world.client.chat(world.prompt("in a hurry"), deadline_ms=SHORT_MS)
        took_ms = virtual_ms() - began_ms
        _check_refused(world, answer, 504, Outcome.DEADLINE_EXCEEDED)
        world.check("at its deadline", 0 <= took_ms - SHORT_MS < SLACK_MS, took_ms)
        receipt = receipt_of(world, answer.workload)
        settled = receipt is not None and receipt.settlement.outcome is Outcome.DEADLINE_EXCEEDED
        world.check("it was admitted, so it has a receipt", settled, receipt)
        world.check("its place is free", waiting(world) == 0, waiting(world))
    _check_whole(world, streams, "ahead of a deadline")
    await at_rest(world, "after a deadline")


async def _more_than_fit(world: World) -> None:
    before = len(world.receipts)
    answers: list[tuple[Mapping[str, Any], Answer]] = []

    async def call(number: int) -> None:
        body = world.prompt(f"one of many ({number})", stream=number % 2 == 0)
        answers.append((body, await world.client.chat(body)))

    async with trio.open_nursery() as nursery:
        for number in range(CALLERS):
            nursery.start_soon(call, number)
        too_many = CALLERS - QUEUE - 1
        await world.until("those beyond the queue are told at once", lambda: len(answers) == too_many, within_ms=500)
        admitted = list(world.kernel.state.open)
        world.check("slot and queue are full", (len(admitted), waiting(world)) == (QUEUE + 1, QUEUE), admitted)
        for _, answer in answers:
            _check_refused(world, answer, 429, Outcome.QUEUE_FULL)
    _check_whole(world, answers[too_many:], "in the queue")
    settled = [receipt.workload for receipt in world.receipts[before:]]
    world.check("served in the order of their admission, nobody else booked", settled == admitted, settled)
    await at_rest(world, "after the crowd")


async def _deadline_that_cannot_be_kept(world: World) -> None:
    """By now it is known how long a call takes."""
    before = len(world.receipts)
    async with world.streams(1, "ahead of a vain hope") as streams:
        began_ms = virtual_ms()
        answer = await world.client.chat(world.prompt("in vain"), deadline_ms=SHORT_MS)
        _check_refused(world, answer, 429, Outcome.DEADLINE_UNREACHABLE)
        world.check("at once", virtual_ms() - began_ms < SLACK_MS)
    _check_whole(world, streams, "ahead of a vain hope")
    world.check("a refused call has no receipt", len(world.receipts) == before + 1)


async def _drain(world: World) -> None:
    """What is in, also in the queue, is served; nothing comes in."""
    async with world.streams(1, "while it drains") as streams, trio.open_nursery() as nursery:

        async def wait() -> None:
            body = world.prompt("in the queue of a service that drains")
            streams.append((body, await world.client.chat(body)))

        nursery.start_soon(wait)
        await world.until("one waits", lambda: waiting(world) == 1, within_ms=500)
        status, told = await world.operate("POST", "/admin/v1/drain")
        world.check("it drains with two in flight", (status, told) == (200, {"draining": True, "in_flight": 2}), told)
        world.check("nothing is listed", not await world.client.models())
        for stream in (False, True):
            answer = await world.client.chat(world.prompt("too late", stream=stream))
            _check_refused(world, answer, 503, Outcome.DRAINING)
        world.check("both are still in", len(world.kernel.state.open) == 2)
    world.check("both have ended", len(streams) == 2, streams)
    _check_whole(world, streams, "while it drained")
    await at_rest(world, "after the drain")
    world.check("it stays unlisted", not await listed(world))


def _check_whole(world: World, answers: list[tuple[Mapping[str, Any], Answer]], when: str) -> None:
    for body, answer in answers:
        world.check(f"whoever is in is served, {when}", answer.ending is Ending.WHOLE, answer)
        world.check_answer(f"with the engine's answer, {when}", body, answer)


def _check_refused(world: World, answer: Answer, status: int, outcome: Outcome) -> None:
    """A status that may be tried again says when."""
    told = (answer.ending, answer.status, answer.error)
    world.check(f"refused as {outcome.value}", told == (Ending.REFUSED, status, outcome.value), answer)
    if status in (429, 503):
        world.check("and told when to come back", (answer.retry_after_s or 0) >= 1, answer)
