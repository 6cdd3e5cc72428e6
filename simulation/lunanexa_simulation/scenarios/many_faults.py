"""Anything at any time: a minute and a half of mixed traffic, in which the seed lets disks, links, clocks, machines and
processes fail, several at once. Whatever happens every answer is honest. When it is over everything that was asked is
settled once, every replica is back, and nothing is held."""

from collections.abc import Mapping
from typing import Any, Final

import attrs
import trio

from lunanexa_core.outcomes import Outcome
from lunanexa_simulation.client import Answer, Client, Ending
from lunanexa_simulation.rng import Stream
from lunanexa_simulation.run import Run
from lunanexa_simulation.scenarios.mishaps import MISHAPS, Mishap
from lunanexa_simulation.scenarios.steps import at_rest, receipts_of, served, until_listed
from lunanexa_simulation.trace import virtual_ms
from lunanexa_simulation.world import World, WorldPlan, open_world

NODES: Final = 2
PLAN: Final = WorldPlan(
    nodes=NODES,
    engine_arguments=("--ttft-ms", "64", "--itl-ms", "128"),
    engine_slots=2,
    restart_budget=1_000,
)
FAULTS_MS: Final = 90_000
CLIENTS: Final = 4
TOKENS: Final = 12
BETWEEN_MS: Final = (200, 6_000)
SETTLED_MS: Final = 30_000
BACK_MS: Final = 300_000
"""Engines that failed often wait before they are tried again."""

REFUSALS: Final[Mapping[str, int]] = {
    Outcome.STARTING.value: 503,
    Outcome.NO_CAPACITY.value: 503,
    Outcome.NO_PLACEMENT.value: 503,
    Outcome.STORE_UNAVAILABLE.value: 503,
    Outcome.RECEIPT_UNAVAILABLE.value: 503,
    Outcome.RATE_LIMITED.value: 429,
    Outcome.QUEUE_FULL.value: 429,
    Outcome.DEADLINE_UNREACHABLE.value: 429,
    Outcome.ENGINE_FAILED.value: 502,
    Outcome.DEADLINE_EXCEEDED.value: 504,
}
"""All that a caller may be told who asks for the right thing with the right key."""


async def main(run: Run) -> None:
    """The scenario."""
    async with open_world(run, PLAN) as world:
        await world.start()
        await world.deploy(replicas=NODES)
        await world.until("every replica is routable", lambda: world.routable() == NODES, within_ms=60_000)
        _, limited = await world.make_key("limited", concurrency=2, requests_per_minute=30)
        asked: list[tuple[Mapping[str, Any], Answer]] = []
        async with trio.open_nursery() as traffic:
            for number in range(CLIENTS):
                traffic.start_soon(_traffic, world, number, limited if number == 0 else world.client, asked)
            await _faults(world)
            traffic.cancel_scope.cancel("enough was asked")
        await _recovered(world, asked)
        await world.stop()


async def _recovered(world: World, asked: list[tuple[Mapping[str, Any], Answer]]) -> None:
    await world.until("everything is settled", lambda: not world.kernel.state.open, within_ms=SETTLED_MS)
    await world.deploy(replicas=NODES)
    await world.until("every replica is routable again", lambda: world.routable() == NODES, within_ms=BACK_MS)
    await until_listed(world, "after all")
    await served(world, "after all")
    await at_rest(world, "after all")
    whole = [answer for _, answer in asked if answer.ending is Ending.WHOLE]
    world.check("some calls were served", bool(whole))
    for answer in whole:
        told = [receipt.settlement.outcome for receipt in receipts_of(world, answer.workload)]
        world.check("what was acknowledged is booked, once", told == [None], (answer, told))
    world.trace(f"{len(asked)} calls ended, {len(whole)} of them whole")


@attrs.define
class _Hands:
    """What is in the hands of a mishap now."""

    busy: set[tuple[str, int]] = attrs.Factory(set)

    async def run(self, world: World, held: tuple[str, int], mishap: Mishap, draw: Stream) -> None:
        world.trace(f"{mishap.__name__.replace('_', ' ')}: begins")
        await mishap(world, held[1], draw)
        world.trace(f"{mishap.__name__.replace('_', ' ')}: is over")
        self.busy.discard(held)


async def _faults(world: World) -> None:
    """Returns when the last mishap is over."""
    draw, hands = world.run.streams.stream("mishaps"), _Hands()
    until_ms = virtual_ms() + FAULTS_MS
    async with trio.open_nursery() as nursery:
        while virtual_ms() < until_ms:
            await trio.sleep(draw.randint(*BETWEEN_MS) / 1_000)
            kind = draw.choice(tuple(MISHAPS))
            mishap = draw.choice(MISHAPS[kind])
            held = (kind, 0 if kind in ("controller", "operator") else draw.randrange(NODES))
            if held not in hands.busy:
                hands.busy.add(held)
                nursery.start_soon(hands.run, world, held, mishap, draw)


async def _traffic(world: World, number: int, client: Client, asked: list[tuple[Mapping[str, Any], Answer]]) -> None:
    """Streams and whole calls one after another, for ever; of some the caller leaves."""
    draw = world.run.streams.stream(f"traffic/{number}")
    for count in range(1 << 30):
        body = world.prompt(f"{number}/{count}", stream=draw.random() < 0.6, max_tokens=TOKENS)
        patience_ms = draw.randint(0, 3_000) if draw.random() < 0.3 else 60_000
        answer: Answer | None = None
        with trio.move_on_after(patience_ms / 1_000):
            answer = await client.chat(body, deadline_ms=draw.randint(2_000, 30_000))
        if answer is not None:
            asked.append((body, answer))
            _check_honest(world, body, answer)
        await trio.sleep(draw.randint(0, 500) / 1_000)


def _check_honest(world: World, body: Mapping[str, Any], answer: Answer) -> None:
    world.check_answer("what came is the engine's answer or its beginning", body, answer)
    match answer.ending:
        case Ending.REFUSED:
            status = REFUSALS.get(answer.error or "")
            world.check("a refusal is one that may be told", answer.status == status, answer)
            advised = answer.retry_after_s is not None or status not in (429, 503)
            world.check("and says when to come again", advised, answer)
        case Ending.ERROR_FRAME:
            world.check("an error frame is one that may be told", answer.error in REFUSALS, answer)
        case Ending.WHOLE | Ending.CUT | Ending.UNREACHABLE:
            pass
