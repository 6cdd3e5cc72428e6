"""Clients leave: while they wait in the queue, before the first byte, in mid-stream, in the middle of a unary
call, and at moments that only the seed knows. Each departure is settled once and frees everything, the engine's
work too: its one slot serves the next call at once."""

from collections.abc import Sequence
from typing import Final

import trio

from lunanexa_core.outcomes import Outcome
from lunanexa_core.workload import Receipt
from lunanexa_simulation.client import Ending
from lunanexa_simulation.run import Run
from lunanexa_simulation.scenarios.steps import at_rest, served, until_listed, waiting
from lunanexa_simulation.trace import virtual_ms
from lunanexa_simulation.world import World, open_world
from lunanexa_simulation.world_plan import WorldPlan

TTFT_MS: Final = 400
PLAN: Final = WorldPlan(engine_slots=1, engine_arguments=("--ttft-ms", str(TTFT_MS), "--itl-ms", "16"))
WHOLE_MS: Final = 1_600
"""A whole call takes 1.4 s: one that comes sooner than this did not wait for what a departed one left."""
LEAVERS: Final = 6


async def main(run: Run) -> None:
    """The scenario."""
    async with open_world(run, PLAN) as world:
        await world.start()
        await world.deploy()
        await until_listed(world, "at first")
        await _in_the_queue(world)
        for stream in (True, False):
            await _before_the_first_byte(world, stream=stream)
        await _in_the_middle(world)
        await _at_any_moment(world)
        await served(world, "after all")
        await world.stop()


async def _in_the_queue(world: World) -> None:
    before = len(world.receipts)
    async with world.streams(1, "that holds the slot") as streams:
        async with trio.open_nursery() as nursery:
            for stream in (True, False):
                nursery.start_soon(world.client.chat, world.prompt("that waits", stream=stream))
            await world.until("both wait", lambda: waiting(world) == 2, within_ms=1_000)
            await world.dither("leave the queue", 200)
            nursery.cancel_scope.cancel("the callers leave")
        await world.until("their places are free", lambda: not waiting(world), within_ms=500)
        await world.until("they are settled", lambda: len(world.kernel.state.open) == 1, within_ms=500)
    ((body, answer),) = streams
    world.check("whoever held the slot is served", answer.ending is Ending.WHOLE, answer)
    world.check_answer("with the engine's answer", body, answer)
    left = [receipt for receipt in world.receipts[before:] if receipt.workload != answer.workload]
    _check_left(world, left, 2, "the queue")
    unasked = [(receipt.settlement.attempts, receipt.settlement.usage.output_tokens) for receipt in left]
    world.check("no engine was asked", unasked == [((), 0)] * 2, unasked)
    await _free_at_once(world, "after the queue")


async def _before_the_first_byte(world: World, *, stream: bool) -> None:
    when = "before the first byte of " + ("a stream" if stream else "a unary call")
    before, begun = len(world.receipts), world.client.begun
    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.client.chat, world.prompt(when, stream=stream))
        await world.until("the engine is asked", lambda: bool(world.kernel.observed.held), within_ms=1_000)
        await world.dither(when, TTFT_MS // 2)
        nursery.cancel_scope.cancel("the caller leaves")
    world.check(f"it left {when}", world.client.begun == begun)
    await _free_at_once(world, when)
    left = world.receipts[before:-1]
    _check_left(world, left, 1, when)
    told = left[0].settlement.usage.output_tokens
    world.check(f"nothing came out {when}", told == 0, told)


async def _in_the_middle(world: World) -> None:
    before, begun = len(world.receipts), world.client.begun
    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.client.chat, world.prompt("that runs", stream=True))
        await world.until("the stream runs", lambda: world.client.begun > begun, within_ms=5_000)
        await world.dither("mid-stream", 500)
        nursery.cancel_scope.cancel("the caller leaves")
    await _free_at_once(world, "in mid-stream")
    left = world.receipts[before:-1]
    _check_left(world, left, 1, "in mid-stream")
    world.check("what came out is booked", left[0].settlement.usage.output_tokens > 0, left)

    before = len(world.receipts)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.client.chat, world.prompt("that is worked on"))
        await world.until("the call is granted", lambda: bool(world.kernel.observed.held), within_ms=1_000)
        await trio.sleep(TTFT_MS / 1_000 + 0.05)
        await world.dither("mid-call", 500)
        nursery.cancel_scope.cancel("the caller leaves")
    await _free_at_once(world, "in a unary call")
    _check_left(world, world.receipts[before:-1], 1, "in a unary call")


async def _at_any_moment(world: World) -> None:
    """On the way, at its admission, in the queue, when the slot is granted: as the seed has it."""
    before = len(world.receipts)
    async with trio.open_nursery() as nursery:
        for number in range(LEAVERS):
            nursery.start_soon(_leave_soon, world, number)
    await at_rest(world, "after six left at any moment")
    left = world.receipts[before:]
    world.check("none came twice", len(left) <= LEAVERS, left)
    _check_left(world, left, len(left), "at any moment")
    await _free_at_once(world, "at any moment")


async def _leave_soon(world: World, number: int) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.client.chat, world.prompt(f"for a moment ({number})", stream=number % 2 == 0))
        await world.dither(f"leave ({number})", 40)
        nursery.cancel_scope.cancel("the caller leaves")


async def _free_at_once(world: World, when: str) -> None:
    """The next call waits for nobody."""
    began_ms = virtual_ms()
    body = world.prompt(f"the next one, {when}")
    answer = await world.client.chat(body)
    took_ms = virtual_ms() - began_ms
    world.check(f"the next call is served {when}", answer.ending is Ending.WHOLE, answer)
    world.check_answer(f"with the engine's answer {when}", body, answer)
    world.check(f"at once {when}", took_ms < WHOLE_MS, took_ms)
    await at_rest(world, when)


def _check_left(world: World, receipts: Sequence[Receipt], count: int, when: str) -> None:
    told = [receipt.settlement.outcome for receipt in receipts]
    world.check(f"each departure is settled once, {when}", told == [Outcome.CANCELLED_BY_CALLER] * count, told)
