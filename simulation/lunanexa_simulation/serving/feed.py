"""The trace as it is written, for whoever listens."""

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Final

import attrs
import trio

from lunanexa_simulation.trace import Trace, virtual_ms

LISTENERS_MAX: Final = 16
LINES_MAX: Final = 2_000
"""Who does not read as fast as things happen misses what comes after so many."""


@attrs.define(eq=False)
class Listener:
    """One that listens."""

    lines: trio.MemorySendChannel[bytes]
    heard: trio.MemoryReceiveChannel[bytes]
    missed: int = 0

    async def events(self) -> AsyncIterator[bytes]:
        """Server-sent events, one a line of the trace, for ever."""
        async for line in self.heard:
            missed, self.missed = self.missed, 0
            yield b": %d lines were missed\n\n%s" % (missed, line) if missed else line


class Feed:
    """Hands each line of a trace to all listeners."""

    def __init__(self, trace: Trace) -> None:
        self._listeners: dict[Listener, None] = {}
        trace.heard = self._tell

    @contextmanager
    def listening(self) -> Iterator[Listener | None]:
        """``None``: too many listen."""
        if len(self._listeners) >= LISTENERS_MAX:
            yield None
            return
        listener = Listener(*trio.open_memory_channel[bytes](LINES_MAX))
        self._listeners[listener] = None
        try:
            yield listener
        finally:
            del self._listeners[listener]

    def _tell(self, actor: str, event: str) -> None:
        if not self._listeners:
            return
        data = json.dumps({"at_ms": virtual_ms(), "actor": actor, "event": event}, separators=(",", ":"))
        for listener in self._listeners:
            try:
                listener.lines.send_nowait(b"data: %s\n\n" % data.encode())
            except trio.WouldBlock:
                listener.missed += 1
