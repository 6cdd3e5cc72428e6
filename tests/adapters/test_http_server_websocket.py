"""WebSockets on the guarded server: bounded messages, honest closes, no starving, and quart-trio on top."""

import pytest
import trio
from quart import websocket
from quart_trio import QuartTrio

from lunanexa_adapters.http_server.limits import ServerLimits
from lunanexa_adapters.http_server.serve import serve_http
from lunanexa_ports.asgi import ABORT, Receive, Scope, Send
from tests.adapters.http_tools import echo, parse_answer, read_to_end, read_until, served, ws_frames
from tests.adapters.test_http_server_malformed import frame, handshake

QUIET = ServerLimits(websocket_ping_ms=0)


@pytest.mark.parametrize("payload", [b"", b"hello", b"x" * 300, b"x" * 70_000])
async def test_messages_come_back(payload: bytes) -> None:
    async with served(serve_http, echo, QUIET) as server:
        stream = await server.connect()
        await stream.send_all(handshake())
        raw = await read_until(stream, b"\r\n\r\n")
        await stream.send_all(frame(2, payload) + frame(1, b"text"))
        raw += await read_until(stream, b"text")
        await stream.send_all(frame(8, b"\x03\xe8"))
        raw += await read_to_end(stream)
        assert ws_frames(raw) == [(2, payload), (1, b"text"), (8, b"\x03\xe8")]


@pytest.mark.parametrize("fragments", [1, 40])
async def test_message_over_the_limit_ends_the_connection(fragments: int) -> None:
    """It is neither buffered on nor delivered, and the client can read why."""
    delivered: list[object] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.accept"})
            delivered.append(await receive())

    limits = ServerLimits(websocket_message_max_bytes=100_000, websocket_ping_ms=0, linger_ms=200)
    async with served(serve_http, app, limits) as server:
        stream = await server.connect()
        await stream.send_all(handshake())
        raw = await read_until(stream, b"\r\n\r\n")
        async with trio.open_nursery() as nursery:

            async def send() -> None:
                try:
                    for index in range(fragments):
                        await stream.send_all(frame(0 if index else 2, b"x" * (4_000_000 // fragments), fin=False))
                except trio.BrokenResourceError:
                    return

            nursery.start_soon(send)
            raw += await read_to_end(stream)
            nursery.cancel_scope.cancel()
        assert ws_frames(raw) == [(8, b"\x03\xf1")]
        assert delivered == [{"type": "websocket.disconnect", "code": 1006}]
        assert server.faults == []


async def test_sending_loop_after_a_departure_does_not_starve_the_others() -> None:
    rounds = 0
    enough = trio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal rounds
        if scope["type"] != "websocket":
            return
        await receive()
        await send({"type": "websocket.accept"})
        while (await receive())["type"] != "websocket.disconnect":
            pass
        while not enough.is_set():
            await send({"type": "websocket.send", "text": "into nothing"})
            rounds += 1

    async with served(serve_http, app, QUIET) as server:
        stream = await server.connect()
        await stream.send_all(handshake())
        await read_until(stream, b"\r\n\r\n")
        await stream.aclose()
        while rounds < 100:
            await trio.lowlevel.checkpoint()
        enough.set()


async def test_peer_that_answers_no_ping_is_gone() -> None:
    told = trio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.accept"})
            assert (await receive())["type"] == "websocket.disconnect"
            told.set()

    limits = ServerLimits(websocket_ping_ms=30, websocket_pong_timeout_ms=30)
    async with served(serve_http, app, limits) as server:
        stream = await server.connect()
        await stream.send_all(handshake())
        raw = await read_to_end(stream)
        assert b"\x89\x00" in raw, "it was asked"
        await told.wait()


async def test_refused_handshake_carries_the_applications_answer() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.http.response.start", "status": 401, "headers": []})
            await send({"type": "websocket.http.response.body", "body": b"no key", "more_body": False})

    async with served(serve_http, app, ServerLimits(linger_ms=50)) as server:
        stream = await server.connect()
        await stream.send_all(handshake())
        status, _, body = parse_answer(await read_to_end(stream))
        assert status == 401
        assert b"no key" in body


async def test_an_application_may_close_without_a_close_frame() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            assert ABORT in scope["extensions"]
            await receive()
            await send({"type": "websocket.accept"})
            await send({"type": "websocket.send", "text": "so far"})
            await send({"type": ABORT})
            assert (await receive())["type"] == "websocket.disconnect"

    async with served(serve_http, app, QUIET) as server:
        stream = await server.connect()
        await stream.send_all(handshake())
        assert ws_frames(await read_to_end(stream)) == [(1, b"so far")]
        assert server.faults == []


async def test_failed_websocket_handler_is_closed_1011_and_reported() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.accept"})
            raise LookupError("a bug")

    async with served(serve_http, app, ServerLimits(websocket_ping_ms=0, linger_ms=50)) as server:
        stream = await server.connect()
        await stream.send_all(handshake())
        ((opcode, payload),) = ws_frames(await read_to_end(stream))
        assert (opcode, payload[:2]) == (8, b"\x03\xf3")
        assert [type(fault) for fault in server.faults] == [LookupError]


async def test_quart_trio_connections_idle_out_and_drain() -> None:
    """quart-trio cancels the task in which stock hypercorn would restart the idle timer."""
    app = QuartTrio(__name__)

    @app.get("/hello")
    async def hello() -> str:
        return "hello"

    @app.websocket("/echo")
    async def echo_socket() -> None:
        await websocket.send(await websocket.receive())

    request = b"GET /hello HTTP/1.1\r\nHost: x\r\n\r\n"
    async with served(serve_http, app, ServerLimits(idle_timeout_ms=50, websocket_ping_ms=0, linger_ms=50)) as server:
        stream = await server.connect()
        for _ in range(3):
            await stream.send_all(request)
            await read_until(stream, b"hello")
        assert await read_to_end(stream) == b""
        stream = await server.connect()
        await stream.send_all(handshake())
        raw = await read_until(stream, b"\r\n\r\n")
        await stream.send_all(frame(1, b"again"))
        raw += await read_to_end(stream)
        assert ws_frames(raw)[0] == (1, b"again")
        server.stop.set()
        await server.ended.wait()
        assert server.faults == []
