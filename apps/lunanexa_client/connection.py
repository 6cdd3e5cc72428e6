"""The WebSocket face: many workloads on one connection, some of which outlive it.

One task reads frames and hands them to their workloads, one writes, one sees to it that pings are answered. The
reader never waits for a consumer: what it may have to hold is bounded by the credits. When the connection breaks,
workloads that can be resumed are, on a new one; all others end.
"""

import math
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from itertools import count
from typing import Any, Final

import attrs
import trio
from trio_websocket import ConnectionClosed

from lunanexa_client.errors import ConnectionFailed, ErrorFacts, LunaNexaError, ProtocolError, Unavailable
from lunanexa_client.handle import WorkloadHandle
from lunanexa_client.link import Link, closed_because, only_exception, open_link
from lunanexa_client.settings import ClientSettings
from lunanexa_core.contract.frame_text import FrameProblem, read_server_frame, write_frame
from lunanexa_core.contract.frames import RESUME_WINDOW_MS, ClientFrame, Goaway, Submit
from lunanexa_core.outcomes import Outcome
from lunanexa_ports.http_client import Headers

OUTGOING_FRAMES: Final = 64
"""Frames that wait to be written; whoever has another one waits."""
RECONNECT_FIRST_MS: Final = 200
RECONNECT_CAP_MS: Final = 5_000
CLOSE_S: Final = 1.0
POLICY_VIOLATION: Final = 1008


class Connection:
    """Runs workloads until its context is left or the server ends it. What still runs then ends too: at once, or
    for a resumable one when the server keeps its events no longer."""

    def __init__(self, settings: ClientSettings, headers: Headers, below: Callable[[int], int]) -> None:
        self._settings = settings
        self._headers = headers
        self._below = below
        self._numbers = count(1)
        self._handles: dict[str, WorkloadHandle] = {}
        self._outgoing: trio.MemorySendChannel[ClientFrame] | None = None
        self._goaway: Goaway | None = None
        self._ended: LunaNexaError | None = None
        self._left = False
        self._serving: trio.CancelScope | None = None
        self._heard = True
        """Something came since the connection was last made anew: the outage before it is over."""
        self._outage_since_s = 0.0
        self._wait_ms = RECONNECT_FIRST_MS

    @property
    def closed_because(self) -> LunaNexaError | None:
        """Why no workload runs here any more; ``None`` while they do."""
        return self._ended

    async def submit(
        self, request: Mapping[str, Any], *, endpoint: str | None = None, resumable: bool = False
    ) -> WorkloadHandle:
        """Starts a workload: an envelope, or with ``endpoint`` (``chat/completions``) the body of that dialect.
        ``resumable``: it may go on after a dropped connection. A refusal comes from the handle; this raises only
        when the connection takes no more, and ``ValueError`` for a request without a JSON form."""
        handle = WorkloadHandle(f"w{next(self._numbers)}", self._send)
        frame = Submit(id=handle.id, request=dict(request), endpoint=endpoint, resumable=resumable)
        try:
            write_frame(frame)
        except TypeError as error:
            raise ValueError(f"request: has no JSON form ({error})") from None
        if self._goaway is not None:
            facts = ErrorFacts(code=Outcome.DRAINING.value, retryable=True, retry_after_ms=self._goaway.retry_after_ms)
            raise Unavailable("the server takes no new workloads on this connection", facts)
        if self._outgoing is None:
            facts = ErrorFacts(code=ConnectionFailed.default_code, retryable=True)
            raise self._ended or ConnectionFailed("the connection broke, and is being made anew", facts)
        self._handles[handle.id] = handle
        try:
            await self._send(frame)
        except trio.Cancelled:
            del self._handles[handle.id]
            raise
        return handle

    def leave(self) -> None:
        """Ends :meth:`run`."""
        self._left = True
        if self._serving is not None:
            self._serving.cancel()

    async def run(self, task_status: trio.TaskStatus[None]) -> None:
        """Serves until it is left or the connection has ended for good. Raises only what the first connect
        raised."""
        async with open_link(self._settings, self._headers) as link:
            task_status.started()
            error = await self._serve(link)
        while error.retryable and any(handle.resumable for handle in self._handles.values()):
            error = await self._resume(error)
        self._ended = error
        self._drop(error)

    async def _resume(self, dropped: LunaNexaError) -> LunaNexaError:
        """Connects again while the server keeps the events, and serves; why that ended."""
        self._drop(dropped, but_resumable=True)
        if self._heard:
            asked_ms = 0 if self._goaway is None else self._goaway.retry_after_ms
            self._heard, self._wait_ms = False, max(RECONNECT_FIRST_MS, asked_ms)
            self._outage_since_s = trio.current_time()
        error = dropped
        with trio.move_on_at(self._outage_since_s + RESUME_WINDOW_MS / 1000) as window:
            self._serving = window
            while error.retryable:
                # Whoever was dropped together must not come back together.
                await trio.sleep((self._wait_ms + self._below(self._wait_ms // 2)) / 1000)
                self._wait_ms = min(self._wait_ms * 2, RECONNECT_CAP_MS)
                try:
                    async with open_link(self._settings, self._headers) as link:
                        window.deadline = math.inf
                        self._goaway = None
                        return await self._serve(link)
                except LunaNexaError as refused:
                    error = refused
        self._drop(error)
        return error

    async def _serve(self, link: Link) -> LunaNexaError:
        """Speaks over ``link`` until it ends; why it did."""
        outgoing, waiting = trio.open_memory_channel[ClientFrame](OUTGOING_FRAMES)
        said = [frame for handle in self._handles.values() if handle.resumable for frame in handle.resume()]
        problem: LunaNexaError | None = None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_write, link, said, waiting)
            nursery.start_soon(self._keep_alive, link)
            self._outgoing, self._serving = outgoing, nursery.cancel_scope
            try:
                await self._read(link)
            except ProtocolError as error:
                problem = error
            finally:
                self._outgoing = None
                nursery.cancel_scope.cancel()
        if self._left:
            return ConnectionFailed("this connection was closed")
        if problem is not None:
            with trio.move_on_after(CLOSE_S):
                await link.socket.aclose(POLICY_VIOLATION, "protocol error")
            return problem
        return closed_because(link.socket.closed)

    async def _read(self, link: Link) -> None:
        while True:
            try:
                message = await link.socket.get_message()
            except ConnectionClosed:
                return
            self._heard = True
            if isinstance(message, bytes):
                raise ProtocolError("a binary message came; frames are text")
            frame = read_server_frame(message)
            match frame:
                case FrameProblem():
                    raise ProtocolError(f"a frame can't be read: {frame.message}")
                case Goaway():
                    self._goaway = frame
                case _:
                    handle = self._handles.get(frame.id)
                    if handle is not None:  # else it ended while the frame was under way
                        handle.take(frame)
                        if handle.ended:
                            del self._handles[frame.id]

    async def _keep_alive(self, link: Link) -> None:
        while True:
            await trio.sleep(self._settings.ping_interval_ms / 1000)
            with trio.move_on_after(self._settings.ping_timeout_ms / 1000) as patience:
                try:
                    await link.socket.ping()
                except ConnectionClosed:
                    return
            if patience.cancelled_caught:
                await link.abort()
                return
            self._heard = True

    async def _send(self, frame: ClientFrame) -> None:
        """Without a connection nothing is said: what matters of it, :meth:`WorkloadHandle.resume` says again."""
        if self._outgoing is None:
            await trio.lowlevel.checkpoint()
            return
        try:
            await self._outgoing.send(frame)
        except trio.BrokenResourceError:
            return

    def _drop(self, error: LunaNexaError, *, but_resumable: bool = False) -> None:
        """Whether their workloads were run is not known: nobody may call them safe to repeat."""
        facts = attrs.evolve(error.facts, retryable=False)
        for handle in list(self._handles.values()):
            if not (but_resumable and handle.resumable):
                del self._handles[handle.id]
                handle.fail(type(error)(error.message, attrs.evolve(facts, workload_id=handle.workload_id)))


@asynccontextmanager
async def open_connection(
    settings: ClientSettings, headers: Headers, below: Callable[[int], int]
) -> AsyncIterator[Connection]:
    """Connects; leaving the context closes the connection. ``below(n)`` draws from 0 to n - 1. Raises
    :class:`LunaNexaError`."""
    connection = Connection(settings, headers, below)
    with only_exception():
        async with trio.open_nursery() as nursery:
            await nursery.start(connection.run)
            try:
                yield connection
            finally:
                connection.leave()


async def _write(link: Link, said: list[ClientFrame], waiting: trio.MemoryReceiveChannel[ClientFrame]) -> None:
    """The only writer: a caller that is cancelled can't leave half a frame on the wire."""
    try:
        async with waiting:
            for frame in said:
                await link.socket.send_message(write_frame(frame))
            async for frame in waiting:
                await link.socket.send_message(write_frame(frame))
    except ConnectionClosed:
        return
