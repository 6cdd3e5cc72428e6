"""What every implementation of the ``http_client`` port must do.

The implementation under test brings a factory of clients and a way to serve an ASGI application to them:
over sockets for the real client, in memory for the simulated one. The programs of the served application
and of the client run in one loop, so each check waits for conditions and never for time.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Protocol

import attrs
import trio
import trio.testing

from lunanexa_ports.asgi import ABORT, AsgiApplication, Receive, Scope, Send
from lunanexa_ports.http_client import IDEMPOTENT, HttpBroken, HttpClient, HttpRequest, HttpUnreachable, TlsPeer

LIMIT_S = 30
LARGE_BYTES = 8 * 1024 * 1024


@attrs.frozen(kw_only=True)
class ServedApp:
    host: str
    port: int
    kill: Callable[[], None]
    """As the death of the server's process: its handlers stop, every connection ends, the port refuses."""
    tls: TlsPeer | None = None
    """Over mutual TLS."""

    def request(self, method: str = "GET", target: str = "/", **rest: Any) -> HttpRequest:
        request = HttpRequest(method=method, host=self.host, port=self.port, target=target, tls=self.tls)
        return attrs.evolve(request, **rest)


class MakeClient(Protocol):
    def __call__(self, *, exchanges_per_origin: int = 8) -> HttpClient: ...


class ServeApp(Protocol):
    def __call__(self, app: AsgiApplication, /) -> AbstractAsyncContextManager[ServedApp]: ...


@attrs.frozen
class Bench:
    """One client and what it needs to be tried."""

    make_client: MakeClient
    serve_app: ServeApp

    @asynccontextmanager
    async def serving(
        self, app: AsgiApplication, *, exchanges: int = 8
    ) -> AsyncGenerator[tuple[HttpClient, ServedApp]]:
        client = self.make_client(exchanges_per_origin=exchanges)
        async with self.serve_app(app) as served:
            try:
                yield client, served
            finally:
                with trio.move_on_after(1, shield=True):
                    await client.aclose()


async def check_unary(bench: Bench) -> None:
    """Method, target and headers arrive; status, body and repeated headers come back in order."""
    seen: list[Scope] = []

    async def app(scope: Scope, _receive: Receive, send: Send) -> None:
        seen.append(scope)
        headers = [(b"x-one", b"1"), (b"set-cookie", b"a=1"), (b"set-cookie", b"b=2")]
        await answer(send, 207, b"hello", headers)

    async with bench.serving(app) as (client, served):
        request = served.request(target="/a%20b/c?x=y&x=z", headers=((b"x-in", b"1"), (b"x-in", b"2")))
        async with client.exchange(request) as response:
            assert response.status == 207
            assert await response.read(1_000) == b"hello"
        assert [value for name, value in response.headers if name == b"set-cookie"] == [b"a=1", b"b=2"]
        assert (b"x-one", b"1") in response.headers
    (scope,) = seen
    assert (scope["type"], scope["method"], scope["path"]) == ("http", "GET", "/a b/c")
    assert scope["raw_path"] == b"/a%20b/c"
    assert scope["query_string"] == b"x=y&x=z"
    assert [value for name, value in scope["headers"] if name == b"x-in"] == [b"1", b"2"]
    assert dict(scope["headers"])[b"host"] == f"{served.host}:{served.port}".encode()


async def check_request_body(bench: Bench) -> None:
    """Bodies of no, few and many bytes arrive whole, also in parts, and their length is announced."""
    lengths: list[bytes | None] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        lengths.append(dict(scope["headers"]).get(b"content-length"))
        await answer(send, 200, await _body(receive))

    async with bench.serving(app) as (client, served):
        for body in (b"", b"few", bytes(range(256)) * (LARGE_BYTES // 256)):
            async with client.exchange(served.request("POST", body=body)) as response:
                assert await response.read(len(body) or 1) == body
        large = memoryview(bytes(range(256)) * (LARGE_BYTES // 256))
        for more in ((b"f", b"", b"ew"), (large[:1_000], large[1_000:])):
            body = b"".join((b"a ", *more))
            async with client.exchange(served.request("POST", body=b"a ", more=more)) as response:
                assert await response.read(len(body)) == body
    assert lengths == [b"0", b"3", b"%d" % LARGE_BYTES, b"5", b"%d" % (LARGE_BYTES + 2)]


async def check_stream_arrives_piece_by_piece(bench: Bench) -> None:
    """Each piece is seen before the next one is sent: nothing is held back. A response may also have no body."""
    taken, give = trio.open_memory_channel[None](0)

    async def app(scope: Scope, _receive: Receive, send: Send) -> None:
        if scope["path"] == "/empty":
            await answer(send, 204, b"")
            return
        await start_answer(send, 200)
        for index in range(5):
            await send({"type": "http.response.body", "body": b"piece %d" % index, "more_body": True})
            await give.receive()
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async with bench.serving(app) as (client, served):
        pieces: list[bytes] = []
        async with client.exchange(served.request()) as response:
            async for piece in response.chunks():
                pieces.append(piece)
                await taken.send(None)
        assert pieces == [b"piece %d" % index for index in range(5)]
        async with client.exchange(served.request(target="/empty")) as response:
            assert [piece async for piece in response.chunks()] == []


async def check_read_is_bounded(bench: Bench) -> None:
    async def app(_scope: Scope, _receive: Receive, send: Send) -> None:
        await answer(send, 200, b"x" * 1_001)

    async with bench.serving(app) as (client, served), client.exchange(served.request()) as response:
        broken = await _broken(response.read(1_000))
        assert broken.head_seen


async def check_early_answer(bench: Bench) -> None:
    """A server that answers before it has read the body is heard."""

    async def app(_scope: Scope, _receive: Receive, send: Send) -> None:
        await answer(send, 413, b"too large")

    async with bench.serving(app) as (client, served):
        async with client.exchange(served.request("POST", body=b"x" * LARGE_BYTES)) as response:
            assert response.status == 413
            assert await response.read(100) == b"too large"
        async with client.exchange(served.request()) as response:
            assert response.status == 413, "the client goes on"


async def check_cut_body(bench: Bench) -> None:
    served_one: list[ServedApp] = []

    async def app(_scope: Scope, _receive: Receive, send: Send) -> None:
        await start_answer(send, 200)
        await send({"type": "http.response.body", "body": b"some", "more_body": True})
        await trio.sleep_forever()

    async with bench.serving(app) as (client, served):
        served_one.append(served)
        async with client.exchange(served.request()) as response:
            pieces = response.chunks()
            assert await anext(pieces) == b"some"
            served.kill()
            broken = await _broken(anext(pieces))
            assert broken.head_seen


async def check_cut_before_head(bench: Bench) -> None:
    """Also on a connection that was used before, whose replacement is refused: the request was sent once, so
    it must not pass for unseen."""
    asked = trio.Event()

    async def app(scope: Scope, _receive: Receive, send: Send) -> None:
        if scope["path"] == "/first":
            await answer(send, 200, b"")
            return
        asked.set()
        await trio.sleep_forever()

    for used_before in (False, True):
        asked = trio.Event()
        async with bench.serving(app) as (client, served):
            if used_before:
                async with client.exchange(served.request(target="/first")):
                    pass

            async def kill_when_asked(served: ServedApp = served, asked: trio.Event = asked) -> None:
                await asked.wait()
                served.kill()

            async with trio.open_nursery() as nursery:
                nursery.start_soon(kill_when_asked)
                broken = await _broken(enter(client, served.request()))
                assert not broken.head_seen


async def check_used_connection_that_ends(bench: Bench) -> None:
    """The server ends a connection that was used before, without a word. Who may have begun to work on the request
    is not given it again, unless doing it twice is the same as doing it once. Shown by servers that can abort."""
    asked: list[Scope] = []
    able = False

    async def app(scope: Scope, _receive: Receive, send: Send) -> None:
        nonlocal able
        able = ABORT in scope["extensions"]
        if scope["path"] == "/first":
            await answer(send, 200, b"")
            return
        asked.append(scope)
        if len(asked) == 1:
            await send({"type": ABORT})
        else:
            await answer(send, 200, b"again")

    for method in ("POST", "PATCH", "GET", "PUT"):
        asked.clear()
        async with bench.serving(app) as (client, served):
            async with client.exchange(served.request(target="/first")) as response:
                _ = await response.read(0)
            if not able:
                return
            request = served.request(method, body=b"" if method == "GET" else b"x")
            if method in IDEMPOTENT:
                async with client.exchange(request) as response:
                    assert await response.read(100) == b"again"
                assert len({scope["client"] for scope in asked}) == 2
            else:
                broken = await _broken(enter(client, request))
                assert not broken.head_seen
                assert len(asked) == 1


async def check_refused(bench: Bench) -> None:
    async def app(_scope: Scope, _receive: Receive, send: Send) -> None:
        await answer(send, 200, b"")

    async with bench.serving(app) as (client, served):
        served.kill()
        try:
            await enter(client, served.request())
        except HttpUnreachable:
            return
    raise AssertionError("a refused connection is HttpUnreachable")


async def check_head_timeout(bench: Bench) -> None:
    """It ends the exchange, and the server sees the departure."""
    left = trio.Event()
    asked = 0

    async def app(_scope: Scope, receive: Receive, _send: Send) -> None:
        nonlocal asked
        asked += 1
        await until_disconnect(receive)
        left.set()

    async with bench.serving(app) as (client, served):
        broken = await _broken(enter(client, served.request(head_timeout_ms=20)))
        assert not broken.head_seen
        await left.wait()
        assert asked == 1, "not tried again"


async def check_cancel_is_seen(bench: Bench) -> None:
    """In the middle of a body, and before the head."""
    left: list[trio.Event] = []
    asked = trio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        asked.set()
        if scope["path"] == "/stream":
            await start_answer(send, 200)
            await send({"type": "http.response.body", "body": b"some", "more_body": True})
        await until_disconnect(receive)
        left[-1].set()

    async with bench.serving(app) as (client, served):
        left.append(trio.Event())
        with trio.CancelScope() as scope:
            async with client.exchange(served.request(target="/stream")) as response:
                async for _ in response.chunks():
                    scope.cancel()
        assert scope.cancelled_caught
        await left[-1].wait()

        left.append(trio.Event())
        asked = trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(enter, client, served.request())
            await asked.wait()
            nursery.cancel_scope.cancel()
        await left[-1].wait()


async def check_leaving_early_is_seen(bench: Bench) -> None:
    """Leaving the context before the body's end is a departure too, also by an error."""
    left = trio.Event()

    async def app(_scope: Scope, receive: Receive, send: Send) -> None:
        await start_answer(send, 200)
        await send({"type": "http.response.body", "body": b"some", "more_body": True})
        await until_disconnect(receive)
        left.set()

    async with bench.serving(app) as (client, served):
        try:
            async with client.exchange(served.request()):
                raise LookupError
        except LookupError:
            await left.wait()


async def check_reuse(bench: Bench) -> None:
    """A connection whose exchange was read to its end carries the next one; one that was left early does not."""
    clients: list[object] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        clients.append(scope["client"])
        _ = await _body(receive)
        await start_answer(send, 200)
        await send({"type": "http.response.body", "body": b"x", "more_body": True})
        if scope["path"] == "/endless":
            await until_disconnect(receive)
        else:
            await send({"type": "http.response.body", "body": b"y", "more_body": False})

    async with bench.serving(app) as (client, served):
        for target in ("/", "/", "/endless", "/"):
            async with client.exchange(served.request("POST", target, body=b"x")) as response:
                if target == "/":
                    _ = await response.read(10)
    first, second, third, fourth = clients
    assert first == second == third
    assert fourth != third


async def check_limit_counts_exchanges(bench: Bench) -> None:
    """Over the limit a caller waits, also for streams, and goes on when one ends; a waiting one can be cancelled."""
    running = 0
    most = 0
    finish = trio.Event()

    async def app(_scope: Scope, _receive: Receive, send: Send) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await start_answer(send, 200)
        await send({"type": "http.response.body", "body": b"x", "more_body": True})
        await finish.wait()
        running -= 1
        await send({"type": "http.response.body", "body": b"y", "more_body": False})

    bodies: list[bytes] = []
    began, begins = trio.open_memory_channel[None](10)

    async with bench.serving(app, exchanges=2) as (client, served):

        async def ask() -> None:
            async with client.exchange(served.request()) as response:
                began.send_nowait(None)
                bodies.append(await response.read(10))

        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(ask)
            await begins.receive()
            await begins.receive()
            with trio.CancelScope() as waiting:
                async with trio.open_nursery() as inner:
                    inner.start_soon(enter, client, served.request())
                    await trio.testing.wait_all_tasks_blocked()
                    waiting.cancel()
            finish.set()
    assert bodies == [b"xy"] * 5
    assert most == 2


async def check_two_exchanges_of_one_task(bench: Bench) -> None:
    async def app(scope: Scope, _receive: Receive, send: Send) -> None:
        await answer(send, 200, scope["path"].encode())

    async with (
        bench.serving(app) as (client, served),
        client.exchange(served.request(target="/a")) as first,
        client.exchange(served.request(target="/b")) as second,
    ):
        assert await second.read(10) == b"/b"
        assert await first.read(10) == b"/a"


async def check_close(bench: Bench) -> None:
    """An exchange in progress ends broken; a later one finds no connection."""

    async def app(_scope: Scope, receive: Receive, send: Send) -> None:
        await start_answer(send, 200)
        await send({"type": "http.response.body", "body": b"some", "more_body": True})
        await until_disconnect(receive)

    async with bench.serving(app) as (client, served):
        async with client.exchange(served.request()) as response:
            pieces = response.chunks()
            assert await anext(pieces) == b"some"
            async with trio.open_nursery() as nursery:
                nursery.start_soon(client.aclose)
                broken = await _broken(anext(pieces))
                assert broken.head_seen
        try:
            await enter(client, served.request())
        except HttpUnreachable:
            return
    raise AssertionError("a closed client is HttpUnreachable")


HTTP_CLIENT_CHECKS = (
    check_unary,
    check_request_body,
    check_stream_arrives_piece_by_piece,
    check_read_is_bounded,
    check_early_answer,
    check_cut_body,
    check_cut_before_head,
    check_used_connection_that_ends,
    check_refused,
    check_head_timeout,
    check_cancel_is_seen,
    check_leaving_early_is_seen,
    check_reuse,
    check_limit_counts_exchanges,
    check_two_exchanges_of_one_task,
    check_close,
)


async def check_http_client(make_client: MakeClient, serve_app: ServeApp) -> None:
    """Runs the whole suite."""
    bench = Bench(make_client, serve_app)
    for check in HTTP_CLIENT_CHECKS:
        with trio.fail_after(LIMIT_S):
            await check(bench)


async def start_answer(send: Send, status: int, headers: list[tuple[bytes, bytes]] | None = None) -> None:
    await send({"type": "http.response.start", "status": status, "headers": headers or []})


async def answer(send: Send, status: int, body: bytes, headers: list[tuple[bytes, bytes]] | None = None) -> None:
    await start_answer(send, status, headers)
    await send({"type": "http.response.body", "body": body, "more_body": False})


async def _body(receive: Receive) -> bytes:
    parts: list[bytes] = []
    while True:
        message = await receive()
        assert message["type"] == "http.request"
        parts.append(message.get("body", b""))
        if not message.get("more_body", False):
            return b"".join(parts)


async def until_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def enter(client: HttpClient, request: HttpRequest) -> None:
    async with client.exchange(request):
        pass


async def _broken(awaitable: Awaitable[object]) -> HttpBroken:
    try:
        await awaitable
    except HttpBroken as broken:
        return broken
    raise AssertionError("HttpBroken was to be raised")
