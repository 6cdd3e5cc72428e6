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


class Outlet:
    """Writes of the relay and of the keeper exclude each other; none is ever cut by the request's own
    deadline, because half a frame can't be mended by an error frame after it."""

    def __init__(
        self, sink: ResponseSink, *, keepalive_s: float, headers: Callable[[], Sequence[tuple[str, str]]]
    ) -> None:
        self._sink = sink
        self._keepalive_s = keepalive_s
        self._headers = headers
        self._lock = trio.Lock()
        self._last_s = trio.current_time()
        self._cut = trio.Event()

    @property
    def begun(self) -> bool:
        return self._sink.begun

    async def begin(self, content_type: str = EVENT_STREAM) -> None:
        """Sends the head, unless it is out."""
        await self._take()
        try:
            await self._begin(content_type)
        finally:
            self._lock.release()

    async def write(self, data: bytes) -> None:
        """Sends whole events; waits while the reader is slow."""
        await self._take()
        try:
            await self._begin(EVENT_STREAM)
            await self._sink.write(data)
            self._last_s = trio.current_time()
        finally:
            self._lock.release()

    async def end(self) -> None:
        """Ends the stream."""
        await self._sink.end()

    async def keep(self, budget: trio.CancelScope, deadline_s: float) -> None:
        """Until it is cancelled (not within a write, see :meth:`stop`): a comment in each silence, and the end
        of ``budget`` at its deadline or once :meth:`cut` was called."""
        patience_s = math.inf
        while True:
            with trio.CancelScope(deadline=min(self._last_s + self._keepalive_s, deadline_s)):
                await self._cut.wait()
                self._cut, deadline_s, patience_s = trio.Event(), -math.inf, CUT_PATIENCE_S
            now_s = trio.current_time()
            if now_s >= deadline_s:
                with trio.move_on_after(patience_s):
                    async with self._lock:
                        budget.cancel(reason="the request's time is over")
                budget.cancel(reason="the request's time is over, and its client does not read")
                deadline_s = math.inf
            elif now_s >= self._last_s + self._keepalive_s:
                await self.write(KEEPALIVE)

    def cut(self) -> None:
        """Has the keeper end the budget now: between two writes, unless the client takes one too slowly; that
        one is cut, and the stream with it."""
        self._cut.set()

    async def stop(self, keeper: trio.CancelScope) -> None:
        """Ends the keeper between two writes."""
        async with self._lock:
            keeper.cancel(reason="the stream is over")

    async def _take(self) -> None:
        try:
            self._lock.acquire_nowait()
        except trio.WouldBlock:
            await self._lock.acquire()

    async def _begin(self, content_type: str) -> None:
        if not self._sink.begun:
            head = (("content-type", content_type), ("cache-control", "no-cache"), ("x-accel-buffering", "no"))
            await self._sink.begin(200, (*head, *self._headers()))
