"""Start-up, shutdown and drain, for both servers."""

from collections.abc import Callable
from typing import Any

import pytest
import trio

from lunanexa_adapters.http_server.lean import serve_lean
from lunanexa_adapters.http_server.limits import ServerLimits
from lunanexa_adapters.http_server.listeners import addresses, open_listeners
from lunanexa_adapters.http_server.serve import serve_http
from lunanexa_ports.asgi import Receive, Scope, Send
from lunanexa_ports.errors import PortFault
from tests.adapters.http_tools import (
    answer,
    echo,
    parse_answer,
    read_to_end,
    read_until,
    render_error,
    served,
    talk,
)

pytestmark = pytest.mark.thorough

Serve = Callable[..., Any]
both = pytest.mark.parametrize("serve", [serve_http, serve_lean])

GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


@both
async def test_drain_finishes_requests_and_ends_idle_connections(serve: Serve) -> None:
    asked, finish = trio.Event(), trio.Event()

    async def app(scope: Scope, _receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        if scope["path"] == "/slow":
            asked.set()
            await finish.wait()
        await answer(send, 200, b"done")

    async with served(serve, app) as server:
        idle = await server.connect()
        await idle.send_all(GET)
        await read_until(idle, b"0\r\n\r\n")
        busy = await server.connect()
        await busy.send_all(GET.replace(b"/ ", b"/slow "))
        await asked.wait()
        server.stop.set()
        assert await read_to_end(idle) == b""
        with pytest.raises(OSError, match="all attempts"):
            await server.connect()
        assert not server.ended.is_set()
        finish.set()
        status, headers, body = parse_answer(await read_to_end(busy))
        assert (status, headers[b"connection"]) == (200, b"close")
        assert b"done" in body
        await server.ended.wait()


@both
async def test_grace_ends_what_does_not_finish(serve: Serve) -> None:
    cancelled = trio.Event()

    async def app(scope: Scope, _receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"some", "more_body": True})
        try:
            await trio.sleep_forever()
        except trio.Cancelled:
            cancelled.set()
            raise

    async with served(serve, app, ServerLimits(grace_ms=50)) as server:
        stream = await server.connect()
        await stream.send_all(GET)
        await read_until(stream, b"some")
        server.stop.set()
        await cancelled.wait()
        await server.ended.wait()
        assert b"0\r\n\r\n" not in await read_to_end(stream)
        assert server.faults == []


@both
async def test_lifespan_surrounds_the_connections(serve: Serve) -> None:
    story: list[str] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await answer(send, 200, scope["state"]["greeting"])
            story.append("request")
            return
        assert (await receive())["type"] == "lifespan.startup"
        scope["state"]["greeting"] = b"hello"
        story.append("startup")
        await send({"type": "lifespan.startup.complete"})
        assert (await receive())["type"] == "lifespan.shutdown"
        story.append("shutdown")
        await send({"type": "lifespan.shutdown.complete"})

    async with served(serve, app) as server:
        assert b"hello" in await talk(server, b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        server.stop.set()
        await server.ended.wait()
    assert story == ["startup", "request", "shutdown"]


@both
async def test_failed_startup_is_a_fault(serve: Serve) -> None:
    async def app(_scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "lifespan.startup.failed", "message": "no database"})

    listeners = await open_listeners("127.0.0.1", 0)
    with pytest.raises(PortFault, match="no database"):
        await serve(app, listeners, render_error=render_error, on_fault=pytest.fail)
    for listener in listeners:
        await listener.aclose()


@both
async def test_application_without_lifespan_is_served(serve: Serve) -> None:
    async def app(scope: Scope, _receive: Receive, send: Send) -> None:
        assert scope["type"] == "http"
        await answer(send, 200, b"served")

    async with served(serve, app) as server:
        assert b"served" in await talk(server, b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert server.faults == []


async def test_listeners_share_one_free_port_over_the_addresses_of_a_name() -> None:
    listeners = await open_listeners("localhost", 0)
    bound = addresses(listeners)
    assert len({port for _, port in bound}) == 1
    assert bound[0][1] != 0
    for listener in listeners:
        assert listener.socket.getsockopt(trio.socket.IPPROTO_TCP, trio.socket.TCP_USER_TIMEOUT) > 0
        await listener.aclose()


async def test_taken_port_is_an_os_error() -> None:
    listeners = await open_listeners("127.0.0.1", 0)
    with pytest.raises(OSError, match="in use"):
        await open_listeners(*addresses(listeners)[0])
    await listeners[0].aclose()


async def test_cancelled_server_ends_at_once() -> None:
    async with served(serve_http, echo) as server:
        stream = await server.connect()
        await stream.send_all(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\n")
        server.kill()
        assert await read_to_end(stream) == b""
