"""One answer as it grows, token by token, with stop strings and the token limit; no time, no I/O.

A stop string may lie across tokens, so text that could be its beginning is held back until the next
tokens decide. Everything else leaves with the token that made it.
"""

from collections.abc import Iterator
from typing import Literal, TypeAlias

FinishReason: TypeAlias = Literal["stop", "length", "tool_calls"]


class Generation:
    """Call ``advance`` until ``finish_reason`` is set. ``completion_tokens`` counts what was generated,
    a token that a stop string swallowed included."""

    def __init__(
        self,
        tokens: Iterator[str],
        *,
        max_tokens: int,
        stops: tuple[str, ...] = (),
        natural_end: FinishReason = "stop",
    ) -> None:
        assert max_tokens >= 1
        self._tokens = tokens
        self._max_tokens = max_tokens
        self._stops = stops
        self._natural_end = natural_end
        self._held = ""
        self.completion_tokens = 0
        self.finish_reason: FinishReason | None = None
        self.stop: str | None = None
        """The stop string that ended it."""

    def advance(self) -> str:
        """Generate one token; what may be shown now (empty: held back, or the end). Not after the end."""
        assert self.finish_reason is None
        token = next(self._tokens, None)
        if token is None:
            self.finish_reason = self._natural_end
            return self._release()
        self.completion_tokens += 1
        self._held += token
        met = min(((at, stop) for stop in self._stops if (at := self._held.find(stop)) >= 0), default=None)
        if met is not None:
            at, self.stop = met
            self._held = self._held[:at]
            self.finish_reason = "stop"
            return self._release()
        if self.completion_tokens == self._max_tokens:
            self.finish_reason = "length"
            return self._release()
        keep = max((_overlap(self._held, stop) for stop in self._stops), default=0)
        shown = self._held[: len(self._held) - keep]
        self._held = self._held[len(shown) :]
        return shown

    def _release(self) -> str:
        shown, self._held = self._held, ""
        return shown


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of ``text`` that is a beginning of ``stop``, and not all of it."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
