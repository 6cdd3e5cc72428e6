"""Callers who repeat themselves while the controller dies and its disk is slow: for one idempotency key nothing runs
twice, each workload has one receipt, and what was kept is given again to the byte."""

from collections.abc import Mapping
from typing import Any, Final

import trio

from lunanexa_core.outcomes import Outcome
from lunanexa_simulation.client import Answer, Ending
from lunanexa_simulation.faults import crash_controller
from lunanexa_simulation.run import Run
from lunanexa_simulation.scenarios.steps import at_rest, check_once_a_key, receipt_of, served, until_listed
from lunanexa_simulation.world import World, open_world
from lunanexa_simulation.world_plan import WorldPlan

PLAN: Final = WorldPlan(engine_slots=3)
CALLERS: Final = 8
KILLS: Final = 3
PAUSE_MS: Final = 700
PATIENCE_MS: Final = 120_000
RETAIN: Final = {"x-lunanexa-retain-ms": "600000"}
KEY: Final = "a-key-that-is-written-nowhere"
_TRY_AGAIN: Final = frozenset(
    outcome.value for outcome in Outcome if outcome.row.retry or outcome is Outcome.WORKLOAD_ACTIVE
)


async def main(run: Run) -> None:
    """The scenario."""
    async with open_world(run, PLAN) as world:
        await world.start()
        await world.deploy()
        await until_listed(world, "at first")
        for stream in (False, True):
            await _given_again(world, stream=stream)
        await _in_progress(world)
        await _through_kills(world)
        await at_rest(world, "after all")
        await served(world, "after all")
        written = [row.sequence for row in world.sight.rows if KEY.encode() in row.record]
        world.check("no caller's key is in the ledger", not written, written)
        await world.stop()


async def _given_again(world: World, *, stream: bool) -> None:
    """What was kept comes again, and nothing is asked; what was not is told by its receipt."""
    kind = "stream" if stream else "whole answer"
    for kept, headers in ((True, RETAIN), (False, {})):
        body, key = world.prompt(f"a {kind}, kept: {kept}", stream=stream), f"{KEY}-{kind.split()[0]}-{kept}"
        first = await world.client.chat(body, headers={**headers, "idempotency-key": key})
        before = len(world.receipts)
        again = await world.client.chat(body, headers={**headers, "idempotency-key": key})
        if kept:
            same = (again.ending, again.text, again.workload) == (Ending.WHOLE, first.text, first.workload)
            world.check(f"the {kind} is given again", same and again.replayed and not first.replayed, again)
        else:
            gone = again.error == Outcome.IDEMPOTENCY_OUTPUT_GONE.value
            world.check(f"a {kind} that was not kept is not", gone, again)
        other = await world.client.chat({**body, "max_tokens": 3}, headers={"idempotency-key": key})
        world.check(
            f"the key of a {kind} is for no other request",
            other.error == Outcome.IDEMPOTENCY_MISMATCH.value,
            other,
        )
        world.check(f"none of this ran, {kind}, kept: {kept}", len(world.receipts) == before)


async def _in_progress(world: World) -> None:
    """Two who ask the same at once: one is served."""
    body, headers = world.prompt("twice at once", stream=True), {"idempotency-key": f"{KEY}-twice"}
    answers: list[Answer] = []

    async def ask() -> None:
        answers.append(await world.client.chat(body, headers=headers))

    async with trio.open_nursery() as nursery:
        for _ in range(2):
            nursery.start_soon(ask)
    endings = sorted(answer.error or answer.ending.value for answer in answers)
    world.check("one of two is served", endings == [Ending.WHOLE.value, Outcome.WORKLOAD_ACTIVE.value], endings)


async def _through_kills(world: World) -> None:
    """Each caller asks until it has an answer, or knows that there is none to have, whatever dies meanwhile."""
    ended: list[tuple[Mapping[str, Any], Answer]] = []

    async def insist(number: int) -> None:
        body = world.prompt(f"insisting ({number})", stream=number % 2 == 0)
        headers = {"idempotency-key": f"{KEY}-{number}", **(RETAIN if number % 4 < 2 else {})}
        with trio.move_on_after(PATIENCE_MS / 1_000):
            while True:
                answer = await world.client.chat(body, headers=headers)
                told = answer.ending in (Ending.WHOLE, Ending.REFUSED)
                if told and answer.error not in _TRY_AGAIN:
                    ended.append((body, answer))
                    return
                await world.dither(f"caller {number}", PAUSE_MS)

    async with trio.open_nursery() as nursery:
        for number in range(CALLERS):
            nursery.start_soon(insist, number)
        for number in range(KILLS):
            await world.dither(f"kill {number}", 3 * PAUSE_MS)
            crash_controller(world)
            await world.dither(f"dead {number}", PAUSE_MS)
            await world.start_controller()
    world.check("every caller came to an end", len(ended) == CALLERS, len(ended))
    for body, answer in ended:
        if answer.ending is Ending.WHOLE:
            world.check_answer("what was given is the engine's", body, answer)
            receipt = receipt_of(world, answer.workload)
            world.check("a whole answer has its receipt", receipt is not None and receipt.settlement.outcome is None)
        else:
            gone = answer.error == Outcome.IDEMPOTENCY_OUTPUT_GONE.value
            world.check("else it has ended, and its answer was not kept", gone, answer)
    check_once_a_key(world)
