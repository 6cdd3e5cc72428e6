"""An engine that serves and fails in turn, as its command line tells it: it cuts a stream, fails in one, forgets
its end, refuses, closes, hangs and at last exits. Each is told as what it is, and its one slot is free afterwards."""

from typing import Final

import attrs

from lunanexa_core.outcomes import Outcome
from lunanexa_simulation.client import Ending
from lunanexa_simulation.run import Run
from lunanexa_simulation.scenarios.steps import SERVED, at_rest, receipt_of, served, until_listed
from lunanexa_simulation.trace import virtual_ms
from lunanexa_simulation.world import TOKENS, World, open_world
from lunanexa_simulation.world_plan import WorldPlan

HANG_DEADLINE_MS: Final = 2_000
SLACK_MS: Final = 200
OUTPUT_TOKENS: Final = 5
"""What a stream brings before it breaks."""


@attrs.frozen(kw_only=True)
class Case:
    """One fault, the call that it strikes, and what must come of it."""

    fault: str
    stream: bool = False
    ending: Ending = Ending.REFUSED
    status: int = 502
    outcome: Outcome | None = Outcome.ENGINE_FAILED
    output_tokens: int = 0
    deadline_ms: int | None = None


CASES: Final = (
    Case(fault=f"cut={OUTPUT_TOKENS}", stream=True, ending=Ending.ERROR_FRAME, status=200, output_tokens=OUTPUT_TOKENS),
    Case(
        fault=f"error-frame={OUTPUT_TOKENS}",
        stream=True,
        ending=Ending.ERROR_FRAME,
        status=200,
        output_tokens=OUTPUT_TOKENS,
    ),
    Case(fault="no-done", stream=True, ending=Ending.WHOLE, status=200, outcome=None, output_tokens=TOKENS),
    Case(fault="refuse=503"),
    Case(fault="refuse=500", stream=True),
    Case(fault="close"),
    Case(fault="hang", status=504, outcome=Outcome.DEADLINE_EXCEEDED, deadline_ms=HANG_DEADLINE_MS),
    Case(fault="hang", stream=True, status=504, outcome=Outcome.DEADLINE_EXCEEDED, deadline_ms=HANG_DEADLINE_MS),
    Case(fault="exit=3"),
)


def _arguments() -> tuple[str, ...]:
    """A fault lets pass what comes before it: the calls of :func:`served`, then each earlier fault and the call
    after it. An engine that starts again counts from nothing, so it serves those of :func:`served` first."""
    found = ["--ttft-ms", "32", "--itl-ms", "16"]
    for number, case in enumerate(CASES):
        found += ["--fault", f"{case.fault},after={SERVED + 2 * number},count=1"]
    return tuple(found)


async def main(run: Run) -> None:
    """The scenario."""
    async with open_world(run, WorldPlan(engine_slots=1, engine_arguments=_arguments())) as world:
        await world.start()
        await world.deploy()
        await until_listed(world, "at first")
        await served(world, "at first")
        start = world.newest_start()
        for case in CASES[:-1]:
            await _struck(world, case)
            await _served_again(world, case.fault)
        world.check("it is the same engine process", world.newest_start() == start, world.newest_start())
        await _struck(world, CASES[-1])
        await world.until("a new start is there", lambda: world.newest_start() not in (None, start), within_ms=60_000)
        await until_listed(world, "again")
        await served(world, "after the exit")
        await at_rest(world, "at the end")
        await world.stop()


async def _struck(world: World, case: Case) -> None:
    before, began_ms = len(world.receipts), virtual_ms()
    body = world.prompt(f"when the engine does {case.fault}", stream=case.stream)
    answer = await world.client.chat(body, deadline_ms=case.deadline_ms)
    took_ms = virtual_ms() - began_ms
    told = (answer.ending, answer.status, answer.error)
    error = None if case.outcome is None else case.outcome.value
    world.check(f"{case.fault} is told as it is", told == (case.ending, case.status, error), answer)
    world.check_answer(f"what came out of {case.fault} is true", body, answer)
    if case.deadline_ms is not None:
        world.check("at its deadline", 0 <= took_ms - case.deadline_ms < SLACK_MS, took_ms)
    receipt = receipt_of(world, answer.workload)
    booked = None if receipt is None else receipt.settlement
    world.check(f"{case.fault} has its receipt", booked is not None and booked.outcome is case.outcome, booked)
    assert booked is not None
    world.check(f"{case.fault} took one attempt", len(booked.attempts) == 1, booked.attempts)
    world.check(f"{case.fault} is booked as it was", booked.usage.output_tokens == case.output_tokens, booked.usage)
    world.check(f"{case.fault} has one receipt", len(world.receipts) == before + 1)
    await at_rest(world, f"after {case.fault}")


async def _served_again(world: World, fault: str) -> None:
    began_ms = virtual_ms()
    body = world.prompt(f"after {fault}")
    answer = await world.client.chat(body)
    took_ms = virtual_ms() - began_ms
    world.check(f"the next call is served after {fault}", answer.ending is Ending.WHOLE, answer)
    world.check_answer(f"with the engine's answer after {fault}", body, answer)
    usual_ms = 32 + TOKENS * 16
    world.check(f"and waits for nobody after {fault}", took_ms < usual_ms + SLACK_MS, took_ms)
