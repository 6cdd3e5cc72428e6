"""Answers that a server makes without its application (400, 408, 413, 431, 500, 503, 505), and
what an application meets when its client has gone."""

from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import TypeAlias

from lunanexa_ports.asgi import CLOSED_BECAUSE, SLOW_CONSUMER, Message

Header: TypeAlias = tuple[bytes, bytes]
RenderError: TypeAlias = Callable[[int], tuple[Sequence[Header], bytes]]
"""Status code to (headers, body); length and connection are the server's. The shape of errors belongs to the
caller: one shape, also where no application was reached."""

OnFault: TypeAlias = Callable[[BaseException], None]
"""Told of each error that a connection's guard kept from ending the process."""


def disconnect_message(*, slow: bool) -> Message:
    """``http.disconnect``; ``slow``: because the client took too long to take what was sent."""
    return {"type": "http.disconnect", **({CLOSED_BECAUSE: SLOW_CONSUMER} if slow else {})}


class ClientGone(OSError):
    """Raised by ``send`` after the client's departure, as ASGI 2.4 wants it: an application that ignores
    ``http.disconnect`` must not go on producing for nobody."""

    def __init__(self) -> None:
        super().__init__("the client has gone")


def error_headers(render_error: RenderError, status: int) -> tuple[list[Header], bytes]:
    """Headers and body of an error answer, after which the connection is closed."""
    told, body = render_error(status)
    headers = [
        *told,
        (b"content-length", b"%d" % len(body)),
        (b"connection", b"close"),
    ]
    return headers, body


def error_bytes(render_error: RenderError, status: int) -> bytes:
    """The same as it goes over the wire, for a connection on which nothing was parsed."""
    headers, body = error_headers(render_error, status)
    lines = [b"HTTP/1.1 %d %s" % (status, HTTPStatus(status).phrase.encode("ascii"))]
    lines += [name + b": " + value for name, value in headers]
    return b"\r\n".join([*lines, b"", body])
