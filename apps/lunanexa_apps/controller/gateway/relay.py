"""One engine's answer, passed on as it comes: unary, as a stream, or as a stream put together for a unary client.

A relay never admits, settles or refuses: it says what became of one attempt. Nothing of an answer is changed;
a usage event that the client did not ask for is left out, and the last frames are handed back unsent, because
they wait for the receipt.
"""

import math
from functools import partial
from typing import Final, TypeAlias

import attrs
import trio

from lunanexa_apps.controller.gateway.outlet import EVENT_STREAM, Outlet
from lunanexa_apps.controller.gateway.progress import Progress
from lunanexa_apps.controller.gateway.settings import GatewaySettings
from lunanexa_core.openai.assemble import assemble
from lunanexa_core.openai.request import RequestHead
from lunanexa_core.openai.response import error_object, estimated_usage, output_estimate, usage_of
from lunanexa_core.openai.stream import AnswerReader, EventKind
from lunanexa_core.sse import SseEventTooLong, SseSplitter, data_of
from lunanexa_core.workload import Dialect
from lunanexa_ports.http_client import HttpBroken, HttpResponse
from lunanexa_ports.workers import Workers

DONE: Final = b"data: [DONE]\n\n"
JSON: Final = "application/json"
_REFUSAL_BYTES_MAX: Final = 1024 * 1024


@attrs.frozen
class Whole:
    """An answer for a client that wants no stream: the engine's own, its 4xx included."""

    status: int
    content_type: str
    body: bytes


@attrs.frozen
class Streamed:
    """The stream is whole and all but its last frames is out."""

    last: bytes


@attrs.frozen
class Failed:
    """Nothing of this attempt has reached the client: another replica may be asked."""

    reason: str
    status: int | None = None


@attrs.frozen
class Broken:
    """The engine failed after output had gone out."""

    reason: str


Relayed: TypeAlias = Whole | Streamed | Failed | Broken


async def relay_refusal(response: HttpResponse) -> Whole | Failed:
    """An answer that is no 2xx: the caller's fault as the engine tells it, or the engine's own."""
    status = response.status
    if status in (401, 403):
        # It refused our key, not the caller's.
        return Failed("engine_key_refused", status)
    if not 400 <= status < 500:
        return Failed("engine_error", status)
    try:
        body = await response.read(_REFUSAL_BYTES_MAX)
    except HttpBroken:
        return Failed("engine_cut", status)
    return Whole(status, _content_type(response), body)


async def relay_whole(
    response: HttpResponse, head: RequestHead, progress: Progress, settings: GatewaySettings
) -> Whole | Failed:
    """A whole answer, read within bounds."""
    try:
        body = await response.read(settings.answer_bytes_max)
    except HttpBroken:
        return Failed("engine_cut", response.status)
    if error_object(body) is not None:
        return Failed("engine_error_in_answer", response.status)
    progress.put_out()
    progress.usage = usage_of(body)
    if progress.usage is None:
        # Embeddings are megabytes of numbers: to read them for texts that they don't hold takes seconds.
        output = 0 if head.dialect is Dialect.EMBEDDINGS else output_estimate(body)
        progress.usage = estimated_usage(head.body_bytes, output)
    return Whole(response.status, _content_type(response), body)


async def relay_assembled(
    response: HttpResponse, head: RequestHead, progress: Progress, settings: GatewaySettings, workers: Workers
) -> Whole | Failed:
    """A whole answer, put together from a stream."""
    assert progress.reader is not None
    stream = _Incoming(response, progress.reader, settings)
    payloads: list[bytes] = []
    size_bytes = 0
    async for events in stream:
        for kind, event in events:
            data = data_of(event)
            if data is None or kind is EventKind.DONE:
                continue
            progress.put_out()
            size_bytes += len(data)
            payloads.append(data)
        if size_bytes > settings.answer_bytes_max:
            return Failed("engine_answer_too_long", response.status)
    if stream.fault is not None:
        return Failed(stream.fault, response.status)
    put_together = partial(assemble, head.dialect, payloads)
    body = await workers.run(put_together) if len(payloads) > settings.offload_events else put_together()
    if body is None:
        return Failed("engine_answer_unreadable", response.status)
    return Whole(200, JSON, body)


async def relay_stream(
    response: HttpResponse, head: RequestHead, progress: Progress, settings: GatewaySettings, outlet: Outlet
) -> Streamed | Failed | Broken:
    """A stream, written as it arrives: what one read brought is one write."""
    assert progress.reader is not None
    stream = _Incoming(response, progress.reader, settings)
    await stream.begin(outlet)
    held: list[bytes] = []
    output = False
    async for events in stream:
        out: list[bytes] = []
        for kind, event in events:
            match kind:
                case EventKind.OUTPUT:
                    # It was not the end: another choice goes on.
                    out += held
                    held.clear()
                    out.append(event)
                    output = True
                case EventKind.FINISH | EventKind.DONE:
                    held.append(event)
                case EventKind.SILENT:
                    (held or out).append(event)
                case EventKind.USAGE if head.include_usage:
                    (held or out).append(event)
                case EventKind.USAGE | EventKind.ERROR:
                    pass
        if output or held:
            progress.put_out()
        if out:
            await outlet.write(b"".join(out))
        stream.expect_end(soon=bool(held))
    if stream.fault is not None:
        return Broken(stream.fault) if output else Failed(stream.fault, response.status)
    if not progress.reader.done:
        held.append(DONE)
    return Streamed(b"".join(held))


class _Incoming:
    """The engine's events, a read at a time, until the stream has ended. Then ``fault`` says why it is not
    whole, or is ``None``."""

    def __init__(self, response: HttpResponse, reader: AnswerReader, settings: GatewaySettings) -> None:
        self._chunks = response.chunks()
        self._reader = reader
        self._splitter = SseSplitter(settings.event_bytes_max)
        self._tail_s = settings.tail_ms / 1000
        self._deadline_s = math.inf
        self._fault: str | None = None
        self._content_type = _content_type(response)
        self._streams = self._content_type.startswith(EVENT_STREAM)

    @property
    def fault(self) -> str | None:
        if self._reader.failed:
            return "engine_error_in_stream"
        if self._reader.whole:
            # What is cut after it is only the end of the transfer.
            return None
        return self._fault or "engine_cut"

    async def begin(self, outlet: Outlet) -> None:
        """Sends the head, if this is an event stream at all: what is none can still be told by its status."""
        if self._streams:
            await outlet.begin(self._content_type)

    def expect_end(self, *, soon: bool) -> None:
        """The last choice has ended: the rest must come within the tail's time."""
        if not soon:
            self._deadline_s = math.inf
        elif self._deadline_s == math.inf:
            self._deadline_s = trio.current_time() + self._tail_s

    def __aiter__(self) -> "_Incoming":
        return self

    async def __anext__(self) -> list[tuple[EventKind, bytes]]:
        if not self._streams:
            self._fault = "engine_did_not_stream"
            raise StopAsyncIteration
        if self._reader.failed or self._fault is not None:
            raise StopAsyncIteration
        try:
            if self._deadline_s == math.inf:
                return self._read(await anext(self._chunks))  # nearly all: a scope costs more than the rest of this
            with trio.CancelScope(deadline=self._deadline_s):
                return self._read(await anext(self._chunks))
        except HttpBroken:
            self._fault = "engine_cut"
        raise StopAsyncIteration

    def _read(self, chunk: bytes) -> list[tuple[EventKind, bytes]]:
        try:
            events = self._splitter.feed(chunk)
        except SseEventTooLong as error:
            self._fault = "engine_event_too_long"
            events = error.events
        return [(self._reader.read(event), event) for event in events]


def _content_type(response: HttpResponse) -> str:
    for name, value in response.headers:
        if name == b"content-type":
            return value.decode("latin-1")
    return JSON
