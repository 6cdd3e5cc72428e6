"""An engine's events as they come in: a read at a time, until the stream has ended, and why it is not whole."""

import math
from typing import Final

import trio

from lunanexa_apps.controller.gateway.outlet import EVENT_STREAM, Outlet
from lunanexa_apps.controller.gateway.settings import GatewaySettings
from lunanexa_core.openai.stream import AnswerReader, EventKind
from lunanexa_core.sse import SseEventTooLong, SseSplitter
from lunanexa_ports.http_client import HttpBroken, HttpResponse

JSON: Final = "application/json"


class Incoming:
    """The engine's events, a read at a time, until the stream has ended. Then ``fault`` says why it is not
    whole, or is ``None``."""

    def __init__(self, response: HttpResponse, reader: AnswerReader, settings: GatewaySettings) -> None:
        self._chunks = response.chunks()
        self._reader = reader
        self._splitter = SseSplitter(settings.event_bytes_max)
        self._tail_s = settings.tail_ms / 1000
        self._deadline_s = math.inf
        self._fault: str | None = None
        self._content_type = content_type_of(response)
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

    def __aiter__(self) -> "Incoming":
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


def content_type_of(response: HttpResponse) -> str:
    """What the engine says that its answer is; without a word it is JSON."""
    for name, value in response.headers:
        if name == b"content-type":
            return value.decode("latin-1")
    return JSON
