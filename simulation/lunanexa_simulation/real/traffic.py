"""Callers of every kind over the real front, for as long as the fleet is struck. Each answer is judged as it ends."""

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

import attrs
import trio

from lunanexa_simulation.client import Answer, Client, Ending, Oracle
from lunanexa_simulation.honesty import broken_promise, word_of
from lunanexa_simulation.installation import PROMPT_SECRET
from lunanexa_simulation.real.fleet import ALIAS
from lunanexa_simulation.real.promises import Promises
from lunanexa_simulation.rng import Stream, Streams
from lunanexa_simulation.verdicts import LivenessBroken

CALLERS: Final = 6
TOKENS: Final = 24
DEADLINE_MS: Final = 20_000
PATIENCE_S: Final = 60.0
"""After so long without an end a caller is one whom the service forgot."""
PAUSE_MS: Final = 400
LEAVE_MS: Final = 600
RETAIN: Final = {"x-lunanexa-retain-ms": "600000"}
IDEMPOTENCY_KEY: Final = "teal-quarry-5190"
"""Begins every idempotency key, and may be written nowhere."""


@attrs.define
class Traffic:
    """What was asked and what came of it."""

    oracle: Oracle
    promises: Promises
    streams: Streams
    happened: Counter[str]
    whole: list[Answer] = attrs.Factory(list)
    asking: int = 0
    """Calls that have not ended."""
    over: bool = False
    """Set by who wants no more calls: those that run may end."""

    async def call(self, number: int, client: Client) -> None:
        """One caller, one call after another."""
        draw = self.streams.stream(f"caller/{number}")
        count = 0
        while not self.over:
            count += 1
            body = prompt(f"{number}/{count}", stream=draw.random() < 0.6)
            way = draw.choice((self._ask, self._ask, self._ask, self._leave, self._insist))
            await way(client, body, draw, f"{number}-{count}")
            await trio.sleep(draw.randint(0, PAUSE_MS) / 1_000)

    async def _ask(self, client: Client, body: Mapping[str, Any], _: Stream, __: str) -> None:
        self._note(body, await self._chat(client, body))

    async def _leave(self, client: Client, body: Mapping[str, Any], draw: Stream, _: str) -> None:
        with trio.move_on_after(draw.randint(0, LEAVE_MS) / 1_000) as patience:
            self._note(body, await self._chat(client, body))
        self.happened["a caller leaves"] += patience.cancelled_caught

    async def _insist(self, client: Client, body: Mapping[str, Any], draw: Stream, name: str) -> None:
        """With an idempotency key, again and again; anything runs once."""
        headers = {"idempotency-key": f"{IDEMPOTENCY_KEY}-{name}", **(RETAIN if draw.random() < 0.5 else {})}
        for _ in range(draw.randint(2, 5)):
            answer = await self._chat(client, body, headers)
            self._note(body, answer, again=True)
            await trio.sleep(draw.randint(20, PAUSE_MS) / 1_000)

    async def _chat(self, client: Client, body: Mapping[str, Any], headers: Mapping[str, str] | None = None) -> Answer:
        self.asking += 1
        try:
            with trio.move_on_after(PATIENCE_S):
                return await client.chat(body, deadline_ms=DEADLINE_MS, headers=headers)
        finally:
            self.asking -= 1
        self.promises.note("every caller comes to an end", held=False)
        raise LivenessBroken(f"every caller comes to an end: one had nothing after {PATIENCE_S:.0f} s")

    def _note(self, body: Mapping[str, Any], answer: Answer, *, again: bool = False) -> None:
        self.happened[word_of(answer)] += 1
        broken = broken_promise(self.oracle, body, answer, again=again)
        self.promises.check(broken or "an answer is honest", broken and answer, often=True)
        if answer.ending is Ending.WHOLE:
            self.whole.append(answer)


def prompt(about: str, *, stream: bool) -> dict[str, object]:
    """The body of a chat request. What it says is planted: it may be written nowhere."""
    return {
        "model": ALIAS,
        "messages": [{"role": "user", "content": f"{PROMPT_SECRET}: {about}"}],
        "max_tokens": TOKENS,
        "ignore_eos": True,
        "stream": stream,
    }
