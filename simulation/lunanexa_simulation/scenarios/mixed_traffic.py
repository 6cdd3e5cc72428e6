"""Callers of every kind: streams and whole answers, callers who leave, who read slowly, who ask again until they know.
Whatever happens to the fleet, each answer is honest."""

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

import attrs
import trio

from lunanexa_core.outcomes import Outcome
from lunanexa_simulation.client import Answer, Client, Ending
from lunanexa_simulation.honesty import broken_promise, word_of
from lunanexa_simulation.rng import Stream
from lunanexa_simulation.world import World

TOKENS: Final = 8
SLOW_MS: Final = 1_500
PAUSE_MS: Final = 1_200
"""Between two calls of one caller, at most."""


@attrs.define
class Traffic:
    """What was asked and what came of it."""

    world: World
    whole: list[Answer] = attrs.Factory(list)

    async def call(self, number: int, client: Client) -> None:
        """One caller, one call after another, for ever."""
        draw = self.world.run.streams.stream(f"traffic/{number}")
        for count in range(1 << 30):
            body = self.world.prompt(f"{number}/{count}", stream=draw.random() < 0.6, max_tokens=TOKENS)
            way = draw.choice((self._ask, self._ask, self._ask, self._leave, self._read_slowly, self._insist))
            client.turn_to(self._host(draw))
            await way(client, body, draw, f"{number}-{count}")
            await trio.sleep(draw.randint(0, PAUSE_MS) / 1_000)

    def _host(self, draw: Stream) -> str:
        """Mostly who leads, as a load balancer has it."""
        hosts = self.world.controllers
        return (draw.choice(hosts) if draw.random() < 0.1 else self.world.controller).host

    async def _ask(self, client: Client, body: Mapping[str, Any], draw: Stream, _: str) -> None:
        self._note(body, await client.chat(body, deadline_ms=draw.randint(2_000, 30_000)))

    async def _leave(self, client: Client, body: Mapping[str, Any], draw: Stream, _: str) -> None:
        with trio.move_on_after(draw.randint(0, 3_000) / 1_000) as patience:
            self._note(body, await client.chat(body, deadline_ms=30_000))
        if patience.cancelled_caught:
            self.world.run.happened["a caller leaves"] += 1

    async def _read_slowly(self, client: Client, body: Mapping[str, Any], draw: Stream, _: str) -> None:
        self._note(body, await client.chat({**body, "stream": True}, pause_ms=draw.randint(100, SLOW_MS)))

    async def _insist(self, client: Client, body: Mapping[str, Any], draw: Stream, name: str) -> None:
        """Until it has an answer, or there is none to have; anything runs once."""
        headers = {"idempotency-key": f"a-key-of-caller-{name}"}
        if draw.random() < 0.5:
            headers["x-lunanexa-retain-ms"] = "600000"
        for _ in range(draw.randint(2, 6)):
            answer = await client.chat(body, deadline_ms=30_000, headers=headers)
            self._note(body, answer, again=True)
            if answer.ending is Ending.WHOLE and not answer.replayed and draw.random() < 0.7:
                return
            await trio.sleep(draw.randint(50, 1_000) / 1_000)
            client.turn_to(self._host(draw))

    def _note(self, body: Mapping[str, Any], answer: Answer, *, again: bool = False) -> None:
        self.world.run.happened[word_of(answer)] += 1
        # There are thousands of answers: of those that hold nothing is noted.
        broken = broken_promise(self.world.oracle, body, answer, again=again)
        if broken is not None:
            self.world.check(broken, holds=False, told=answer)
        if answer.ending is Ending.WHOLE:
            self.whole.append(answer)

    def look_back(self) -> None:
        """What was acknowledged is booked, once."""
        receipts = self.world.receipts
        told = Counter[str | None](receipt.workload for receipt in receipts)
        outcomes: dict[str | None, Outcome | None] = {one.workload: one.settlement.outcome for one in receipts}
        wrong = [answer for answer in self.whole if (told[answer.workload], outcomes.get(answer.workload)) != (1, None)]
        self.world.check("what was acknowledged is booked, once", not wrong, wrong)
        self.world.check("every answer was honest", holds=True)
