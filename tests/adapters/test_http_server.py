"""What both servers promise about one connection: deadlines, departures, faults, framing."""

from collections.abc import Callable
from typing import Any

import pytest
import trio
import trio.testing

from lunanexa_adapters.http_server.answers import ClientGone
from lunanexa_adapters.http_server.lean import serve_lean
from lunanexa_adapters.http_server.limits import ServerLimits
from lunanexa_adapters.http_server.serve import serve_http
from lunanexa_ports.asgi import Receive, Scope, Send
from tests.adapters.http_tools import (
    answer,
    echo,
    has_error_shape,
    parse_answer,
    read_body,
    read_to_end,
    read_until,
    served,
    talk,
    until_disconnect,
)

Serve = Callable[..., Any]
both = pytest.mark.parametrize("serve", [serve_http, serve_lean])

GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
GET_AND_CLOSE = b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
PIECE = b"x" * 65_536


@both
async def test_slow_head_is_answered_408(serve: Serve) -> None:
    async with served(serve, echo, ServerLimits(head_timeout_ms=50, linger_ms=50)) as server:
        status, headers, body = parse_answer(await talk(server, b"GET / HTTP/1.1\r\nHo"))
        assert status == 408
        assert has_error_shape(body, 408)
        assert headers[b"connection"] == b"close"


@both
async def test_silent_connection_ends_without_a_word(serve: Serve) -> None:
    async with served(serve, echo, ServerLimits(head_timeout_ms=50)) as server:
        assert await talk(server) == b""


@both
async def test_slow_body_is_answered_408_and_the_application_is_told(serve: Serve) -> None:
    told = trio.Event()

    async def app(scope: Scope, receive: Receive, _send: Send) -> None:
        if scope["type"] == "http":
            await until_disconnect(receive)
            told.set()

    async with served(serve, app, ServerLimits(body_timeout_ms=50, linger_ms=50)) as server:
        raw = await talk(server, b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nab")
        status, _, body = parse_answer(raw)
        assert status == 408
        assert has_error_shape(body, 408)
        await told.wait()
        assert server.faults == []


@both
async def test_trickling_body_is_answered_408(serve: Serve) -> None:
    """Each wait is short; their sum is not."""
    limits = ServerLimits(body_timeout_ms=200, body_bytes_per_s=10**9, linger_ms=50)
    async with served(serve, echo, limits) as server:
        stream = await server.connect()
        await stream.send_all(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n")
        async with trio.open_nursery() as nursery:

            async def trickle() -> None:
                try:
                    while True:
                        await stream.send_all(b"x")
                        await trio.sleep(0.01)
                except trio.BrokenResourceError:
                    return

            nursery.start_soon(trickle)
            assert (await read_until(stream, b"}}")).startswith(b"HTTP/1.1 408 ")
            nursery.cancel_scope.cancel()


@both
async def test_time_in_which_the_application_does_not_read_is_not_the_clients(
    serve: Serve, mock_clock: trio.testing.MockClock
) -> None:
    """The body is larger than what is buffered, and waits for longer than a body's time."""
    asked, go_on = trio.Event(), trio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            asked.set()
            await go_on.wait()
            await answer(send, 200, b"%d" % len(await read_body(receive)))

    limits = ServerLimits(body_timeout_ms=500, body_bytes_per_s=10**9)
    async with served(serve, app, limits) as server, trio.open_nursery() as nursery:

        async def release() -> None:
            await asked.wait()
            await trio.testing.wait_all_tasks_blocked(0.05)  # every buffer between the two is full
            mock_clock.jump(10)
            await trio.testing.wait_all_tasks_blocked(0.05)
            go_on.set()

        nursery.start_soon(release)
        head = b"POST / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % (200 * len(PIECE))
        status, _, body = parse_answer(await talk(server, head, *[PIECE] * 200))
        assert status == 200
        assert b"%d" % (200 * len(PIECE)) in body


@both
@pytest.mark.parametrize("complete", [True, False])
async def test_too_large_head_is_answered_431(serve: Serve, complete: bool) -> None:
    async with served(serve, echo, ServerLimits(head_max_bytes=4_096, linger_ms=50)) as server:
        head = b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"y" * 5_000 + (b"\r\n\r\n" if complete else b"")
        status, _, body = parse_answer(await talk(server, head))
        assert status == 431
        assert has_error_shape(body, 431)


@both
@pytest.mark.parametrize("framing", [b"Content-Length: 2000000", b"Transfer-Encoding: chunked"])
async def test_body_over_the_servers_limit_is_answered_413(serve: Serve, framing: bytes) -> None:
    async with served(serve, echo, ServerLimits(body_max_bytes=1_000, linger_ms=200)) as server:
        head = b"POST / HTTP/1.1\r\nHost: x\r\n" + framing + b"\r\n\r\n"
        status, _, body = parse_answer(await talk(server, head, b"7d0\r\n" + b"x" * 2_000 + b"\r\n"))
        assert status == 413
        assert has_error_shape(body, 413)
        assert server.faults == []


@both
async def test_answer_while_every_buffer_of_the_body_is_full(serve: Serve) -> None:
    """The task that reads waits for room that nobody will make: the end of the answer must free it."""

    async def app(scope: Scope, _receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await trio.testing.wait_all_tasks_blocked(0.05)
            await answer(send, 413, b"too large")

    async with served(serve, app, ServerLimits(linger_ms=300, grace_ms=60_000)) as server:
        head = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % (500 * len(PIECE))
        status, headers, body = parse_answer(await talk(server, head, *[PIECE] * 500))
        assert (status, headers[b"connection"]) == (413, b"close")
        assert b"too large" in body
        server.stop.set()
        await server.ended.wait()
        assert server.faults == []


@both
async def test_stuck_reader_is_freed(serve: Serve) -> None:
    freed = trio.Event()

    async def app(scope: Scope, _receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        await send({"type": "http.response.start", "status": 200, "headers": []})
        try:
            while True:
                await send({"type": "http.response.body", "body": PIECE, "more_body": True})
        except ClientGone:
            freed.set()
            raise

    async with served(serve, app, ServerLimits(write_timeout_ms=100)) as server:
        stream = await server.connect()
        await stream.send_all(GET)
        await freed.wait()
        server.stop.set()
        await server.ended.wait()
        assert server.faults == []
        await stream.aclose()


@both
async def test_departure_is_delivered_and_later_sends_fail(serve: Serve) -> None:
    seen: list[str] = []
    done = trio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        await until_disconnect(receive)
        seen.append((await receive())["type"])
        try:
            await answer(send, 200, b"too late")
        except OSError:
            seen.append("refused")
        done.set()

    async with served(serve, app) as server:
        stream = await server.connect()
        await stream.send_all(GET)
        await stream.aclose()
        await done.wait()
        assert seen == ["http.disconnect", "refused"]
        assert server.faults == []


@both
async def test_departure_is_seen_behind_a_pipelined_request(serve: Serve) -> None:
    told = trio.Event()

    async def app(scope: Scope, receive: Receive, _send: Send) -> None:
        if scope["type"] == "http":
            await until_disconnect(receive)
            told.set()

    async with served(serve, app) as server:
        stream = await server.connect()
        await stream.send_all(GET + GET)
        await stream.aclose()
        await told.wait()


@both
async def test_pipelined_requests_are_answered_in_order(serve: Serve) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await read_body(receive)
            await answer(send, 200, b"<" + scope["raw_path"] + b">")

    requests = b"".join(b"GET /%d HTTP/1.1\r\nHost: x\r\n\r\n" % index for index in range(20))
    async with served(serve, app) as server:
        raw = await talk(server, requests + GET_AND_CLOSE)
        assert [piece.partition(b">")[0] for piece in raw.split(b"<")[1:]] == [
            *(b"/%d" % index for index in range(20)),
            b"/",
        ]


@both
@pytest.mark.parametrize("wait_first", [True, False])
async def test_idle_connection_ends_without_a_word(serve: Serve, wait_first: bool) -> None:
    async with served(serve, echo, ServerLimits(idle_timeout_ms=50)) as server:
        stream = await server.connect()
        for _ in range(3 if wait_first else 1):
            await stream.send_all(GET)
            await read_until(stream, b"0\r\n\r\n")
        assert await read_to_end(stream) == b""


@both
async def test_failed_handler_is_answered_500_and_reported(serve: Serve) -> None:
    async def app(scope: Scope, _receive: Receive, _send: Send) -> None:
        if scope["type"] == "http":
            raise LookupError("a bug")

    async with served(serve, app) as server:
        for count in (1, 2):
            status, _, body = parse_answer(await talk(server, GET_AND_CLOSE))
            assert status == 500
            assert has_error_shape(body, 500)
            assert [type(fault) for fault in server.faults] == [LookupError] * count


@both
async def test_handler_that_fails_midway_cuts_the_response(serve: Serve) -> None:
    async def app(scope: Scope, _receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"some", "more_body": True})
            raise LookupError("a bug")

    async with served(serve, app) as server:
        raw = await talk(server, GET)
        assert raw.endswith(b"4\r\nsome\r\n")
        assert len(server.faults) == 1
        stream = await server.connect()
        await stream.send_all(b"GET / HTTP/1.0\r\n\r\n")
        with pytest.raises(trio.BrokenResourceError):  # an orderly end would pass for the whole of an HTTP/1.0 body
            await read_until(stream, b"never")


@both
async def test_connections_over_the_limit_are_answered_503(serve: Serve) -> None:
    async with served(serve, echo, ServerLimits(max_connections=1)) as server:
        first = await server.connect()
        await first.send_all(GET)
        await read_until(first, b"0\r\n\r\n")
        status, _, body = parse_answer(await talk(server, GET))
        assert status == 503
        assert has_error_shape(body, 503)
        await first.send_all(GET_AND_CLOSE)
        await read_to_end(first)


@both
async def test_body_is_asked_for_with_100_continue(serve: Serve) -> None:
    async with served(serve, echo) as server:
        stream = await server.connect()
        await stream.send_all(
            b"POST / HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nConnection: close\r\nContent-Length: 4\r\n\r\n"
        )
        assert (await read_until(stream, b"\r\n\r\n")).startswith(b"HTTP/1.1 100 ")
        await stream.send_all(b"ping")
        assert b"ping" in await read_to_end(stream)


@both
async def test_head_request_and_empty_answers_have_no_body(serve: Serve) -> None:
    async def app(scope: Scope, _receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await answer(send, 204 if scope["path"] == "/204" else 200, b"unwanted", (b"content-length", b"8"))

    async with served(serve, app, ServerLimits(head_max_bytes=4_096, linger_ms=50)) as server:
        for request in (b"HEAD / HTTP/1.1", b"GET /204 HTTP/1.1", b"HEAD /large HTTP/1.1\r\nX: " + b"y" * 5_000):
            raw = await talk(server, request + b"\r\nHost: x\r\nConnection: close\r\n\r\n")
            assert raw.endswith(b"\r\n\r\n")
        assert server.faults == []


@both
async def test_one_send_for_an_answer_at_hand_and_none_is_held_back(serve: Serve) -> None:
    go_on = trio.Event()

    async def app(scope: Scope, _receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] == "/":
            await answer(send, 200, b"all", (b"content-length", b"3"))
        elif scope["type"] == "http":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await go_on.wait()
            await send({"type": "http.response.body", "body": b"late", "more_body": False})

    async with served(serve, app) as server:
        stream = await server.connect()
        await stream.send_all(GET)
        assert bytes(await stream.receive_some()).endswith(b"\r\n\r\nall")
        await stream.send_all(GET.replace(b"/ ", b"/late "))
        await read_until(stream, b"\r\n\r\n")  # the head is there though the body waits
        go_on.set()
        assert b"late" in await read_until(stream, b"0\r\n\r\n")
        await stream.aclose()
