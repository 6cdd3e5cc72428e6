"""What the real client does on a socket that the published suite can't show: odd servers, replaced
connections, cancellation at every step."""

import itertools
import os
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import attrs
import pytest
import trio
import trio.testing

from lunanexa_adapters.http_client.connection import connect
from lunanexa_adapters.http_client.http_client import H11HttpClient, HttpClientLimits
from lunanexa_adapters.http_server.lean import serve_lean
from lunanexa_ports.http_client import HttpBroken, HttpRequest, HttpUnreachable
from tests.adapters.http_tools import LIMIT_S, echo, read_until, served

Handler = Callable[[trio.SocketStream, int], Awaitable[None]]
NOTICING = ("TCP_USER_TIMEOUT", "TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT")
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


@asynccontextmanager
async def raw_server(handler: Handler) -> AsyncIterator[HttpRequest]:
    """Calls the handler with each connection and its number; yields a request to it."""
    count = 0
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")

    async def handle(stream: trio.SocketStream) -> None:
        nonlocal count
        count += 1
        async with stream:
            await handler(stream, count)

    with trio.fail_after(LIMIT_S):
        async with trio.open_nursery() as nursery:
            await nursery.start(trio.serve_listeners, handle, listeners)
            yield HttpRequest(method="GET", host="127.0.0.1", port=listeners[0].socket.getsockname()[1], target="/")
            nursery.cancel_scope.cancel()


async def ask(client: H11HttpClient, request: HttpRequest) -> bytes:
    async with client.exchange(request) as response:
        return await response.read(1_000_000)


async def broken(client: H11HttpClient, request: HttpRequest) -> HttpBroken:
    with pytest.raises(HttpBroken) as caught:
        await ask(client, request)
    return caught.value


async def test_connection_that_the_server_closed_while_idle_is_replaced() -> None:
    closed = trio.Event()
    connections: list[int] = []

    async def handler(stream: trio.SocketStream, number: int) -> None:
        connections.append(number)
        await read_until(stream, b"\r\n\r\n")
        await stream.send_all(OK)
        if number == 1:
            await stream.aclose()
            closed.set()
        else:
            await stream.receive_some()

    client = H11HttpClient()
    async with raw_server(handler) as request:
        assert await ask(client, request) == b"ok"
        await closed.wait()
        assert await ask(client, request) == b"ok"
        assert connections == [1, 2]
        await client.aclose()


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize("reset", [True, False])
async def test_connection_that_ends_after_the_stale_check_is_replaced_for_what_may_be_done_twice(
    reset: bool, method: str
) -> None:
    """It was open when it was looked at and ended when the request was on its way."""
    connections: list[int] = []

    async def handler(stream: trio.SocketStream, number: int) -> None:
        connections.append(number)
        await read_until(stream, b"\r\n\r\n")
        await stream.send_all(OK)
        await (stream.receive_some(1) if reset else read_until(stream, b"\r\n\r\n"))  # the rest unread: a reset
        if number > 1:
            await stream.receive_some()

    client = H11HttpClient()
    async with raw_server(handler) as request:
        assert await ask(client, request) == b"ok"
        again = attrs.evolve(request, method=method)
        if method == "GET":
            assert await ask(client, again) == b"ok"
            assert connections == [1, 2]
        else:
            assert not (await broken(client, again)).head_seen
            assert connections == [1]
        await client.aclose()


@pytest.mark.parametrize("size_bytes", [1, 1_000_000])
async def test_connection_to_which_nothing_could_be_written_is_replaced_for_any_method(size_bytes: int) -> None:
    """The peer has seen nothing. A local end of sending stands in for the peer's, which can't be timed."""
    connections: list[int] = []
    over = trio.Event()

    async def handler(stream: trio.SocketStream, number: int) -> None:
        connections.append(number)
        await read_until(stream, b"\r\n\r\n")
        await stream.send_all(OK)
        if number == 1:
            await over.wait()
        else:
            while await stream.receive_some():
                pass

    client = H11HttpClient()
    async with raw_server(handler) as request:
        assert await ask(client, request) == b"ok"
        end_sending(request.port)
        assert await ask(client, attrs.evolve(request, method="POST", body=b"x" * size_bytes)) == b"ok"
        assert connections == [1, 2]
        over.set()
        await client.aclose()


def end_sending(port: int) -> None:
    """Of this process's one connection to a port."""
    for name in os.listdir("/proc/self/fd"):
        try:
            found = socket.socket(fileno=os.dup(int(name)))
        except OSError:  # no socket, or the folder's own
            continue
        with found:
            listens = found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
            if found.family == socket.AF_INET and not listens and found.getpeername()[1] == port:
                found.shutdown(socket.SHUT_WR)


async def test_connection_is_not_replaced_once_an_answer_has_begun() -> None:
    connections: list[int] = []

    async def handler(stream: trio.SocketStream, number: int) -> None:
        connections.append(number)
        await read_until(stream, b"\r\n\r\n")
        await stream.send_all(OK)
        await read_until(stream, b"\r\n\r\n")
        await stream.send_all(b"HTTP/1.1 20")

    client = H11HttpClient()
    async with raw_server(handler) as request:
        assert await ask(client, request) == b"ok"
        assert not (await broken(client, request)).head_seen
        assert connections == [1]


async def test_connection_that_ended_after_a_long_while_is_not_replaced(mock_clock: trio.testing.MockClock) -> None:
    """A server that was busy with the request for that long has seen it."""
    connections: list[int] = []

    async def handler(stream: trio.SocketStream, number: int) -> None:
        connections.append(number)
        await read_until(stream, b"\r\n\r\n")
        await stream.send_all(OK)
        await read_until(stream, b"\r\n\r\n")
        mock_clock.jump(5)

    client = H11HttpClient()
    async with raw_server(handler) as request:
        assert await ask(client, request) == b"ok"
        assert not (await broken(client, request)).head_seen
        assert connections == [1]


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"garbage\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"y" * 400_000,
        b"HTTP/1.1 100 Continue\r\n\r\n" * 100,
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
        b"HTTP/2.0 200 OK\r\n",
    ],
    ids=["nothing", "garbage", "bad length", "endless head", "endless interim answers", "switch", "cut"],
)
async def test_answer_that_is_none_breaks_the_exchange(answer: bytes) -> None:
    async def handler(stream: trio.SocketStream, _number: int) -> None:
        await read_until(stream, b"\r\n\r\n")
        try:
            await stream.send_all(answer)
        except trio.BrokenResourceError:
            return

    client = H11HttpClient(HttpClientLimits(head_max_bytes=4_096))
    async with raw_server(handler) as request:
        assert not (await broken(client, request)).head_seen


@pytest.mark.parametrize(
    ("body", "read"),
    [
        (b"Content-Length: 10\r\n\r\nabc", b"abc"),
        (b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n", b"abc"),
        (b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\nzz\r\n", b"abc"),
    ],
    ids=["length", "chunks", "bad chunk"],
)
async def test_cut_body_delivers_what_came_and_then_breaks(body: bytes, read: bytes) -> None:
    async def handler(stream: trio.SocketStream, _number: int) -> None:
        await read_until(stream, b"\r\n\r\n")
        await stream.send_all(b"HTTP/1.1 200 OK\r\n" + body)

    client = H11HttpClient()
    async with raw_server(handler) as request, client.exchange(request) as response:
        pieces = response.chunks()
        received = b""
        while len(received) < len(read):
            received += await anext(pieces)
        assert received == read
        with pytest.raises(HttpBroken) as caught:
            await anext(pieces)
        assert caught.value.head_seen


async def test_interim_answers_are_skipped_and_one_read_is_one_chunk() -> None:
    async def handler(stream: trio.SocketStream, _number: int) -> None:
        await read_until(stream, b"\r\n\r\n")
        await stream.send_all(b"HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n")
        await stream.send_all(
            b"HTTP/1.1 200 OK\r\nSet-Cookie: a\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n2\r\nbc\r\n0\r\n\r\n"
        )
        await stream.receive_some()

    client = H11HttpClient()
    async with raw_server(handler) as request:
        async with client.exchange(request) as response:
            assert (response.status, response.headers[0]) == (200, (b"set-cookie", b"a"))
            assert [piece async for piece in response.chunks()] == [b"abc"]
        assert client.idle_connections(request.host, request.port) == 1
        await client.aclose()


@pytest.mark.parametrize("tail", [b"Connection: close\r\n\r\nok", b"\r\nokHTTP/1.1 200 OK\r\n"])
async def test_connection_that_says_close_or_more_than_asked_is_not_kept(tail: bytes) -> None:
    async def handler(stream: trio.SocketStream, _number: int) -> None:
        await read_until(stream, b"\r\n\r\n")
        await stream.send_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n" + tail)
        await stream.receive_some()

    client = H11HttpClient()
    async with raw_server(handler) as request:
        assert await ask(client, request) == b"ok"
        assert client.idle_connections(request.host, request.port) == 0


async def test_answer_before_the_bodys_end_is_read_though_sending_fails() -> None:
    """The server answers, closes, and its kernel resets what still comes."""

    async def handler(stream: trio.SocketStream, _number: int) -> None:
        await read_until(stream, b"\r\n\r\n")
        await stream.send_all(b"HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\n\r\nno")

    client = H11HttpClient()
    async with raw_server(handler) as request:
        large = HttpRequest(method="POST", host=request.host, port=request.port, target="/", body=b"x" * 20_000_000)
        async with client.exchange(large) as response:
            assert response.status == 413
            assert await response.read(10) == b"no"


async def test_idle_connections_are_bounded_in_time(mock_clock: trio.testing.MockClock) -> None:
    async with served(serve_lean, echo) as server:
        client = H11HttpClient(HttpClientLimits(idle_timeout_ms=1_000))
        request = HttpRequest(method="GET", host=server.host, port=server.port, target="/")
        await ask(client, request)
        assert client.idle_connections(server.host, server.port) == 1
        mock_clock.jump(2)
        with pytest.raises(HttpUnreachable):
            await ask(client, HttpRequest(method="GET", host="127.0.0.1", port=1, target="/"))
        assert client.idle_connections(server.host, server.port) == 0


async def test_every_connection_notices_a_machine_that_is_gone_within_a_minute() -> None:
    async def handler(stream: trio.SocketStream, _: int) -> None:
        await read_until(stream, b"\r\n\r\n")

    async with raw_server(handler) as request:
        tcp = (await connect(request.host, request.port, security=None, head_limit_bytes=1_000))._socket
        assert tcp.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        told = {name: tcp.getsockopt(socket.IPPROTO_TCP, getattr(socket, name)) for name in NOTICING}
        assert told.pop("TCP_USER_TIMEOUT") <= 60_000
        assert told["TCP_KEEPIDLE"] + told["TCP_KEEPINTVL"] * told["TCP_KEEPCNT"] <= 60
        tcp.close()


async def test_request_that_is_none_is_the_callers_error() -> None:
    client = H11HttpClient()
    for bad in (
        HttpRequest(method="GET", host="127.0.0.1", port=1, target="/ x"),
        HttpRequest(method="GET", host="127.0.0.1", port=1, target="/", headers=((b"x", b"a\r\nb: c"),)),
        HttpRequest(method="G T", host="127.0.0.1", port=1, target="/"),
    ):
        with pytest.raises(ValueError, match="not a request"):
            await ask(client, bad)


async def test_host_that_is_no_name_is_unreachable() -> None:
    request = HttpRequest(method="GET", host="x" * 70 + ".invalid", port=1, target="/")
    with pytest.raises(HttpUnreachable):
        await ask(H11HttpClient(), request)


async def test_why_there_is_no_connection_is_said_in_the_systems_words() -> None:
    with pytest.raises(HttpUnreachable, match=r"no connection \(Connection refused\)"):
        await ask(H11HttpClient(), HttpRequest(method="GET", host="127.0.0.1", port=1, target="/"))


async def test_a_port_that_speaks_no_tls_is_told_as_such() -> None:
    async def handler(stream: trio.SocketStream, _: int) -> None:
        await stream.receive_some()
        await stream.send_all(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n")

    async with raw_server(handler) as request:
        client = H11HttpClient(ssl_context=ssl.create_default_context())
        with pytest.raises(HttpUnreachable, match="speaks no TLS: it is another port"):
            await ask(client, request)


async def test_cancellation_at_any_step_leaves_nothing_behind() -> None:
    """One slot only: a slot or a socket lost in any of the rounds would be missed by the next exchange. On a machine
    that is held up an exchange is over within fewer steps, so that more rounds are needed."""
    async with served(serve_lean, echo) as server:
        client = H11HttpClient(HttpClientLimits(exchanges_per_origin=1))
        request = HttpRequest(method="POST", host=server.host, port=server.port, target="/", body=b"x" * 100_000)
        cancelled: set[int] = set()
        for steps in itertools.cycle(range(80)):
            if steps == 0 and len(cancelled) > 10:
                break
            with trio.CancelScope() as scope:
                async with trio.open_nursery() as nursery:

                    async def count_down(steps: int = steps, scope: trio.CancelScope = scope) -> None:
                        for _ in range(steps):
                            await trio.lowlevel.checkpoint()
                        scope.cancel()

                    nursery.start_soon(count_down)
                    assert await ask(client, request) == request.body
                    nursery.cancel_scope.cancel()
            if scope.cancelled_caught:
                cancelled.add(steps)
        assert await ask(client, request) == request.body
        await client.aclose()
        while len(os.listdir("/proc/self/fd")) > server.open_files + 1:
            await trio.lowlevel.checkpoint()
        assert server.faults == []
