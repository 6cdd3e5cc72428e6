"""`/v1/stream` behind the real server on a socket, with clients not written here, clumsy ones and hostile ones."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import attrs
import pytest
import trio
import trio_websocket
import websockets.sync.client
from hypothesis import given, settings
from hypothesis import strategies as st

from lunanexa_adapters.asgi.root import Root
from lunanexa_adapters.http_server.limits import ServerLimits
from lunanexa_adapters.http_server.serve import serve_http
from lunanexa_adapters.websocket.application import WebSocketPlane
from lunanexa_adapters.websocket.settings import WebSocketSettings
from lunanexa_core.contract.frame_text import read_server_frame, write_frame
from lunanexa_core.contract.frames import Accepted, Cancel, Completed, Credit, Event, Submit
from lunanexa_core.ids import SessionId
from lunanexa_simulation.clock import SimulatedClock
from lunanexa_simulation.ids import SimulatedIds
from lunanexa_simulation.metrics import SimulatedMetrics
from lunanexa_simulation.rng import Streams
from tests.adapters.http_tools import LIMIT_S, Server, parse_answer, read_to_end, read_until, served, ws_frames
from tests.adapters.test_http_server_malformed import frame
from tests.adapters.ws_gateway import GOOD_KEY, NoWorkloads, ScriptedGateway
from tests.examples import examples

pytestmark = pytest.mark.thorough

QUIET = ServerLimits(websocket_ping_ms=0, linger_ms=50)
AUTHORIZATION = {"authorization": f"Bearer {GOOD_KEY}"}
HANDSHAKE = b"\r\n".join(
    [
        b"GET /v1/stream HTTP/1.1",
        b"Host: x",
        b"Upgrade: websocket",
        b"Connection: Upgrade",
        b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
        b"Sec-WebSocket-Version: 13",
        b"Sec-WebSocket-Protocol: lunanexa.v1",
        b"Sec-WebSocket-Extensions: permessage-deflate",
        b"Authorization: Bearer " + GOOD_KEY.encode(),
        b"",
        b"",
    ]
)


@attrs.frozen
class Serving:
    server: Server
    plane: WebSocketPlane
    gateway: ScriptedGateway
    metrics: SimulatedMetrics

    @property
    def url(self) -> str:
        return f"ws://{self.server.host}:{self.server.port}/v1/stream"

    async def raw(self) -> tuple[trio.SocketStream, bytes]:
        """A socket after the handshake, and what came with its answer."""
        stream = await self.server.connect()
        await stream.send_all(HANDSHAKE)
        head = await read_until(stream, b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 101 ")
        assert b"deflate" not in head
        return stream, head

    async def at_rest(self) -> None:
        """Waits until no workload runs and no connection is open."""
        while self.gateway.running or self.metrics.value("lunanexa_websocket_connections"):
            await trio.sleep(0.005)


@asynccontextmanager
async def serving(limits: ServerLimits = QUIET, **options: Any) -> AsyncIterator[Serving]:
    """The plane on a socket of its own. Whatever its clients did, nothing of them may be left, and no fault told."""
    clock, metrics, gateway = SimulatedClock(), SimulatedMetrics(), ScriptedGateway()
    ids = SimulatedIds(Streams(3).stream("websocket"), clock)
    plane = WebSocketPlane(
        gateway=gateway,
        workloads=NoWorkloads(),
        ids=ids,
        clock=clock,
        metrics=metrics,
        session=SessionId("ses_1"),
        settings=WebSocketSettings(**options),
    )
    root = Root(data_plane=_nothing, control=_nothing, stream=plane, ids=ids)
    async with trio.open_nursery() as nursery:
        await nursery.start(plane.run)
        async with served(serve_http, root, limits) as server:
            found = Serving(server, plane, gateway, metrics)
            yield found
            server.close_streams()
            await found.at_rest()
            assert server.faults == []
        nursery.cancel_scope.cancel("the test is over")


async def _nothing(*asked: object) -> None:
    raise AssertionError(asked)


def submit(name: str, **asked: Any) -> str:
    return write_frame(Submit(id=name, request=asked, endpoint="chat/completions"))


async def test_a_trio_websocket_client(caplog: pytest.LogCaptureFixture) -> None:
    async with (
        serving() as found,
        trio_websocket.open_websocket_url(
            found.url, subprotocols=["lunanexa.v1"], extra_headers=[(b"authorization", b"Bearer " + GOOD_KEY.encode())]
        ) as client,
    ):
        assert client.subprotocol == "lunanexa.v1"
        await client.send_message(submit("a", events=3))
        frames = [read_server_frame(str(await client.get_message())) for _ in range(5)]
        assert [type(one) for one in frames] == [Accepted, Event, Event, Event, Completed]
        await client.send_message(submit("b", events=1, wait=True))
        for _ in range(2):
            await client.get_message()
        await client.send_message(write_frame(Cancel("b")))
        assert json.loads(await client.get_message())["type"] == "cancelled"
        await client.aclose(1000)
    assert found.metrics.value("lunanexa_websocket_closes_total", {"code": "1000"}) == 1
    assert GOOD_KEY not in caplog.text


async def test_a_websockets_client_that_would_compress() -> None:
    """Another implementation, which offers permessage-deflate and pings by itself; in a thread of its own."""

    def run(url: str) -> tuple[list[Any], list[Any]]:
        with websockets.sync.client.connect(
            url, additional_headers=AUTHORIZATION, subprotocols=[websockets.Subprotocol("lunanexa.v1")]
        ) as client:
            client.send(submit("a", events=500, pad=100))
            frames: list[Any] = []
            seen = 0
            while not frames or frames[-1]["type"] != "completed":
                frames.append(json.loads(client.recv(timeout=LIMIT_S)))
                seen += frames[-1]["type"] == "event"
                if seen == 100:
                    client.send(write_frame(Credit("a", 100)))
                    seen = 0
            assert client.ping().wait(LIMIT_S)
            return frames, list(client.protocol.extensions)

    async with serving() as found:
        frames, extensions = await trio.to_thread.run_sync(run, found.url)
        assert extensions == []
        assert [one["seq"] for one in frames[1:]] == list(range(1, 502))


async def test_a_refused_handshake_says_why() -> None:
    async with serving() as found:
        stream = await found.server.connect()
        await stream.send_all(HANDSHAKE.replace(GOOD_KEY.encode(), b"lnx_bad"))
        status, headers, body = parse_answer(await read_to_end(stream))
        assert status == 401
        assert json.loads(body)["error"]["code"] == "invalid_api_key"
        assert headers[b"content-type"] == b"application/json"


@pytest.mark.slow
async def test_an_idle_client_that_answers_pings_stays() -> None:
    limits = ServerLimits(websocket_ping_ms=20, websocket_pong_timeout_ms=60)
    async with (
        serving(limits) as found,
        trio_websocket.open_websocket_url(
            found.url, subprotocols=["lunanexa.v1"], extra_headers=[(b"authorization", b"Bearer " + GOOD_KEY.encode())]
        ) as client,
    ):
        await trio.sleep(0.5)  # six times as long as a silent peer may last
        await client.send_message(submit("a"))
        assert json.loads(await client.get_message())["type"] == "accepted"


async def test_a_client_that_answers_no_ping_loses_its_workloads() -> None:
    limits = ServerLimits(websocket_ping_ms=20, websocket_pong_timeout_ms=20, linger_ms=50)
    async with serving(limits) as found:
        stream, raw = await found.raw()
        await stream.send_all(frame(1, submit("a", wait=True).encode()))
        raw += await read_to_end(stream)
        assert b'"accepted"' in raw
        await found.at_rest()


@pytest.mark.parametrize("payload", [b"x" * 70_000, "€".encode() * 25_000], ids=["ascii", "three bytes a character"])
@pytest.mark.parametrize("pieces", [1, 50])
async def test_a_message_over_the_limit_is_1009(payload: bytes, pieces: int) -> None:
    limits = ServerLimits(websocket_ping_ms=0, websocket_message_max_bytes=60_000, linger_ms=200)
    async with serving(limits) as found:
        stream, raw = await found.raw()
        size = len(payload) // pieces + 1
        for number in range(pieces):
            part = payload[number * size : (number + 1) * size]
            await stream.send_all(frame(0 if number else 1, part, fin=number == pieces - 1))
        raw += await read_to_end(stream)
        assert ws_frames(raw) == [(8, b"\x03\xf1")]
        await found.at_rest()
        assert found.metrics.value("lunanexa_websocket_frames_total", {"direction": "in"}) == 0


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (frame(1, b"\xff\xfe"), 1007),
        (frame(2, b"binary"), 1003),
        (frame(1, b"{}", rsv1=True), 1002),
        (frame(1, b"[" * 50_000), 1007),
        (frame(9, b"x" * 126), 1002),
        (frame(3, b"reserved"), 1002),
        (frame(0, b"nothing to continue"), 1002),
        (bytes([0x81, 2]) + b"{}", 1002),
    ],
    ids=["utf-8", "binary", "deflated", "deep", "long ping", "reserved", "continuation", "unmasked"],
)
async def test_what_is_no_frame_is_closed_with_its_code(sent: bytes, code: int) -> None:
    async with serving() as found:
        stream, raw = await found.raw()
        await stream.send_all(frame(1, submit("a", wait=True).encode()))
        raw += await read_until(stream, b'"replayed":false}')
        await stream.send_all(sent)
        raw += await read_to_end(stream)
        opcode, payload = ws_frames(raw)[-1]
        assert (opcode, int.from_bytes(payload[:2], "big")) == (8, code)
        await found.at_rest()


@pytest.mark.slow
@pytest.mark.parametrize(
    "flood",
    [frame(9, b"") * 500, frame(0, b"", fin=False) * 500, frame(1, write_frame(Credit("a", 1)).encode()) * 500],
    ids=["pings", "empty fragments", "credits"],
)
async def test_a_flood_of_tiny_frames_starves_nobody(flood: bytes) -> None:
    async with serving() as found:
        stream, _ = await found.raw()
        if flood[0] == 0:
            await stream.send_all(frame(1, b"", fin=False))

        async def flooding() -> None:
            while True:
                await stream.send_all(flood)

        async def reading() -> None:
            while await stream.receive_some():
                pass

        async with trio.open_nursery() as nursery:
            nursery.start_soon(flooding)
            nursery.start_soon(reading)
            async with trio_websocket.open_websocket_url(
                found.url,
                subprotocols=["lunanexa.v1"],
                extra_headers=[(b"authorization", b"Bearer " + GOOD_KEY.encode())],
            ) as client:
                for number in range(20):
                    await client.send_message(submit(f"w{number}"))
                    assert json.loads(await client.get_message())["type"] == "accepted"
                    assert json.loads(await client.get_message())["type"] == "completed"
            nursery.cancel_scope.cancel()


async def test_a_client_that_does_not_read_loses_its_connection() -> None:
    async with serving(slow_ms=200, close_ms=100) as found:
        stream, _ = await found.raw()
        await stream.send_all(frame(1, submit("a", events=200, pad=100_000).encode()))
        await found.at_rest()
        assert found.metrics.value("lunanexa_websocket_closes_total", {"code": "4008"}) == 1


async def test_a_client_without_credit_is_told_4008() -> None:
    async with serving(slow_ms=100) as found:
        stream, raw = await found.raw()
        await stream.send_all(frame(1, submit("a", events=300).encode()))
        raw += await read_to_end(stream)
        opcode, payload = ws_frames(raw)[-1]
        assert (opcode, int.from_bytes(payload[:2], "big")) == (8, 4008)


async def test_a_server_that_stops_says_so() -> None:
    async with serving() as found:
        stream, raw = await found.raw()
        await stream.send_all(frame(1, submit("a", wait=True).encode()))
        raw += await read_until(stream, b'"accepted"')
        found.plane.begin_drain()
        raw += await read_until(stream, b'"goaway"')
        found.plane.close()
        found.server.stop.set()
        raw += await read_to_end(stream)
        opcode, payload = ws_frames(raw)[-1]
        assert (opcode, int.from_bytes(payload[:2], "big")) == (8, 1012)
        await found.server.ended.wait()


NAMES = st.sampled_from("ab")
TEXTS = st.one_of(
    st.builds(lambda name, count: submit(name, events=count), NAMES, st.sampled_from([0, 1, 300, "x"])),
    st.builds(lambda name: submit(name, wait=True), NAMES),
    st.builds(lambda name: write_frame(Cancel(name)), NAMES),
    st.builds(lambda name, events: write_frame(Credit(name, events)), NAMES, st.integers(1, 65_536)),
    st.builds(lambda name: f'{{"type":"resume","id":"{name}","after":0,"token":"t"}}', NAMES),
    st.dictionaries(st.sampled_from(["type", "id", "events", "request"]), st.text(max_size=3)).map(json.dumps),
    st.text(max_size=20),
)
WIRE = st.one_of(
    TEXTS.map(lambda text: frame(1, text.encode(errors="replace"))),
    st.builds(
        lambda opcode, payload, fin: frame(opcode, payload, fin=fin),
        st.integers(0, 15),
        st.binary(max_size=200),
        st.booleans(),
    ),
    st.binary(max_size=30),
)
CLOSE_CODES = {1000, 1001, 1002, 1003, 1005, 1007, 1009, 4008}


@settings(max_examples=examples(20), deadline=None)
@given(sent=st.lists(WIRE, max_size=12))
async def test_whatever_comes_ends_well(sent: list[bytes]) -> None:
    """No fault, nothing left running, and if the server closes it says why."""
    async with serving(slow_ms=100) as found:
        stream, raw = await found.raw()
        try:
            for piece in sent:
                await stream.send_all(piece)
            await stream.send_all(frame(8, b"\x03\xe8"))
            await stream.send_eof()
        except trio.BrokenResourceError:
            pass
        raw += await read_to_end(stream)
        frames = ws_frames(raw)
        for opcode, payload in frames:
            if opcode == 1:
                json.loads(payload)
            elif opcode == 8 and len(payload) >= 2:
                assert int.from_bytes(payload[:2], "big") in CLOSE_CODES or sent
        await found.at_rest()
