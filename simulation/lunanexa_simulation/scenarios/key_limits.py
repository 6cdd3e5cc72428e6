"""One key with limits: callers at once, an abort in mid-stream, a minute that is used up, and a revocation under
a running stream. What is taken comes back as the rules say, and nothing is held at rest."""

from collections.abc import Sequence
from typing import Final

import trio

from lunanexa_core.outcomes import Outcome
from lunanexa_simulation.client import Answer, Client, Ending
from lunanexa_simulation.run import Run
from lunanexa_simulation.scenarios.steps import receipt_of, served, until_listed
from lunanexa_simulation.trace import virtual_ms
from lunanexa_simulation.world import World, open_world

AT_ONCE: Final = 2
A_MINUTE: Final = 6
CALLERS: Final = 8
DITHER_MS: Final = 300


async def main(run: Run) -> None:
    """The scenario."""
    async with open_world(run) as world:
        await world.start()
        await world.deploy()
        await until_listed(world, "at first")
        key, client = await world.make_key("limited", concurrency=AT_ONCE, requests_per_minute=A_MINUTE)
        await _callers_at_once(world, client)
        await _abort(world, client)
        await _minute_used_up(world, key, client)
        await _revoked(world, key, client)
        await served(world, "by another key")
        await world.until("nothing is in progress", lambda: not world.kernel.state.open, within_ms=10_000)
        state, observed = world.kernel.state, world.kernel.observed
        held = (state.open_of_key, state.open_of_deployment, observed.held, observed.slots_held)
        world.check("at rest every counter is zero", not any(held), held)
        await world.stop()


async def _callers_at_once(world: World, client: Client) -> None:
    answers = await _at_once(world, client, CALLERS)
    whole = [answer for answer in answers if answer.ending is Ending.WHOLE]
    world.check("as many are served as may be at once", len(whole) == AT_ONCE, answers)
    world.check("the others are told that the key is at its limit", _limited(answers) == CALLERS - AT_ONCE, answers)


async def _abort(world: World, client: Client) -> None:
    before = len(world.receipts)
    async with trio.open_nursery() as nursery:
        running = client.begun + 1
        nursery.start_soon(client.chat, world.prompt("until its caller leaves", stream=True))
        await world.until("the stream runs", lambda: client.begun == running, within_ms=60_000)
        await world.dither("abort", DITHER_MS)
        nursery.cancel_scope.cancel("the caller leaves")
    await world.until("the departure is settled", lambda: not world.kernel.state.open, within_ms=5_000)
    receipts = world.receipts[before:]
    told = [receipt.settlement.outcome for receipt in receipts]
    world.check("once, as cancelled", told == [Outcome.CANCELLED_BY_CALLER], told)
    world.check("with what was used", receipts[0].settlement.usage.output_tokens > 0, receipts[0])


async def _minute_used_up(world: World, key: str, client: Client) -> None:
    """Three requests count so far, and the slot of the one that left is free again."""
    answers = await _at_once(world, client, AT_ONCE) + await _at_once(world, client, 1)
    whole = all(answer.ending is Ending.WHOLE for answer in answers)
    world.check("the slots are free again", whole, answers)
    refused = await client.chat(world.prompt("one too many"))
    world.check("the minute is used up", _limited([refused]) == 1, refused)
    _, shown = await world.operate("GET", f"/admin/v1/keys/{key}")
    window = shown["requests_window"]
    world.check("nothing is left of it", window["remaining"] == 0, window)
    await trio.sleep(window["reset_ms"] / 1000)
    answers = await _at_once(world, client, 1)
    world.check("the time that was told is the true one", answers[0].ending is Ending.WHOLE, answers)


async def _revoked(world: World, key: str, client: Client) -> None:
    ended: list[tuple[Answer, int]] = []

    async def stream() -> None:
        body = world.prompt("until its key is revoked", stream=True)
        ended.append((await client.chat(body), virtual_ms()))

    async with trio.open_nursery() as nursery:
        running = client.begun + 1
        nursery.start_soon(stream)
        await world.until("the stream runs", lambda: client.begun == running, within_ms=60_000)
        await world.dither("revocation", DITHER_MS)
        began_ms = virtual_ms()
        status, told = await world.operate("DELETE", f"/admin/v1/keys/{key}")
        world.check("the key is revoked", status == 200, told)
    ((answer, ended_ms),) = ended
    honest = answer.ending is Ending.ERROR_FRAME and answer.error == Outcome.INVALID_API_KEY.value
    world.check("a stream whose key is revoked says so", honest, answer)
    world.check("within a second", ended_ms - began_ms < 1_000, ended_ms - began_ms)
    receipt = receipt_of(world, answer.workload)
    detail = None if receipt is None else receipt.settlement.detail
    world.check("and has its receipt", detail == "key_revoked", receipt)
    after = await client.chat(world.prompt("too late"))
    world.check("the next request is refused", (after.status, after.error) == (401, "invalid_api_key"), after)


async def _at_once(world: World, client: Client, count: int) -> list[Answer]:
    answers: list[Answer] = []

    async def one(number: int) -> None:
        answers.append(await client.chat(world.prompt(f"at once ({number})")))

    async with trio.open_nursery() as nursery:
        for number in range(count):
            nursery.start_soon(one, number)
    return answers


def _limited(answers: Sequence[Answer]) -> int:
    return sum((answer.status, answer.error) == (429, Outcome.RATE_LIMITED.value) for answer in answers)
