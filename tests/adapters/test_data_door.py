"""The data listener over real sockets: who gets in, that bytes pass unchanged, that nothing outlives its right."""

import gc
import hashlib
import os
import ssl
from collections.abc import Callable
from contextlib import suppress

import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from lunanexa_adapters.crypto.authority import make_authority
from lunanexa_adapters.crypto.credentials import TlsCredentials
from lunanexa_adapters.data_door.client_hello import server_name_of
from lunanexa_adapters.data_door.serve import DataDoorLimits
from lunanexa_adapters.data_door.tls_stream import Gone
from lunanexa_adapters.system.clock import SystemClock
from lunanexa_core.identity.names import controller_identity, gateway_identity, node_identity
from lunanexa_core.ids import ClusterId, HolderId, NodeId, StartId
from lunanexa_core.southbound.heartbeat import ReplicaState
from tests.adapters.doors import GATEWAY, Doored, TlsCaller, doored, issued
from tests.apps.door_machine import CLUSTER, START, record
from tests.examples import examples

pytestmark = pytest.mark.thorough


async def mirror(stream: trio.SocketStream) -> None:
    """Says back what it hears, and ends when the other end does."""
    try:
        async for data in stream:
            await stream.send_all(data)
        await stream.send_eof()
        await trio.sleep_forever()
    except (trio.BrokenResourceError, trio.ClosedResourceError):
        return


async def silent(_stream: trio.SocketStream) -> None:
    """Takes a connection, and neither reads nor says anything."""
    await trio.sleep_forever()


async def is_cut(caller: TlsCaller, *, after: bytes = b"") -> bool:
    """Whether the connection ends without a proper end, whatever was said on it."""
    try:
        if after:
            await caller.send(after)
        while await caller.receive():
            pass
    except Gone:
        return True
    return False


def noise(size: int) -> bytes:
    return hashlib.shake_256(b"noise").digest(size)


def pieces(data: bytes) -> list[bytes]:
    """Of all sizes from one byte to beyond what is read at once, the same each time."""
    found, at, turn = [], 0, 0
    while at < len(data):
        turn += 1
        size = 1 + int.from_bytes(hashlib.sha256(b"%d" % turn).digest()[:4]) % (1 << (turn % 19))
        found.append(data[at : at + size])
        at += size
    return found


# --- bytes pass as they are ---


async def test_bytes_pass_both_ways_at_once_unchanged() -> None:
    data, heard = noise(32 << 20), hashlib.sha256()
    async with doored(mirror) as door:
        caller = await door.call()

        async def speak() -> None:
            for piece in pieces(data):
                await caller.send(piece)
            await caller.send_eof()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(speak)
            while piece := await caller.receive():
                heard.update(piece)
        assert heard.digest() == hashlib.sha256(data).digest()


async def test_each_event_is_there_before_the_next_is_made() -> None:
    taken = trio.Semaphore(0)

    async def engine(stream: trio.SocketStream) -> None:
        for number in range(50):
            await stream.send_all(b"data: %d\n\n" % number)
            await taken.acquire()

    async with doored(engine) as door:
        caller = await door.call()
        for number in range(50):
            event = b"data: %d\n\n" % number
            assert await caller.read_exactly(len(event)) == event
            taken.release()


async def test_an_engine_may_end_its_answer_and_hear_on() -> None:
    heard: list[bytes] = []

    async def engine(stream: trio.SocketStream) -> None:
        await stream.send_all(b"all that I have to say")
        await stream.send_eof()
        heard.extend([bytes(data) async for data in stream])

    async with doored(engine) as door:
        caller = await door.call()
        assert await caller.read_exactly(22) == b"all that I have to say"
        assert await caller.receive() == b""
        await caller.send(b"and yet")
        await caller.send_eof()
        while b"".join(heard) != b"and yet":
            await trio.sleep(0.001)
        await door.until_inside(0)
        assert not await is_cut(caller)


async def test_a_gateway_may_end_its_request_and_hear_on() -> None:
    async def engine(stream: trio.SocketStream) -> None:
        asked = b"".join([data async for data in stream])
        for _ in range(3):
            await stream.send_all(asked)

    async with doored(engine) as door:
        caller = await door.call()
        await caller.send(b"early ")
        await caller.send_eof()
        assert await caller.read_exactly(18) == b"early early early "
        assert await caller.receive() == b""


async def test_what_comes_while_the_answer_ends_is_not_lost() -> None:
    """The end of one direction is sent while the other one is full."""
    data, go = noise(1 << 20), trio.Event()
    heard = hashlib.sha256()

    async def engine(stream: trio.SocketStream) -> None:
        await stream.send_eof()
        await go.wait()
        async for piece in stream:
            heard.update(piece)

    async with doored(engine) as door:
        caller = await door.call()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(caller.send, data)
            assert await caller.receive() == b""
            go.set()
        await caller.send_eof()
        await door.until_inside(0)
    assert heard.digest() == hashlib.sha256(data).digest()


async def test_an_early_answer_reaches_who_still_sends() -> None:
    """As of a server that refuses a large body: it closes with unread bytes, which resets its end."""

    async def engine(stream: trio.SocketStream) -> None:
        await stream.receive_some(1)
        await stream.send_all(b"too large")

    async with doored(engine) as door:
        caller = await door.call()

        async def speak() -> None:
            try:
                while True:
                    await caller.send(b"x" * 65_536)
            except Gone:
                return

        async with trio.open_nursery() as nursery:
            nursery.start_soon(speak)
            assert await caller.read_exactly(9) == b"too large"
            nursery.cancel_scope.cancel()


async def test_a_slow_reader_slows_the_engine() -> None:
    """What is on its way is what the kernel's buffers hold, and no more."""
    sent = 0

    async def engine(stream: trio.SocketStream) -> None:
        nonlocal sent
        for _ in range(1_024):
            await stream.send_all(b"x" * 65_536)
            sent += 65_536

    async with doored(engine) as door:
        caller = await door.call()
        heard = len(await caller.receive())
        await trio.testing.wait_all_tasks_blocked(0.2)
        assert sent < 32 << 20
        while data := await caller.receive():
            heard += len(data)
        assert heard == 64 << 20


# --- who leaves, and what breaks ---


@pytest.mark.parametrize("politely", [False, True])
async def test_the_engine_sees_a_departure_at_once(politely: bool) -> None:
    left = trio.Event()

    async def engine(stream: trio.SocketStream) -> None:
        await stream.send_all(b"begun")
        try:
            while await stream.receive_some():
                pass
        except trio.BrokenResourceError:
            pass
        left.set()

    async with doored(engine) as door:
        caller = await door.call()
        await caller.read_exactly(5)
        if politely:
            await caller.send_eof()
        caller.leave()
        await left.wait()
        await door.until_inside(0)


async def test_a_departure_after_the_end_of_the_request_is_seen() -> None:
    async with doored(silent) as door:
        caller = await door.call()
        await caller.send_eof()
        await door.until_inside(1)
        caller.leave()
        await door.until_inside(0)


async def test_an_engine_that_dies_cuts_its_callers() -> None:
    async with doored(silent) as door:
        caller = await door.call()
        await caller.send(b"unread, so that the kernel resets")
        await door.until_inside(1)
        while not door.engines:
            await trio.sleep(0.001)
        await trio.lowlevel.wait_readable(door.engines[0].socket)
        door.engines[0].socket.close()
        assert await is_cut(caller)


def _lapses(door: Doored) -> None:
    door.machine.lease_until_ms = 0


def _starts_anew(door: Doored) -> None:
    door.machine.records = [record(StartId("start_2"))]


def _ends(door: Doored) -> None:
    door.machine.records = [record(state=ReplicaState.BACKOFF)]


def _revoked(door: Doored) -> None:
    assert door.gateway.certificate is not None
    door.machine.revoked = {door.gateway.certificate.serial}


@pytest.mark.parametrize("change", [_lapses, _starts_anew, _ends, _revoked])
async def test_a_stream_ends_with_its_right(change: Callable[[Doored], None]) -> None:
    departed = trio.Event()

    async def engine(stream: trio.SocketStream) -> None:
        try:
            while True:
                await stream.send_all(b"data: token\n\n")
                await trio.sleep(0.001)
        except trio.BrokenResourceError:
            departed.set()

    async with doored(engine) as door:
        caller = await door.call()
        await caller.read_exactly(100)
        change(door)
        door.machine.door.look()
        assert door.machine.door.open_to() == ()
        assert await is_cut(caller)
        await departed.wait()
        assert await is_cut(await door.call())


# --- who gets in ---


@pytest.mark.parametrize(
    ("identity", "name", "reason"),
    [
        (GATEWAY, "start_0_before", "unknown_start_id"),
        (GATEWAY, None, "no_start_id"),
        (node_identity(CLUSTER, NodeId("node-2")).uri, START, "not_a_gateway"),
        (controller_identity(CLUSTER, HolderId("other")).uri, START, "not_a_gateway"),
        (gateway_identity(ClusterId("cl_2"), HolderId("other")).uri, START, "not_a_gateway"),
    ],
)
async def test_refused_with_one_line(identity: str, name: str | None, reason: str) -> None:
    with capture_logs() as lines:
        async with doored(mirror) as door:
            credentials = issued(door.authority, identity)
            caller = await door.call(name, credentials=credentials)
            assert await is_cut(caller, after=b"a secret prompt")
            assert await is_cut(await door.call(name, credentials=credentials))
            assert door.engines == []
            assert await (await door.call()).receive_after(b"well") == b"well"
    assert lines == [
        {"event": "door_refused", "log_level": "info", "reason": reason, "caller": "127.0.0.1", "peer": identity},
    ]


async def test_who_shows_no_certificate_or_a_strangers() -> None:
    async with doored(mirror) as door:
        other = issued(make_authority(SystemClock().now().wall_ms // 1_000), GATEWAY, door.authority)
        for credentials in (door.gateway, other):
            with capture_logs() as lines:
                try:
                    caller = await door.call(credentials=credentials, anonymous=credentials is door.gateway)
                except trio.BrokenResourceError:
                    continue
                assert await is_cut(caller)
                assert [line["reason"] for line in lines] in (["handshake"], [])
        assert door.engines == []


async def test_a_stranger_who_says_nothing_or_rubbish_is_cut() -> None:
    async with doored(mirror, DataDoorLimits(handshake_timeout_ms=50)) as door:
        no_text = hello_for(START).replace(START.encode(), b"\xff" * len(START))
        for said in (b"", b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\xff\xff" + b"\0" * 100, no_text):
            stream = await trio.open_tcp_stream(door.host, door.port)
            if said:
                await stream.send_all(said)
            with suppress(trio.BrokenResourceError):
                while await stream.receive_some():
                    pass
            stream.socket.close()
        assert await (await door.call()).receive_after(b"well") == b"well"


@settings(max_examples=examples(15), deadline=None)
@given(st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), max_size=6), st.integers(1, 600))
def test_whatever_a_stranger_begins_with(changes: list[tuple[int, int]], until: int) -> None:
    """A hello with some bytes changed, cut anywhere: nobody else notices."""

    async def scenario() -> None:
        async with doored(mirror, DataDoorLimits(handshake_timeout_ms=20)) as door:
            hello = bytearray(hello_for(START))
            for place, value in changes:
                hello[place % len(hello)] = value
            stream = await trio.open_tcp_stream(door.host, door.port)
            await stream.send_all(hello[:until])
            assert await (await door.call()).receive_after(b"well") == b"well"
            with suppress(trio.BrokenResourceError):
                while await stream.receive_some():
                    pass
            stream.socket.close()

    trio.run(scenario)


def hello_for(server_name: str | None) -> bytes:
    """The first bytes of a client of OpenSSL's."""
    outgoing, context = ssl.MemoryBIO(), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    with suppress(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname=server_name).do_handshake()
    return outgoing.read()


def in_records(hello: bytes, size: int) -> bytes:
    """The same message in records of that size."""
    message = hello[5:]
    parts = [message[at : at + size] for at in range(0, len(message), size)]
    return b"".join(hello[:3] + len(part).to_bytes(2) + part for part in parts)


def test_the_server_is_read_from_a_hello() -> None:
    hello = hello_for(START)
    assert server_name_of(hello) == START
    assert server_name_of(hello + b"more") == START
    assert server_name_of(in_records(hello, 7)) == START
    assert server_name_of(hello_for(None)) is None
    assert server_name_of(hello.replace(START.encode(), b"\xff" * len(START))) is None
    for size in range(len(hello)):
        assert server_name_of(hello[:size]) is None


@settings(max_examples=examples(50), deadline=None)
@given(st.binary(max_size=200), st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), max_size=6))
def test_no_hello_is_too_strange_to_be_read(rubbish: bytes, changes: list[tuple[int, int]]) -> None:
    hello = bytearray(hello_for(START))
    for place, value in changes:
        hello[place % len(hello)] = value
    for data in (rubbish, bytes(hello), bytes(hello) + rubbish, b"\x16\x03\x01" + rubbish):
        assert isinstance(server_name_of(data), str | None)


async def test_silent_strangers_push_out_each_other() -> None:
    async with doored(mirror, DataDoorLimits(handshake_timeout_ms=600_000, handshakes_max=2)) as door:
        strangers = [await trio.open_tcp_stream(door.host, door.port) for _ in range(5)]
        assert await (await door.call()).receive_after(b"well") == b"well"
        for stranger in strangers:
            stranger.socket.close()


async def test_an_engine_that_is_not_there() -> None:
    with capture_logs() as lines:
        async with doored(mirror) as door:
            (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
            door.machine.records = [record(host="127.0.0.1", port=listener.socket.getsockname()[1])]
            await listener.aclose()
            assert await is_cut(await door.call())
            assert door.machine.door.open_to() == ()
    assert [line["reason"] for line in lines] == ["engine_unreachable"]


async def test_a_node_without_a_certificate_lets_nobody_in() -> None:
    async with doored(mirror) as door:
        await (await door.call()).receive_after(b"well")
        door.node.forget()
        with pytest.raises(trio.BrokenResourceError):
            await door.call()
        assert isinstance(door.node, TlsCredentials)


async def test_no_socket_is_left() -> None:
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    async with doored(mirror) as door:
        for number in range(20):
            caller = await door.call(START if number % 2 else "start_0")
            if number % 2:
                await caller.receive_after(b"well")
        door.machine.lease_until_ms = 0
        door.machine.door.look()
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before
