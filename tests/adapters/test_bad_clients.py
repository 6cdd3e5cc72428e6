"""Clients that send too much, too slowly, or do not read: the real server over the whole edge."""

import contextlib
import json
import socket
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import attrs
import pytest
import trio
from structlog.testing import capture_logs
from trio.testing import MockClock

from lunanexa_adapters.asgi.errors import render_error
from lunanexa_adapters.http_server.lean import serve_lean
from lunanexa_adapters.http_server.limits import ServerLimits
from lunanexa_adapters.http_server.listeners import addresses, open_listeners
from lunanexa_adapters.http_server.serve import serve_http
from lunanexa_core.openai.request_rules import request_rules
from lunanexa_core.outcomes import Outcome
from lunanexa_ports.asgi import CLOSED_BECAUSE, SLOW_CONSUMER, AsgiApplication, Receive, Scope, Send
from tests.adapters import http_tools
from tests.adapters.asgi_driver import Client
from tests.adapters.edge import JSON, KEY, LIMITS, OPERATOR_KEY, Edge, edge
from tests.adapters.http_tools import parse_answer, read_to_end, read_until
from tests.apps.gateway_fleet import DONE, delta

pytestmark = pytest.mark.thorough

CHAT = json.dumps({"model": "tiny", "messages": [{"role": "user", "content": "Once"}], "stream": True}).encode()
HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: " + KEY[1] + b"\r\n"
SHAPE = {"message", "type", "param", "code", "retryable", "request_id"}
PIECE = b"x" * 65_536
FORM = (b"content-type", b"multipart/form-data; boundary=x")
LARGE_BYTES = 200 * 1024 * 1024
LIMITED = ServerLimits(head_timeout_ms=1_000, body_timeout_ms=1_000, write_timeout_ms=1_000, linger_ms=1_000)
ON_THE_WAY_BYTES = 32 * 1024 * 1024
"""More than the two kernels' socket buffers and our windows can hold together."""


@pytest.fixture
def clock() -> MockClock:
    """Virtual time goes on when no socket has moved for so long: deadlines of minutes are over at once."""
    return MockClock(autojump_threshold=0.01)


@attrs.frozen
class Served:
    edge: Edge
    address: tuple[str, int]

    async def connect(self, *, receive_bytes: int | None = None) -> trio.SocketStream:
        sock = trio.socket.socket()
        if receive_bytes is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        await sock.connect(self.address)
        return trio.SocketStream(sock)


@asynccontextmanager
async def served(clock: MockClock, *engines: AsgiApplication) -> AsyncIterator[Served]:
    faults: list[BaseException] = []
    async with edge(clock, *engines) as one, trio.open_nursery() as nursery:
        listeners = await open_listeners("127.0.0.1", 0)
        await nursery.start(
            lambda task_status: serve_http(
                one.root,
                listeners,
                render_error=render_error,
                on_fault=faults.append,
                limits=LIMITED,
                task_status=task_status,
            )
        )
        yield Served(one, addresses(listeners)[0])
        nursery.cancel_scope.cancel("the test is over")
    assert not faults


def told(raw: bytes, status: int, code: str) -> None:
    """One error in the one shape, and nothing else."""
    found, headers, body = parse_answer(raw)
    error = json.loads(body)["error"]
    assert (found, error["code"], set(error)) == (status, code, SHAPE)
    assert headers[b"content-type"] == b"application/json"
    assert headers[b"x-should-retry"] == b"false"
    assert headers[b"content-length"] == str(len(body)).encode()
    assert headers[b"connection"] == b"close"


@pytest.mark.parametrize("begun", [b"GET /v1/mod", b"GET /health HTTP/1.1\r\nhost: x\r\nx-a: "])
async def test_a_slow_head_is_a_408(clock: MockClock, begun: bytes) -> None:
    async with served(clock) as server, await server.connect() as stream:
        await stream.send_all(begun)
        told(await read_to_end(stream), 408, "request_timeout")


@pytest.mark.parametrize(
    "head",
    [
        HEAD + b"content-length: 4000\r\n\r\n{",
        HEAD + b"transfer-encoding: chunked\r\n\r\n1\r\n{\r\n",
        b"PUT /admin/v1/deployments/d1 HTTP/1.1\r\nhost: x\r\nauthorization: "
        + OPERATOR_KEY[1]
        + b"\r\ncontent-length: 9\r\n\r\n{",
    ],
)
async def test_a_slow_body_is_a_408(clock: MockClock, head: bytes) -> None:
    async with served(clock) as server, await server.connect() as stream:
        await stream.send_all(head)
        told(await read_to_end(stream), 408, "request_timeout")
        assert not server.edge.world.receipts()


@pytest.mark.parametrize("path", [b"/v1/chat/completions", b"/v1/embeddings", b"/admin/v1/deployments/d1"])
async def test_a_far_too_long_body_is_a_413_and_kept_nowhere(clock: MockClock, path: bytes) -> None:
    operator = path.startswith(b"/admin")
    method, secret = (b"PUT", OPERATOR_KEY[1]) if operator else (b"POST", KEY[1])
    head = b"%b %b HTTP/1.1\r\nhost: x\r\nauthorization: %b\r\ntransfer-encoding: chunked\r\n\r\n"
    async with served(clock) as server, await server.connect() as stream, trio.open_nursery() as nursery:

        async def send() -> None:
            await stream.send_all(head % (method, path, secret))
            piece = b"%x\r\n%b\r\n" % (len(PIECE), PIECE)
            with contextlib.suppress(trio.BrokenResourceError):
                for _ in range(LARGE_BYTES // len(PIECE)):
                    await stream.send_all(piece)

        tracemalloc.start()
        try:
            nursery.start_soon(send)
            told(await read_to_end(stream), 413, "payload_too_large")
            _, peak_bytes = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert peak_bytes < ON_THE_WAY_BYTES


@pytest.mark.slow
async def test_of_a_body_over_the_limit_a_little_is_taken_and_nothing_kept(autojump_clock: MockClock) -> None:
    async with edge(autojump_clock) as one:
        for dialect, limit_bytes in LIMITS.items():
            path, kind = dialect.path, FORM if request_rules(dialect).form else JSON
            pieces = [b" " * 1_000] * 6_000
            client = await Client("POST", path, pieces, [KEY, kind]).call(one.root)
            assert (client.status, client.error()["code"]) == (413, "payload_too_large")
            assert str(limit_bytes) in client.error()["message"]
            assert client.read_bytes < 5_000_000
            declared = (b"content-length", b"6000000")
            client = await Client("POST", path, pieces, [KEY, kind, declared]).call(one.root)
            assert client.status == 413


class Torrent(AsgiApplication):
    """An engine that sends a very long stream as fast as it goes."""

    def __init__(self) -> None:
        self.sent_bytes = 0
        self.ended = trio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send, /) -> None:
        while (await receive()).get("more_body"):
            pass
        try:
            await send(
                {"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]}
            )
            event = delta("x" * 32_000)
            while self.sent_bytes < LARGE_BYTES:
                await send({"type": "http.response.body", "body": event, "more_body": True})
                self.sent_bytes += len(event)
            await send({"type": "http.response.body", "body": DONE, "more_body": False})
        except OSError:
            pass
        finally:
            self.ended.set()


async def test_a_reader_that_stalls_is_closed_as_a_slow_consumer(clock: MockClock) -> None:
    torrent = Torrent()
    with capture_logs() as logs:
        async with served(clock, torrent) as server, await server.connect(receive_bytes=65_536) as stream:
            await stream.send_all(HEAD + b"content-length: %d\r\n\r\n%b" % (len(CHAT), CHAT))
            await read_until(stream, b"data: ")
            # It reads no more.
            await torrent.ended.wait()
            world = server.edge.world
            with trio.fail_after(60):
                while not world.receipts():
                    await trio.sleep(0.1)
            settlement = world.receipt().settlement
            assert (settlement.outcome, settlement.detail) == (Outcome.CANCELLED_BY_CALLER, "slow_consumer")
            assert settlement.usage.output_tokens > 0
            assert 0 < torrent.sent_bytes < ON_THE_WAY_BYTES
            assert world.at_rest()
            assert DONE not in await read_to_end(stream)
    (line,) = [line for line in logs if line["event"] == "request"]
    assert (line["outcome"], line["detail"]) == ("cancelled_by_caller", "slow_consumer")


async def test_a_client_that_leaves_is_no_slow_consumer(clock: MockClock) -> None:
    torrent = Torrent()
    async with served(clock, torrent) as server:
        async with await server.connect() as stream:
            await stream.send_all(HEAD + b"content-length: %d\r\n\r\n%b" % (len(CHAT), CHAT))
            await read_until(stream, b"data: ")
        await torrent.ended.wait()
        with trio.fail_after(60):
            while not server.edge.world.receipts():
                await trio.sleep(0.1)
        settlement = server.edge.world.receipt().settlement
        assert (settlement.outcome, settlement.detail) == (Outcome.CANCELLED_BY_CALLER, None)


@pytest.mark.parametrize("serve", [serve_http, serve_lean])
async def test_a_send_after_a_departure_is_no_fault_even_within_a_nursery(serve: Any) -> None:
    finished = trio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        while (await receive())["type"] != "http.disconnect":
            pass
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(send, {"type": "http.response.start", "status": 200, "headers": []})
                nursery.start_soon(trio.sleep_forever)
        finally:
            finished.set()

    async with http_tools.served(serve, app) as server:
        async with await server.connect() as stream:
            await stream.send_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        await finished.wait()
        async with await server.connect() as stream:
            await stream.send_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        assert not server.faults


@pytest.mark.parametrize("serve", [serve_http, serve_lean])
async def test_the_application_is_told_why_the_server_closed(serve: Any) -> None:
    told_once = trio.Event()
    reasons: list[object] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        while (await receive()).get("more_body"):
            pass
        with contextlib.suppress(OSError):
            await send({"type": "http.response.start", "status": 200, "headers": []})
            while True:
                await send({"type": "http.response.body", "body": PIECE, "more_body": True})
        reasons.append((await receive()).get(CLOSED_BECAUSE))
        told_once.set()

    async with http_tools.served(serve, app, ServerLimits(write_timeout_ms=100)) as server:
        stalled = await server.connect()
        await stalled.send_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        await told_once.wait()
    told_once = trio.Event()
    async with http_tools.served(serve, app) as server:
        async with await server.connect() as leaving:
            await leaving.send_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
            await read_until(leaving, PIECE)
        await told_once.wait()
    assert reasons == [SLOW_CONSUMER, None]
