"""Mutual TLS under attack: whatever is sent at a listener, the next client is served.

Handshakes are the same code for both servers; what comes after them is tried on each.
"""

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from lunanexa_adapters.crypto.credentials import TlsCredentials
from lunanexa_adapters.http_client.http_client import H11HttpClient
from lunanexa_adapters.http_server.lean import serve_lean
from lunanexa_adapters.http_server.limits import ServerLimits
from lunanexa_adapters.http_server.serve import serve_http
from lunanexa_ports.asgi import TLS, Message, Receive, Scope, Send
from lunanexa_ports.conformance.http_client_tls import CLIENT, SERVER
from lunanexa_ports.errors import PortUnavailable
from lunanexa_ports.http_client import HttpRequest, TlsPeer
from tests.adapters.http_tools import Server, answer, has_error_shape, parse_answer, read_body, read_to_end
from tests.adapters.tls_tools import Serve, fleet_in, party, served_tls

pytestmark = pytest.mark.thorough

both = pytest.mark.parametrize("serve", [serve_lean, serve_http])
LIMITS = ServerLimits(
    tls_handshake_timeout_ms=1_000,
    head_timeout_ms=1_000,
    body_timeout_ms=1_000,
    write_timeout_ms=1_000,
    linger_ms=1_000,
    head_max_bytes=4_096,
    body_max_bytes=65_536,
)
HEAD = b"POST / HTTP/1.1\r\nhost: x\r\n"


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] != "lifespan":
        body = await read_body(receive)
        peer = scope["extensions"][TLS]["peer"]
        await answer(send, 200, b"%s %d" % ((peer.serial if peer else "nobody").encode(), len(body)))


@pytest.fixture
def clock() -> MockClock:
    """Virtual time goes on when no socket has moved for so long: deadlines are over at once."""
    return MockClock(autojump_threshold=0.01)


class Siege:
    """A server with mutual TLS, and one client that belongs to its fleet."""

    def __init__(self, own: TlsCredentials, server: Server) -> None:
        self.own = own
        self.server = server

    def request(self, target: str = "/") -> HttpRequest:
        peer = TlsPeer(identity=SERVER, server_name="x")
        return HttpRequest(method="GET", host=self.server.host, port=self.server.port, target=target, tls=peer)

    async def check_serves(self) -> None:
        """An honest client is served on a new connection, and nothing that was done before is anybody's fault."""
        client = H11HttpClient(credentials=self.own)
        async with client.exchange(self.request()) as response:
            assert await response.read(100) == b"1 0"
        await client.aclose()
        assert self.server.faults == []

    async def shake(
        self, context: ssl.SSLContext | None = None, *, tcp: trio.SocketStream | None = None
    ) -> trio.SSLStream[trio.SocketStream]:
        """A connection of the honest client's, to misbehave on."""
        tcp = tcp or await self.server.connect()
        own = self.own.client_context(anonymous=False, verified=True)
        stream = trio.SSLStream(tcp, context or own, server_hostname="x", https_compatible=True)
        await stream.do_handshake()
        return stream


@asynccontextmanager
async def siege(serve: Serve, folder: Path, limits: ServerLimits = LIMITS, *, app: Any = app) -> AsyncIterator[Siege]:
    fleet = fleet_in(folder)
    own, shown = party(fleet, CLIENT), party(fleet, SERVER)
    async with served_tls(serve, app, shown, limits) as server:
        yield Siege(own, server)
        assert server.faults == []


PLAIN = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"


@pytest.mark.parametrize(
    "sent",
    [
        PLAIN,
        b"\x16\x03\x01",
        b"\x16\x03\x01\xff\xff" + b"\0" * 70_000,
        b"\0" * 64,
        b"SSH-2.0-x\r\n",
        b"\x15\x03\x03\0\2\2\50",
    ],
    ids=["plain", "cut", "oversized", "nothing", "ssh", "alert"],
)
async def test_what_is_no_handshake_is_cut(sent: bytes, tmp_path: Path, clock: MockClock) -> None:
    async with siege(serve_lean, tmp_path) as under:
        stream = await under.server.connect()
        try:
            await stream.send_all(sent)
        except trio.BrokenResourceError:
            assert len(sent) > 1_000, "it was cut in the middle"
        assert b"HTTP" not in await read_to_end(stream), "nothing is told to who is not known"
        assert clock.current_time() <= 1.1
        await under.check_serves()


async def test_a_client_that_is_slow_or_silent_in_its_handshake_is_cut(tmp_path: Path, clock: MockClock) -> None:
    """However busy it looks: the time is for the whole of it."""
    async with siege(serve_lean, tmp_path) as under, trio.open_nursery() as nursery:
        silent, slow = await under.server.connect(), await under.server.connect()

        async def drip() -> None:
            try:
                for byte in client_hello():
                    await slow.send_all(bytes((byte,)))
                    await trio.sleep(0.1)
            except trio.BrokenResourceError:
                return

        nursery.start_soon(drip)
        await under.check_serves()
        assert await read_to_end(silent) == b""
        assert await read_to_end(slow) == b""
        assert clock.current_time() <= 1.1
        nursery.cancel_scope.cancel()
        await under.check_serves()


async def test_silent_clients_push_out_each_other(tmp_path: Path) -> None:
    limits = ServerLimits(tls_handshake_timeout_ms=60_000, tls_handshakes_max=4)
    async with siege(serve_lean, tmp_path, limits) as under:
        silent = [await under.server.connect() for _ in range(4)]
        await under.check_serves()
        assert await read_to_end(silent[0]) == b"", "the one that has waited longest"
        later = await under.server.connect()
        await later.send_all(client_hello()[:10])
        await under.check_serves()
        assert await read_to_end(silent[1]) == b""
        await under.shake(tcp=silent[2])


@both
@pytest.mark.parametrize("known", [False, True], ids=["strangers", "one party"])
async def test_who_holds_connections_takes_the_place_of_nobody_else(serve: Serve, known: bool, tmp_path: Path) -> None:
    """Neither strangers together, nor one certificate, be it of the same name: with bodies that never end."""
    fleet = fleet_in(tmp_path)
    own, shown, hostile = party(fleet, CLIENT), party(fleet, SERVER), fleet.party(CLIENT, serial=2)
    assert isinstance(hostile, TlsCredentials)
    limits = ServerLimits(max_connections=8, tls_connections_each=4, tls_strangers_max=4)
    async with served_tls(serve, app, shown, limits, demand=False) as server:
        under = Siege(own, server)
        context = hostile.client_context(anonymous=not known, verified=True)
        held, standing = [], await under.shake()
        await standing.send_all(PLAIN)
        assert b"1 0" in await standing.receive_some()
        for _ in range(12):
            held.append(await under.shake(context))
            await held[-1].send_all(HEAD + b"content-length: 10\r\n\r\nslow")
        await standing.send_all(PLAIN)
        assert b"1 0" in await standing.receive_some(), "it stood longer than all of them"
        await under.check_serves()
        for cut in held[:8]:
            with suppress(trio.BrokenResourceError):
                assert b"200" not in await cut.receive_some(100), "it has stood longest"
        # One more of them is served at once, however many stand still.
        client = H11HttpClient(credentials=hostile)
        asked = attrs.evolve(under.request(), tls=TlsPeer(identity=SERVER, server_name="x", anonymous=not known))
        async with client.exchange(asked) as response:
            assert response.status == 200
        await client.aclose()


async def test_old_versions_are_refused(tmp_path: Path) -> None:
    async with siege(serve_lean, tmp_path) as under:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        with pytest.warns(DeprecationWarning, match="TLSv1_1"):
            context.maximum_version = ssl.TLSVersion.TLSv1_1
        context.set_ciphers("ALL:@SECLEVEL=0")
        with pytest.raises(trio.BrokenResourceError):
            await under.shake(context)
        await under.check_serves()


@both
async def test_limits_hold_after_the_handshake(serve: Serve, tmp_path: Path, clock: MockClock) -> None:
    """Slow heads and bodies, and those that are too large, are answered over TLS as in the clear."""
    attacks = {
        408: (HEAD, HEAD + b"content-length: 10\r\n\r\nslow"),
        413: (HEAD + b"content-length: 1000000\r\n\r\n" + b"x" * 300_000,
              HEAD + b"transfer-encoding: chunked\r\n\r\n" + (b"8000\r\n" + b"x" * 0x8000 + b"\r\n") * 8),
        431: (HEAD + b"x-large: " + b"x" * 5_000 + b"\r\n\r\n",),
        400: (b"\0\1\2\r\n\r\n", HEAD + b"content-length: 1\r\ntransfer-encoding: chunked\r\n\r\n"),
    }  # fmt: skip
    async with siege(serve, tmp_path) as under:
        for status, attempts in attacks.items():
            for sent in attempts:
                stream = await under.shake()
                await stream.send_all(sent)
                received = b"".join([data async for data in stream])
                found, headers, body = parse_answer(received)
                assert (found, headers[b"connection"]) == (status, b"close"), (sent[:100], received)
                assert has_error_shape(body, status)
                stream.transport_stream.socket.close()
        assert clock.current_time() <= 10
        await under.check_serves()


@both
async def test_a_client_that_reads_nothing_is_cut(serve: Serve, tmp_path: Path, clock: MockClock) -> None:
    ended = trio.Event()

    async def endless(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or scope["path"] == "/":
            await app(scope, receive, send)
            return
        await send({"type": "http.response.start", "status": 200, "headers": []})
        try:
            while True:
                await send({"type": "http.response.body", "body": b"x" * 65_536, "more_body": True})
        except OSError:
            ended.set()

    async with siege(serve, tmp_path, app=endless) as under:
        stream = await under.shake()
        await stream.send_all(b"GET /endless HTTP/1.1\r\nhost: x\r\n\r\n")
        await ended.wait()
        assert clock.current_time() <= 1.1
        await under.check_serves()


@both
async def test_a_departure_is_seen(serve: Serve, tmp_path: Path) -> None:
    """Also one without a word of TLS."""
    asked, left = trio.Event(), trio.Event()

    async def waiting(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or scope["path"] == "/":
            await app(scope, receive, send)
            return
        asked.set()
        await read_until_departure(receive)
        left.set()

    async with siege(serve, tmp_path, app=waiting) as under:
        stream = await under.shake()
        await stream.send_all(b"GET /wait HTTP/1.1\r\nhost: x\r\n\r\n")
        await asked.wait()
        stream.transport_stream.socket.close()
        await left.wait()
        await under.check_serves()


async def read_until_departure(receive: Receive) -> None:
    message: Message = {"type": "http.request"}
    while message["type"] != "http.disconnect":
        message = await receive()


@both
async def test_drain_ends_handshakes_and_idle_connections(serve: Serve, tmp_path: Path, clock: MockClock) -> None:
    async with siege(serve, tmp_path) as under:
        silent, idle = await under.server.connect(), await under.shake()
        await idle.send_all(PLAIN)
        assert b"1 0" in await idle.receive_some()
        under.server.stop.set()
        assert b"".join([data async for data in idle]) == b""
        assert await read_to_end(silent) == b""
        await under.server.ended.wait()
        assert clock.current_time() <= 1.1


async def test_a_listener_without_a_certificate_serves_once_it_has_one(tmp_path: Path) -> None:
    fleet, shown = fleet_in(tmp_path), TlsCredentials(None)
    own = party(fleet, CLIENT)
    async with served_tls(serve_lean, app, shown) as server:
        for _ in range(3):
            assert await read_to_end(await server.connect()) == b""
        # Told once, however many come.
        assert [type(fault) for fault in server.faults] == [PortUnavailable]
        server.faults.clear()
        shown.trust([fleet.root(0)])
        fleet.renew(shown, SERVER)
        await Siege(own, server).check_serves()


async def test_a_rotation_under_fifty_streams_cuts_none(tmp_path: Path) -> None:
    """Certificates and authorities of both ends are exchanged meanwhile; who connects then is shown the new ones."""
    streams, go_on, shown_to = 50, trio.Event(), trio.Event()
    heard = 0

    async def streaming(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or scope["path"] == "/":
            await app(scope, receive, send)
            return
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"before ", "more_body": True})
        await go_on.wait()
        await send({"type": "http.response.body", "body": b"after", "more_body": False})

    fleet = fleet_in(tmp_path)
    own, shown = party(fleet, CLIENT), party(fleet, SERVER)
    limits = ServerLimits(tls_connections_each=2 * streams)
    async with served_tls(serve_lean, streaming, shown, limits) as server:
        under, client = Siege(own, server), H11HttpClient(credentials=own)
        bodies: list[bytes] = []

        async def stream() -> None:
            nonlocal heard
            async with client.exchange(under.request("/stream")) as response:
                pieces = response.chunks()
                body = await anext(pieces)
                heard += 1
                if heard == streams:
                    shown_to.set()
                bodies.append(body + b"".join([piece async for piece in pieces]))

        async with trio.open_nursery() as nursery:
            for _ in range(streams):
                nursery.start_soon(stream)
            await shown_to.wait()
            for credentials in (own, shown):
                credentials.trust([fleet.root(1)])
            fleet.renew(own, CLIENT, authority=1)
            fleet.renew(shown, SERVER, authority=1)
            await under.check_serves()
            go_on.set()
        assert bodies == [b"before after"] * streams
        await client.aclose()


@cache
def client_hello() -> bytes:
    """What a client of ours says first."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    outgoing = ssl.MemoryBIO()
    half = context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="start-1")
    with pytest.raises(ssl.SSLWantReadError):
        half.do_handshake()
    return outgoing.read()


edits = st.lists(st.tuples(st.integers(0, 600), st.binary(min_size=1, max_size=8)), max_size=6)


@st.composite
def hellos(draw: st.DrawFn) -> bytes:
    """A client's first words with bytes changed, cut or repeated; or anything."""
    if draw(st.booleans()):
        return b"\x16\x03\x01" + draw(st.binary(max_size=200))
    hello = bytearray(client_hello())
    for at, written in draw(edits):
        hello[at : at + len(written)] = written
    return bytes(hello[: draw(st.integers(0, len(hello)))] if draw(st.booleans()) else hello)


@pytest.fixture(scope="module")
def parties(tmp_path_factory: pytest.TempPathFactory) -> tuple[TlsCredentials, TlsCredentials]:
    fleet = fleet_in(tmp_path_factory.mktemp("keys"))
    return party(fleet, CLIENT), party(fleet, SERVER)


@given(sent=st.lists(hellos(), min_size=1, max_size=8))
async def test_any_hello(parties: tuple[TlsCredentials, TlsCredentials], sent: list[bytes]) -> None:
    own, shown = parties
    async with served_tls(serve_lean, app, shown) as server:
        async with trio.open_nursery() as nursery:
            for hello in sent:
                nursery.start_soon(attack, server, hello)
        await Siege(own, server).check_serves()


async def attack(server: Server, hello: bytes) -> None:
    stream = await server.connect()
    with suppress(trio.BrokenResourceError):
        await stream.send_all(hello)
        await stream.send_eof()
    await read_to_end(stream)
