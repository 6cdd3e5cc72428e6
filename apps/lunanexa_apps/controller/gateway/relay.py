"""One engine's answer, passed on as it comes: unary, as a stream, or as a stream put together for a unary client.

A relay never admits, settles or refuses: it says what became of one attempt. Nothing of an answer is changed;
a usage event that the client did not ask for is left out, and the last frames are handed back unsent, because
they wait for the receipt.
"""

from functools import partial
from typing import Final, TypeAlias

import attrs

from lunanexa_apps.controller.gateway.incoming import JSON, Incoming, content_type_of
from lunanexa_apps.controller.gateway.outlet import Outlet
from lunanexa_apps.controller.gateway.progress import Progress
from lunanexa_apps.controller.gateway.settings import GatewaySettings
from lunanexa_core.openai.answer_rules import answer_rules
from lunanexa_core.openai.audio import sound_tokens
from lunanexa_core.openai.head import RequestHead
from lunanexa_core.openai.response import error_object, estimated_usage, usage_of
from lunanexa_core.openai.stream import EventKind
from lunanexa_core.sse import data_of
from lunanexa_ports.http_client import HttpBroken, HttpResponse
from lunanexa_ports.workers import Workers

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
    return Whole(status, content_type_of(response), body)


async def relay_whole(
    response: HttpResponse, head: RequestHead, progress: Progress, settings: GatewaySettings
) -> Whole | Failed:
    """A whole answer, read within bounds."""
    try:
        body = await response.read(settings.answer_bytes_max)
    except HttpBroken:
        return Failed("engine_cut", response.status)
    content_type = content_type_of(response)
    if content_type.startswith(JSON):
        if error_object(body) is not None:
            return Failed("engine_error_in_answer", response.status)
        progress.usage = usage_of(body)
    progress.put_out()
    if progress.usage is None:
        progress.usage = estimated_usage(head, answer_rules(head.dialect).estimate(body))
    return Whole(response.status, content_type, body)


async def relay_assembled(
    response: HttpResponse, head: RequestHead, progress: Progress, settings: GatewaySettings, workers: Workers
) -> Whole | Failed:
    """A whole answer, put together from a stream."""
    assemble = answer_rules(head.dialect).assemble
    assert progress.reader is not None
    assert assemble is not None
    stream = Incoming(response, progress.reader, settings)
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
    put_together = partial(assemble, payloads)
    body = await workers.run(put_together) if len(payloads) > settings.offload_events else put_together()
    if body is None:
        return Failed("engine_answer_unreadable", response.status)
    return Whole(200, JSON, body)


async def relay_stream(
    response: HttpResponse, head: RequestHead, progress: Progress, settings: GatewaySettings, outlet: Outlet
) -> Streamed | Failed | Broken:
    """A stream, written as it arrives: what one read brought is one write."""
    assert progress.reader is not None
    stream = Incoming(response, progress.reader, settings)
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
            progress.passed_on = output
        stream.expect_end(soon=bool(held))
    if stream.fault is not None:
        return Broken(stream.fault) if progress.passed_on else Failed(stream.fault, response.status)
    return Streamed(b"".join((*held, progress.reader.closing())))


async def relay_bytes(
    response: HttpResponse, head: RequestHead, progress: Progress, settings: GatewaySettings, outlet: Outlet
) -> Streamed | Whole | Failed | Broken:
    """Bytes of a medium, written as they arrive; the last one waits for the receipt. What is JSON after all is told as
    a whole answer."""
    content_type = content_type_of(response)
    if content_type.startswith(JSON):
        return await relay_whole(response, head, progress, settings)
    assert progress.reader is not None
    held, size_bytes = b"", 0
    try:
        async for chunk in response.chunks():
            size_bytes += len(chunk)
            progress.put_out()
            progress.reader.outputs = sound_tokens(size_bytes)
            ready, held = held + chunk[:-1], chunk[-1:]
            if ready:
                await outlet.begin(content_type)
                progress.passed_on = True
                await outlet.write(ready)
    except HttpBroken:
        return Broken("engine_cut") if progress.passed_on else Failed("engine_cut", response.status)
    return Streamed(held) if progress.passed_on else Whole(response.status, content_type, held)
