"""A stream of server-sent events, read within its limits and its deadline.

Source of the form: WHATWG HTML standard, section 9.2 (server-sent events). Comments are passed over, an event
with an ``error`` object is raised, and how a stream announces its end is a matter of its endpoint.
"""

import enum
import json
from collections import deque
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Any, Final, Self

import trio

from lunanexa_client.answers import AnswerHead, StreamEvent, usage_of
from lunanexa_client.deadline import Deadline
from lunanexa_client.errors import LunaNexaError, ProtocolError, StreamCut
from lunanexa_client.refusals import error_of_answer
from lunanexa_client.settings import Limits
from lunanexa_core.sse import SseEventTooLong, SseSplitter, data_of
from lunanexa_core.workload import Usage
from lunanexa_ports.http_client import HttpBroken, HttpResponse

DONE: Final = "[DONE]"
COMPLETED: Final = "completed"
FAILED: Final = "failed"
_END_WAIT_S: Final = 1.0
"""After ``[DONE]``, so long for the body's own end: the connection can then be used again."""


class StreamEnd(enum.Enum):
    """How a stream tells that it is whole."""

    DONE = "done"
    """By ``[DONE]``, as OpenAI's chats and completions."""
    COMPLETED = "completed"
    """By the event ``completed``, with the response of a canonical workload."""
    CLOSE = "close"
    """By the end of its bytes: other dialects have last events of their own."""


class EventReader:
    """Bytes in, events out; no I/O. It holds at most one unfinished event."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._splitter = SseSplitter(limits.event_bytes)
        self._seen_bytes = 0

    def feed(self, data: bytes) -> tuple[list[StreamEvent], LunaNexaError | None]:
        """The events that ``data`` completes, and the limit that it passed after them, if any."""
        self._seen_bytes += len(data)
        if self._seen_bytes > self._limits.stream_bytes:
            return [], ProtocolError(f"the stream is longer than {self._limits.stream_bytes} bytes")
        try:
            raw, problem = self._splitter.feed(data), None
        except SseEventTooLong as error:
            raw, problem = error.events, ProtocolError(str(error))
        return [event for event in map(event_of, raw) if event is not None], problem

    def unfinished(self) -> bool:
        """Whether the bytes so far end within an event."""
        return bool(self._splitter.rest().strip())


def event_of(raw: bytes) -> StreamEvent | None:
    """The event in ``raw``; ``None`` where it has no data, as a comment. Bytes that are no UTF-8 are replaced, as
    the standard has it."""
    data = data_of(raw)
    if data is None:
        return None
    name = "message"
    if not raw.startswith(b"data:"):
        for line in raw.split(b"\n"):
            field, _, value = line.removesuffix(b"\r").partition(b":")
            if field == b"event":
                name = value.removeprefix(b" ").decode(errors="replace")
    return StreamEvent(name, data.decode(errors="replace"))


class EventStream:
    """The events of one request, in order. Iterate it, or leave its context early: that closes the socket, which
    cancels the request at the server.

    ``head`` is there from the start, ``usage`` from the event that brings it. Iteration ends with the announced
    end; of a canonical workload its last event is ``completed``. It raises
    :class:`~lunanexa_client.errors.StreamCut` when the stream ends without one,
    :class:`~lunanexa_client.errors.DeadlineExceeded`, and what an error event says."""

    def __init__(
        self,
        *,
        head: AnswerHead,
        response: HttpResponse,
        exchange: AsyncExitStack,
        deadline: Deadline,
        limits: Limits,
        end: StreamEnd,
    ) -> None:
        self.head = head
        self.usage: Usage | None = None
        self._chunks = response.chunks()
        self._exchange = exchange
        self._deadline = deadline
        self._reader = EventReader(limits)
        self._ends_by = end
        self._events: deque[StreamEvent] = deque()
        self._end: LunaNexaError | StopAsyncIteration | None = None
        self._body_ended = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> StreamEvent:
        while not self._events:
            if self._end is not None:
                await self.aclose()
                raise self._end
            await self._receive()
        event = self._events.popleft()
        canonical = self._ends_by is StreamEnd.COMPLETED
        if not canonical and event.data.strip() == DONE:
            await self._finish()
            raise StopAsyncIteration
        document = _json_of(event)
        # What an engine says of an error is output of a workload, until the workload itself has failed.
        tells = not canonical or event.name == FAILED
        if tells and isinstance(document, dict) and isinstance(document.get("error"), dict):
            self._end = error_of_answer(document)
            await self._finish()
            raise self._end
        self.usage = usage_of(document) or self.usage
        if canonical and event.name == COMPLETED:
            await self._finish()
        return event

    async def aclose(self) -> None:
        """Closes the socket at once, unless the body was read to its end. Idempotent."""
        self._end = self._end or StopAsyncIteration()
        self._events.clear()
        await self._exchange.aclose()

    async def _receive(self) -> None:
        try:
            with self._deadline.enforced():
                data = await anext(self._chunks, None)
        except HttpBroken as error:
            self._end = StreamCut(f"the stream broke: {error}")
            return
        except LunaNexaError as error:
            self._end = error
            return
        if data is None:
            self._body_ended = True
            cut = self._ends_by is not StreamEnd.CLOSE or self._reader.unfinished()
            self._end = StreamCut("the stream ended before its end was announced") if cut else StopAsyncIteration()
            return
        events, self._end = self._reader.feed(data)
        self._events.extend(events)

    async def _finish(self) -> None:
        """The iteration has its end; the connection is free for another request where it can be."""
        with trio.move_on_after(_END_WAIT_S):
            try:
                if not self._body_ended:
                    await anext(self._chunks, None)
            except HttpBroken:
                pass
        await self.aclose()


def _json_of(event: StreamEvent) -> Any:
    """``None`` where it is none."""
    try:
        return json.loads(event.data)
    except (ValueError, RecursionError):
        return None
