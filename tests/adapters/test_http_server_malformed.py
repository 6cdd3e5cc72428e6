"""Malformed requests, each of which must leave the server serving.

Stock hypercorn 0.18 on Trio ends the whole process on five of them. Whatever the guarded server answers by
itself has the one error shape.
"""

import struct
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import h2.config
import h2.connection
import pytest
import trio

from lunanexa_adapters.http_server.lean import serve_lean
from lunanexa_adapters.http_server.limits import ServerLimits
from lunanexa_adapters.http_server.serve import serve_http
from tests.adapters.http_tools import Server, echo, has_error_shape, parse_answer, served, talk, ws_frames

pytestmark = pytest.mark.thorough

LIMITS = ServerLimits(
    head_timeout_ms=500,
    idle_timeout_ms=500,
    body_timeout_ms=500,
    linger_ms=250,
    websocket_ping_ms=250,
    websocket_pong_timeout_ms=250,
)

Headers = list[tuple[bytes, bytes]]


def h2_request(headers: Headers, *, end: bool = True) -> bytes:
    """HTTP/2 by prior knowledge, with headers that no library would send by itself."""
    config = h2.config.H2Configuration(
        client_side=True, validate_outbound_headers=False, normalize_outbound_headers=False
    )
    connection = h2.connection.H2Connection(config)
    connection.initiate_connection()
    connection.send_headers(1, headers, end_stream=end)
    return connection.data_to_send()


def pseudo(method: bytes = b"GET", path: bytes | None = b"/", **more: bytes) -> Headers:
    headers: Headers = [(b":method", method), (b":scheme", b"http"), (b":authority", b"x")]
    headers += [(f":{name}".encode(), value) for name, value in more.items()]
    return headers if path is None else [*headers, (b":path", path)]


def frame(opcode: int, payload: bytes, *, fin: bool = True, rsv1: bool = False) -> bytes:
    """A WebSocket frame as a client sends it, masked with zeros."""
    first = (0x80 if fin else 0) | (0x40 if rsv1 else 0) | opcode
    length = len(payload)
    if length < 126:
        head = bytes([first, 0x80 | length])
    elif length < 65536:
        head = bytes([first, 0xFE]) + struct.pack(">H", length)
    else:
        head = bytes([first, 0xFF]) + struct.pack(">Q", length)
    return head + bytes(4) + payload


def handshake(*more: bytes, key: bytes = b"dGhlIHNhbXBsZSBub25jZQ==", version: bytes = b"13") -> bytes:
    lines = [b"GET /echo HTTP/1.1", b"Host: x", b"Upgrade: websocket", b"Connection: Upgrade"]
    if key:
        lines.append(b"Sec-WebSocket-Key: " + key)
    lines += [b"Sec-WebSocket-Version: " + version, *more]
    return b"\r\n".join([*lines, b"", b""])


def get(target: bytes = b"/", *more: bytes, method: bytes = b"GET") -> bytes:
    return b"\r\n".join([method + b" " + target + b" HTTP/1.1", b"Host: x", *more, b"", b""])


MALFORMED: dict[str, list[bytes]] = {
    "h2 path non-ascii": [h2_request(pseudo(path=b"/\xff\xfe"))],
    "h2 CONNECT without :path": [h2_request([(b":method", b"CONNECT"), (b":authority", b"x")], end=False)],
    "h2 CONNECT websocket, no version": [h2_request(pseudo(b"CONNECT", b"/echo", protocol=b"websocket"), end=False)],
    "h2 missing authority": [h2_request([(b":method", b"GET"), (b":path", b"/"), (b":scheme", b"http")])],
    "h2 method non-ascii": [h2_request(pseudo(b"G\xffT"))],
    "h2 garbage after preface": [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(range(200))],
    "h2c upgrade, bad settings": [
        get(b"/", b"Upgrade: h2c", b"Connection: Upgrade, HTTP2-Settings", b"HTTP2-Settings: !!!!")
    ],
    "h2c upgrade, no settings": [get(b"/", b"Upgrade: h2c", b"Connection: Upgrade")],
    "path percent junk": [get(b"/%ff%00%zz")],
    "header latin1": [get(b"/", b"X: \xff\xfe")],
    "absolute-form target": [get(b"http://a/hello")],
    "target *": [get(b"*", method=b"OPTIONS")],
    "bad chunk": [get(b"/", b"Transfer-Encoding: chunked", method=b"POST"), b"zz\r\n"],
    "ws invalid utf-8": [handshake(), frame(1, b"\xff\xfe")],
    "ws reserved opcode": [handshake(), frame(3, b"a")],
    "ws rsv1 without extension": [handshake(), frame(1, b"a", rsv1=True)],
    "ws bad close code": [handshake(), frame(8, b"\x00\x01")],
    "ws close of one byte": [handshake(), frame(8, b"\x03")],
    "ws long ping": [handshake(), frame(9, b"a" * 126)],
    "ws continuation first": [handshake(), frame(0, b"a")],
    "ws mixed fragments": [handshake(), frame(1, b"a", fin=False) + frame(2, b"b")],
    "ws data before accept": [handshake() + frame(1, b"early")],
    "ws bad deflate": [
        handshake(b"Sec-WebSocket-Extensions: permessage-deflate"),
        frame(1, b"\xff\xff\xff\xff\xff", rsv1=True),
    ],
    "ws bad version": [handshake(version=b"8")],
    "ws no key": [handshake(key=b"")],
    "ws bad extension parameter": [
        handshake(b"Sec-WebSocket-Extensions: permessage-deflate; server_max_window_bits=99")
    ],
    "ws bad subprotocol": [handshake(b"Sec-WebSocket-Protocol: ,,")],
    "ws non-ascii key": [handshake(key=b"\xff\xfeIHNhbXBsZSBub25jZQ==")],
    "ws non-ascii extension": [handshake(b"Sec-WebSocket-Extensions: \xff\xfe")],
    # not among the 29 that were tried on stock hypercorn
    "authority-form target": [get(b"x:80", method=b"CONNECT")],
    "empty path": [get(b"?x")],
    "two framings": [get(b"/", b"Content-Length: 3", b"Transfer-Encoding: chunked", method=b"POST"), b"0\r\n\r\n"],
    "huge content-length": [get(b"/", b"Content-Length: " + b"9" * 5_000, method=b"POST")],
    "ws with a body": [handshake(b"Content-Length: 4") + b"body"],
    "ws non-ascii subprotocol": [handshake(b"Sec-WebSocket-Protocol: \xff")],
    "ws frame after close": [handshake(), frame(8, b"\x03\xe8") + frame(1, b"late")],
    "no host": [b"GET / HTTP/1.1\r\n\r\n"],
    "bare garbage": [b"\x00\x01\x02\r\n\r\n"],
    "tls hello": [b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200)],
}


async def slowly(server: Server, pieces: list[bytes]) -> bytes:
    """Each piece after the answer to the one before, where there is one: a WebSocket must be accepted first."""
    stream = await trio.open_tcp_stream(server.host, server.port)
    received = b""
    async with stream:
        for index, piece in enumerate(pieces):
            try:
                if index and piece is not pieces[0] and b"websocket" in pieces[0]:
                    received += bytes(await stream.receive_some())
                await stream.send_all(piece)
            except trio.BrokenResourceError:
                break
        try:
            async for data in stream:
                received += data
        except trio.BrokenResourceError:
            pass
    return received


STATUS = {
    "h2 path non-ascii": 505,
    "h2 garbage after preface": 505,
    "h2c upgrade, bad settings": 200,
    "h2c upgrade, no settings": 200,
    "absolute-form target": 200,
    "target *": 200,
    "bad chunk": 400,
    "authority-form target": 400,
    "two framings": 400,
    "ws data before accept": 400,
    "ws bad version": 400,
    "ws no key": 400,
    "ws non-ascii subprotocol": 400,
    "ws non-ascii extension": 101,
    "ws bad extension parameter": 101,
    "no host": 400,
    "bare garbage": 400,
}
"""What the guarded server says, where that is worth fixing."""

CLOSE_CODE = {
    "ws invalid utf-8": 1007,
    "ws reserved opcode": 1002,
    "ws rsv1 without extension": 1002,
    "ws bad deflate": 1002,
    "ws mixed fragments": 1002,
}


async def check_malformed(server: Server, name: str) -> None:
    raw = await slowly(server, MALFORMED[name])
    if raw.startswith(b"HTTP/"):
        status, headers, body = parse_answer(raw)
        assert status not in (500, 502, 503)
        assert b"server" not in headers
        assert b"sec-websocket-extensions" not in headers, "deflate is never negotiated"
        if status >= 400:
            assert has_error_shape(body, status)
            assert headers[b"content-type"] == b"application/json"
    status, _, body = parse_answer(await talk(server, get(b"/", b"Content-Length: 4", b"Connection: close") + b"ping"))
    assert (status, body[-11:]) == (200, b"ping\r\n0\r\n\r\n")


async def check_answer(server: Server, name: str) -> None:
    raw = await slowly(server, MALFORMED[name])
    if name in STATUS:
        assert parse_answer(raw)[0] == STATUS[name]
    else:
        ((opcode, payload),) = ws_frames(raw)
        assert (opcode, payload[:2]) == (8, struct.pack(">H", CLOSE_CODE[name]))


async def failures(
    server: Server, check: Callable[[Server, str], Awaitable[None]], names: Iterable[str]
) -> dict[str, str]:
    """All cases at once: most of them end only with the server's patience."""
    failed: dict[str, str] = {}

    async def run(name: str) -> None:
        try:
            await check(server, name)
        except AssertionError as error:
            failed[name] = str(error)

    async with trio.open_nursery() as nursery:
        for name in names:
            nursery.start_soon(run, name)
    return failed


@pytest.mark.parametrize("serve", [serve_http, serve_lean])
async def test_malformed_requests_leave_the_server_serving(serve: Callable[..., Any]) -> None:
    async with served(serve, echo, LIMITS) as server:
        assert await failures(server, check_malformed, MALFORMED) == {}
        assert server.faults == []


async def test_answers_to_malformed_requests() -> None:
    async with served(serve_http, echo, LIMITS) as server:
        assert await failures(server, check_answer, [*STATUS, *CLOSE_CODE]) == {}
