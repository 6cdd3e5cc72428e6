"""Answers to canonical envelopes over HTTP: one response document, or server-sent events that end in it.

Events are ``accepted``, ``output`` (data: the engine's own event), then ``completed`` or ``failed``.
Source of the framing: https://html.spec.whatwg.org/multipage/server-sent-events.html
"""

import json
from typing import Final

from lunanexa_adapters.asgi.errors import HeaderList, error_answer
from lunanexa_adapters.asgi.exchange import Exchange
from lunanexa_core.allowance import limit_headers
from lunanexa_core.contract.response import WorkloadResponse, response_json
from lunanexa_core.ids import WorkloadId
from lunanexa_core.openai.stream import KEEPALIVE
from lunanexa_core.outcomes import Refusal, error_document
from lunanexa_ports.gateway import Accepted, WorkloadSink

_STREAM_HEADERS: Final = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


class _EnvelopeSink(WorkloadSink):
    """What both have in common."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._workload: WorkloadId | None = None
        self._limits: HeaderList = []
        self._replayed = False

    @property
    def closed_because(self) -> str | None:
        return self._exchange.closed_because

    def _headers(self) -> HeaderList:
        if self._workload is None:
            return []
        replayed = [(b"x-lunanexa-replayed", b"true")] if self._replayed else []
        return [(b"x-lunanexa-workload-id", self._workload.encode()), *replayed, *self._limits]

    def _accept(self, accepted: Accepted) -> None:
        self._workload, self._replayed = accepted.workload, accepted.replayed
        self._limits = [(name.encode(), value.encode()) for name, value in limit_headers(accepted.allowances)]

    async def _refuse(self, refusal: Refusal, response: WorkloadResponse | None) -> None:
        """With the status of the refusal; the body has its error either way."""
        answer = error_answer(refusal, self._exchange.request, limit_headers(refusal.allowances))
        body, headers = answer.body, [*answer.headers, *self._headers()]
        if response is not None:
            body = response_json(response)
            headers = [(name, value) for name, value in headers if name != b"content-length"]
            headers.append((b"content-length", b"%d" % len(body)))
        await self._exchange.start(answer.status, headers)
        await self._exchange.send_body(body, more=False)


class UnarySink(_EnvelopeSink):
    """One response document."""

    async def accepted(self, accepted: Accepted) -> None:
        self._accept(accepted)

    async def event(self, data: bytes) -> None:
        raise AssertionError("an event of a workload that was not asked to stream")

    async def silence(self) -> None:
        """The status is not known yet: nothing can be sent."""

    async def completed(self, response: WorkloadResponse) -> None:
        await self._exchange.send_whole(200, b"application/json", response_json(response), self._headers())

    async def failed(self, refusal: Refusal, response: WorkloadResponse | None) -> None:
        await self._refuse(refusal, response)


class EventSink(_EnvelopeSink):
    """Server-sent events; what is refused before it is accepted is refused with its status."""

    async def accepted(self, accepted: Accepted) -> None:
        self._accept(accepted)
        document = {"workload_id": accepted.workload, "queue_position": accepted.place}
        await self._exchange.start(200, [*_STREAM_HEADERS, *self._headers()])
        await self._send(_frame("accepted", json.dumps(document, separators=(",", ":")).encode()))

    async def event(self, data: bytes) -> None:
        await self._send(_frame("output", data))

    async def silence(self) -> None:
        await self._send(KEEPALIVE)

    async def completed(self, response: WorkloadResponse) -> None:
        await self._end(_frame("completed", response_json(response)))

    async def failed(self, refusal: Refusal, response: WorkloadResponse | None) -> None:
        if not self._exchange.begun:
            await self._refuse(refusal, response)
            return
        document = error_document(refusal, self._exchange.request)
        data = json.dumps(document, separators=(",", ":")).encode() if response is None else response_json(response)
        await self._end(_frame("failed", data))

    async def _send(self, data: bytes) -> None:
        await self._exchange.send_body(data, more=True)

    async def _end(self, data: bytes) -> None:
        await self._exchange.send_body(data, more=False)


def _frame(name: str, data: bytes) -> bytes:
    lines = b"".join(b"data: " + line + b"\n" for line in data.splitlines() or [b""])
    return b"event: " + name.encode() + b"\n" + lines + b"\n"
