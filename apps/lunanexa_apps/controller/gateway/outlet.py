"""The client's side of one stream: a head that is sent once, events, and comments in silences.

Once a keepalive is out the status is fixed; what goes wrong later is told by an error frame.
"""

import math
from collections.abc import Callable, Sequence
from typing import Final

import trio

from lunanexa_core.openai.stream import KEEPALIVE
from lunanexa_ports.gateway import ResponseSink

EVENT_STREAM: Final = "text/event-stream"
CUT_PATIENCE_S: Final = 0.5
"""How long the end of a revoked or overdue stream waits for a client that takes a write slowly."""


class Outlet:
    """Writes of the relay and of the keeper exclude each other. The request's end waits for the write in progress,
    because half a frame can't be mended by an error frame after it, but no longer than ``CUT_PATIENCE_S``: then the
    write is cut, and the stream with it."""

    def __init__(
        self, sink: ResponseSink, *, keepalive_s: float, headers: Callable[[], Sequence[tuple[str, str]]]
    ) -> None:
        self._sink = sink
        self._keepalive_s = keepalive_s
        self._headers = headers
        self._lock = trio.Lock()
        self._last_s = trio.current_time()
        self._due_s = math.inf
        self._silence, self._comment = trio.CancelScope(), trio.CancelScope()
        self._severed: trio.CancelScope | None = None

    @property
    def begun(self) -> bool:
        return self._sink.begun

    async def begin(self, content_type: str = EVENT_STREAM) -> None:
        """Sends the head, unless it is out."""
        await self._take()
        try:
            await self._begin(content_type)
        finally:
            self._let_go()

    async def write(self, data: bytes) -> None:
        """Sends whole events; waits while the reader is slow."""
        await self._take()
        try:
            await self._begin(EVENT_STREAM)
            await self._sink.write(data)
            self._last_s = trio.current_time()
        finally:
            self._let_go()

    async def end(self) -> None:
        """Ends the stream."""
        await self._sink.end()

    async def keep(self, budget: trio.CancelScope, deadline_s: float) -> None:
        """A comment in each silence, and the end of ``budget`` at its deadline or as :meth:`end_by` says. To be
        cancelled by :meth:`stop`, not within a write."""
        self._due_s = min(self._due_s, deadline_s)
        while trio.current_time() < self._due_s:
            comment_s = self._last_s + self._keepalive_s
            if trio.current_time() < comment_s:
                with trio.CancelScope(deadline=min(comment_s, self._due_s)) as self._silence:
                    await trio.sleep_forever()
                continue
            with trio.CancelScope(deadline=self._due_s + CUT_PATIENCE_S) as self._comment:
                await self.write(KEEPALIVE)
        with trio.CancelScope(deadline=self._due_s + CUT_PATIENCE_S):
            async with self._lock:
                budget.cancel(reason="the request's time is over")
        budget.cancel(reason="the request's time is over, and its client does not read")

    def end_by(self, deadline_s: float) -> None:
        """Has the keeper end the budget at ``deadline_s``, if it would not do so before."""
        self._due_s = min(self._due_s, deadline_s)
        self._silence.cancel(reason="the stream is to end earlier")
        self._comment.deadline = self._due_s + CUT_PATIENCE_S

    async def stop(self, keeper: trio.CancelScope) -> None:
        """Ends the keeper between two writes."""
        async with self._lock:
            keeper.cancel(reason="the stream is over")

    def sever(self, exchange: trio.CancelScope) -> None:
        """Cancels ``exchange``, whose relay writes here: at once, or else between two writes."""
        self._severed = exchange
        self._cut()

    def _let_go(self) -> None:
        self._lock.release()
        self._cut()

    def _cut(self) -> None:
        if self._severed is not None and not self._lock.locked():
            self._severed.cancel(reason="the replica can't answer any more")
            self._severed = None

    async def _take(self) -> None:
        # A write that begins cancelled would be cut with nothing sent, and an error could not be told after it.
        await trio.lowlevel.checkpoint_if_cancelled()
        try:
            self._lock.acquire_nowait()
        except trio.WouldBlock:
            await self._lock.acquire()

    async def _begin(self, content_type: str) -> None:
        if not self._sink.begun:
            await self._sink.begin(200, (*stream_headers(content_type), *self._headers()))


def stream_headers(content_type: str) -> tuple[tuple[str, str], ...]:
    """Headers of every stream: no proxy shall hold it back."""
    return (("content-type", content_type), ("cache-control", "no-cache"), ("x-accel-buffering", "no"))
