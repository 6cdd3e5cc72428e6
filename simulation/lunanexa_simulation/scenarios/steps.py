"""Steps that scenarios share."""

from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final, TypeVar

import trio

from lunanexa_apps.controller.rows import from_row
from lunanexa_core.binding import frees_key
from lunanexa_core.events import KIND_OF_TYPE, WorkloadAdmitted
from lunanexa_core.outcomes import Outcome
from lunanexa_core.workload import Receipt
from lunanexa_simulation.client import Ending
from lunanexa_simulation.world import MODEL_ALIAS, TOKENS, World

T = TypeVar("T")
SERVED: Final = 3
"""Calls that one look at the service makes."""
PAUSE_S: Final = 2.0
"""Between two calls of who calls all the while."""
NOBODY: Final = (Outcome.STARTING.value, Outcome.NO_CAPACITY.value, Outcome.NO_PLACEMENT.value)
"""What is told where nobody can serve now."""


async def until_listed(world: World, when: str) -> None:
    """Listed means that the first call succeeds."""
    await world.until_told(f"the model is listed {when}", lambda: listed(world), within_ms=60_000)


async def listed(world: World) -> bool:
    """Whether the model is listed now."""
    return await world.client.models() == (MODEL_ALIAS,)


async def served(world: World, when: str) -> None:
    """A unary call and two streams, whole and true, each with its receipt."""
    before = len(world.receipts)
    for kind in ({}, {"stream": True, "stream_options": {"include_usage": True}}, {"stream": True}):
        body = world.prompt(f"{when}: what is in the garden", **kind)
        answer = await world.client.chat(body)
        world.check(f"served {when}", answer.ending is Ending.WHOLE, answer)
        world.check_answer(f"the answer {when} is the engine's", body, answer)
        receipt = receipt_of(world, answer.workload)
        world.check(f"the receipt is durable when the answer is there, {when}", receipt is not None)
        asked = not kind.get("stream") or "stream_options" in kind
        world.check(f"usage is told where it was asked for, {when}", asked == (answer.usage is not None), answer.usage)
        if receipt is not None and answer.usage is not None:
            booked = receipt.settlement.usage
            same = (booked.input_tokens, booked.output_tokens) == (answer.usage["prompt_tokens"], TOKENS)
            world.check(f"the usage told is the usage booked, {when}", same and not booked.estimated, booked)
    world.check(f"three receipts more, {when}", len(world.receipts) == before + SERVED)


def receipt_of(world: World, workload: str | None) -> Receipt | None:
    """The receipt of the workload that an answer named."""
    return next((receipt for receipt in world.receipts if receipt.workload == workload), None)


def receipts_of(world: World, workload: str | None) -> list[Receipt]:
    """All receipts of the workload that an answer named."""
    return [receipt for receipt in world.receipts if receipt.workload == workload]


def changes(world: World, kind: type[T]) -> list[T]:
    """Every event of one kind that the journal holds, in order."""
    action = KIND_OF_TYPE[kind].action
    found = (from_row(row) for row in world.sight.rows if row.action == action)
    return [event for event in found if isinstance(event, kind)]


def check_once_a_key(world: World) -> None:
    """Of all workloads of an idempotency key at most one has ended in a way that binds the key; the others came before
    it."""
    of_key: dict[str, list[Receipt]] = defaultdict(list)
    told = {receipt.workload: receipt for receipt in world.receipts}
    for admitted in changes(world, WorkloadAdmitted):
        if admitted.request.idempotency is not None:
            of_key[admitted.request.idempotency].append(told[admitted.request.workload])
    binding = {key: [one for one in receipts if not frees_key(one.settlement)] for key, receipts in of_key.items()}
    twice = [receipts for key, receipts in of_key.items() if binding[key] not in ([], receipts[-1:])]
    world.check("nothing ran twice for one key", not twice, twice)


async def at_rest(world: World, when: str) -> None:
    """Whatever was asked is settled soon, and nothing is held any more."""
    await world.until(f"everything is settled {when}", lambda: not world.kernel.state.open, within_ms=5_000)
    observed, state = world.kernel.observed, world.kernel.state
    held = (state.open_of_key, state.open_of_deployment, observed.held, observed.slots_held, observed.admitted_mono_ms)
    world.check(f"every counter is zero {when}", not any(held), held)
    world.check(f"nobody waits {when}", waiting(world) == 0, waiting(world))


def waiting(world: World) -> int:
    """How many wait for a slot."""
    return sum(map(len, world.kernel.observed.queues.values()))


@asynccontextmanager
async def calling(world: World, when: str) -> AsyncIterator[None]:
    """Somebody calls all the while, and is served each time."""
    over = trio.Event()

    async def call() -> None:
        number = 0
        while not over.is_set():
            number += 1
            body = world.prompt(f"{when} ({number})", max_tokens=4)
            answer = await world.client.chat(body)
            world.check(f"every call is served {when}", answer.ending is Ending.WHOLE, answer)
            world.check_answer(f"with the engine's answer {when}", body, answer)
            await trio.sleep(PAUSE_S)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(call)
        yield
        over.set()


@asynccontextmanager
async def refused_calls(world: World, when: str) -> AsyncIterator[None]:
    """Somebody calls all the while; who is not served is told so."""
    over, refused = trio.Event(), 0

    async def call() -> None:
        nonlocal refused
        while not over.is_set():
            body = world.prompt(when, max_tokens=4)
            answer = await world.client.chat(body)
            if answer.ending is Ending.WHOLE:
                world.check_answer(f"an answer is the engine's {when}", body, answer)
            else:
                told = (answer.status, answer.error in NOBODY, answer.retry_after_s is not None)
                world.check(f"a refusal is honest {when}", told == (503, True, True), answer)
                refused += 1
            await trio.sleep(PAUSE_S)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(call)
        yield
        over.set()
    world.check(f"some are refused {when}", refused > 0)
