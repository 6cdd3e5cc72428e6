"""One request over one connection, up to the response head."""

import os
import ssl
from contextlib import AbstractAsyncContextManager

import h11
import trio

from lunanexa_adapters.http_client.connection import BROKEN, Connection
from lunanexa_adapters.http_client.security import MutualTls
from lunanexa_ports.http_client import HttpBroken, HttpRequest, HttpUnreachable

INLINE_BODY_BYTES = 16 * 1024
"""Up to here a request fits a fresh socket's send buffer: sending can't block on what the server reads."""


_NO_TLS = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE")
"""What OpenSSL, by its version, makes of plain text where a handshake was to come."""


class PeerEnded(HttpBroken):
    """The connection failed before any response head, in contrast to a head that did not come in time."""


def head_of(request: HttpRequest) -> h11.Request:
    """Raises ``ValueError`` for a request that can't be written down: the caller's mistake, found before any
    connection is touched."""
    host = f"[{request.host}]" if ":" in request.host else request.host
    headers = [(b"host", f"{host}:{request.port}".encode("ascii")), *request.headers]
    if request.body_bytes or request.method in ("POST", "PUT", "PATCH"):
        headers.append((b"content-length", b"%d" % request.body_bytes))
    try:
        return h11.Request(method=request.method, target=request.target, headers=headers)
    except h11.LocalProtocolError as exc:
        raise ValueError(f"not a request: {exc}") from exc


def why(error: Exception) -> str:
    """The system's own words; Trio wraps them in a group, one error an address that was tried."""
    cause: BaseException = error.__cause__ or error
    if isinstance(cause, ExceptionGroup):
        cause = cause.exceptions[-1]
    if isinstance(cause, ssl.SSLError) and cause.reason in _NO_TLS:
        return "what listens there speaks no TLS: it is another port"
    if isinstance(cause, ssl.SSLCertVerificationError):
        return f"what listens there is not trusted: certificate verify failed, {cause.verify_message}"
    # Failed look-ups of names and TLS have numbers and words of their own.
    number = cause.errno if isinstance(cause, OSError) and not isinstance(cause, ssl.SSLError) else None
    return str(cause) if number is None or number <= 0 else os.strerror(number)


async def converse(connection: Connection, head: h11.Request, request: HttpRequest) -> h11.Response:
    """Sends and reads the head; a large body is sent while reading, for the server may answer (413) before
    it has read all and then close. Such a send fails, and the answer is still there to be read."""
    parts = connection.encode(head, (request.body, *request.more))
    reading = trio.CancelScope()

    async def send() -> None:
        try:
            await connection.send(parts)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            if not connection.sent_any:
                reading.cancel()  # whatever can be read is no answer to this request
            return  # else reading tells what happened
        if request.head_timeout_ms is not None:
            reading.deadline = trio.current_time() + request.head_timeout_ms / 1000

    response: h11.Response | None = None
    failure: Exception | None = None
    async with trio.open_nursery() if request.body_bytes > INLINE_BODY_BYTES else _NoNursery() as nursery:
        if nursery is None:
            await send()
        else:
            nursery.start_soon(send)
        try:
            with reading:
                response = await connection.read_head()
        except BROKEN as exc:
            failure = exc
        # An answer below 300 before the request's end comes from a server that reads on while it answers.
        if nursery is not None and (response is None or response.status_code >= 300):
            nursery.cancel_scope.cancel()
    if not connection.sent_any:
        raise HttpUnreachable("the connection ended before anything was sent")
    if response is not None:
        return response
    if failure is None:
        raise HttpBroken(f"no response head within {request.head_timeout_ms} ms", head_seen=False)
    said = f"the connection ended before a response head ({why(failure)})"
    if isinstance(connection.security, MutualTls) and not connection.was_heard:
        # With TLS 1.3 a client's handshake is over before the server has looked at the client's certificate.
        said = f"{request.host}:{request.port}: {said}; perhaps refused: check this process's certificate"
    raise PeerEnded(said, head_seen=False) from failure


class _NoNursery(AbstractAsyncContextManager[None]):
    """Small requests, nearly all, are spared the task."""

    async def __aenter__(self) -> None:
        return None

    async def __aexit__(self, *_: object) -> None:
        return None
