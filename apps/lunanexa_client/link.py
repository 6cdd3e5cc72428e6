"""One WebSocket: how it is opened, and what its end means."""

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Final, TypeAlias

import attrs
import trio
from trio_websocket import CloseReason, ConnectionRejected, WebSocketConnection, wrap_client_stream

from lunanexa_adapters.noticing import notice_loss
from lunanexa_client.errors import (
    AuthenticationError,
    ConnectionFailed,
    ErrorFacts,
    InternalError,
    LunaNexaError,
    ProtocolError,
    Unavailable,
)
from lunanexa_client.refusals import error_of_answer
from lunanexa_client.settings import ClientSettings
from lunanexa_core.contract.frames import SUBPROTOCOL
from lunanexa_core.outcomes import Outcome
from lunanexa_ports.http_client import Headers

Stream: TypeAlias = trio.SocketStream | trio.SSLStream[trio.SocketStream]

_PATH: Final = "/v1/stream"
_DISCONNECT_S: Final = 2.0
_READ_BYTES: Final = 64 * 1024


@attrs.frozen
class Link:
    """An open WebSocket, and what it runs over."""

    socket: WebSocketConnection
    stream: Stream

    async def abort(self) -> None:
        """Ends it without a word: the reader sees a broken connection."""
        await trio.aclose_forcefully(self.stream)


@asynccontextmanager
async def open_link(settings: ClientSettings, headers: Headers) -> AsyncIterator[Link]:
    """Says ``headers``, the key among them. Raises :class:`LunaNexaError`. The stream is closed here: trio-websocket
    leaves it open when the peer ends."""
    address = settings.address
    stream = await _open_stream(settings)
    try:
        with only_exception():
            async with trio.open_nursery() as nursery:
                socket = await _shake_hands(nursery, stream, settings, headers)
                if socket.subprotocol != SUBPROTOCOL:
                    raise ProtocolError(f"{address}: does not speak {SUBPROTOCOL}")
                yield Link(socket, stream)
                with trio.move_on_after(_DISCONNECT_S):
                    await socket.aclose()
                nursery.cancel_scope.cancel()
    except ConnectionRejected as rejected:
        raise _rejected(rejected) from None
    finally:
        await trio.aclose_forcefully(stream)


async def _open_stream(settings: ClientSettings) -> Stream:
    address, context = settings.address, settings.ssl_context()
    try:
        with trio.fail_after(settings.connect_timeout_ms / 1000):
            tcp = await trio.open_tcp_stream(address.host, address.port)
            try:
                notice_loss(tcp.socket)
                if context is None:
                    return tcp
                tls = trio.SSLStream(tcp, context, server_hostname=address.host, https_compatible=True)
                await tls.do_handshake()
            except BaseException:
                await trio.aclose_forcefully(tcp)
                raise
            return tls
    except trio.TooSlowError:
        raise _failed(f"{address}: no connection within {settings.connect_timeout_ms} ms") from None
    except (OSError, trio.BrokenResourceError) as error:
        raise _failed(f"{address}: no connection ({error.__cause__ or error})") from error


async def _shake_hands(
    nursery: trio.Nursery, stream: Stream, settings: ClientSettings, headers: Headers
) -> WebSocketConnection:
    address = settings.address
    try:
        with trio.fail_after(settings.connect_timeout_ms / 1000):
            return await wrap_client_stream(
                nursery,
                stream,
                address.authority,
                f"{address.prefix}{_PATH}",
                subprotocols=[SUBPROTOCOL],
                extra_headers=list(headers),
                max_message_size=settings.limits.frame_bytes,
                receive_buffer_size=_READ_BYTES,
            )
    except trio.TooSlowError:
        raise _failed(f"{address}: no WebSocket within {settings.connect_timeout_ms} ms") from None


@contextmanager
def only_exception() -> Iterator[None]:
    """Around a nursery whose tasks never fail after their start: the one exception in it comes out by itself, as
    it was raised."""
    try:
        yield
    except BaseExceptionGroup as group:
        if len(group.exceptions) != 1:
            raise
        only = group.exceptions[0]
        context = only.__context__
        try:
            raise only  # noqa: ASYNC123 - its context is put back, and its traceback only grows
        finally:
            only.__context__ = context


def closed_because(reason: CloseReason | None) -> LunaNexaError:
    """What a close code says of the connection; retryable, where another one can be better.

    Source: RFC 6455 section 7.4.1, the IANA registry for 1012, and 4008 of ours."""
    if reason is None:
        return _failed("the connection broke")
    told = f"close code {reason.code}" + (f", {reason.reason}" if reason.reason else "")
    match reason.code:
        case 1000 | 1001 | 1012:
            facts = ErrorFacts(code=Outcome.DRAINING.value, retryable=True)
            return Unavailable(f"the server ended the connection ({told})", facts)
        case 1003 | 1007:
            return ProtocolError(f"the server could not read a frame ({told})")
        case 1008:
            facts = ErrorFacts(code=Outcome.INVALID_API_KEY.value)
            return AuthenticationError(f"the key was refused or revoked ({told})", facts)
        case 1009:
            return ProtocolError(f"a frame was too large ({told})")
        case 1011:
            facts = ErrorFacts(code=Outcome.INTERNAL.value, retryable=True)
            return InternalError(f"the server failed on this connection ({told})", facts)
        case 4008:
            return ConnectionFailed(f"this program read too slowly ({told})", ErrorFacts(code="slow_consumer"))
        case _:
            return _failed(f"the connection broke ({told})")


def _rejected(rejected: ConnectionRejected) -> LunaNexaError:
    headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in rejected.headers or ()}
    try:
        document = json.loads(rejected.body or b"")
    except (ValueError, RecursionError):
        document = None
    return error_of_answer(document, status=rejected.status_code, headers=headers)


def _failed(message: str) -> ConnectionFailed:
    return ConnectionFailed(message, ErrorFacts(code=ConnectionFailed.default_code, retryable=True))
