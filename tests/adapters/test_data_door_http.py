"""What gateways speak through a node's data listener, with the client that they have: HTTP, events, WebSocket."""

import attrs
import pytest
import trio

from lunanexa_adapters.http_client.http_client import H11HttpClient
from lunanexa_adapters.http_server.lean import serve_lean
from lunanexa_adapters.http_server.serve import serve_http
from lunanexa_core.identity.names import node_identity
from lunanexa_core.ids import NodeId, StartId
from lunanexa_ports.asgi import Receive, Scope, Send
from lunanexa_ports.http_client import HttpBroken, HttpRequest, HttpUnreachable
from tests.adapters.doors import Doored, doored
from tests.adapters.http_tools import answer, echo, served, ws_frames
from tests.adapters.test_data_door import silent
from tests.adapters.test_http_server_malformed import frame, handshake
from tests.apps.door_machine import CLUSTER, record

pytestmark = pytest.mark.thorough


def request(door: Doored, **changes: object) -> HttpRequest:
    asked = HttpRequest(method="POST", host=door.host, port=door.port, target="/v1/x", body=b"a" * 70_000)
    return attrs.evolve(asked, **{"tls": door.peer, **changes})  # type: ignore[arg-type]  # the test's business


async def paths(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "http":
        size = 0
        while (message := await receive())["type"] == "http.request":
            size += len(message["body"])
            if not message["more_body"]:
                break
        await answer(send, 200, b"%s %d" % (scope["path"].encode(), size))


async def test_one_connection_carries_one_request_after_another() -> None:
    async with served(serve_lean, paths) as server, doored(silent) as door:
        door.machine.records = [record(port=server.port)]
        client = H11HttpClient(credentials=door.gateway)
        for _ in range(3):
            async with client.exchange(request(door)) as response:
                assert await response.read(100) == b"/v1/x 70000"
        assert len(door.machine.door.open_to()) == 1
        await client.aclose()
        await door.until_inside(0)


async def test_the_gateway_asks_for_one_node_and_no_other() -> None:
    """Whoever sends gateways to another node's listener gains nothing by it."""
    async with served(serve_lean, paths) as server, doored(silent) as door:
        door.machine.records = [record(port=server.port)]
        client = H11HttpClient(credentials=door.gateway)
        other = attrs.evolve(door.peer, identity=node_identity(CLUSTER, NodeId("node-2")).uri)
        with pytest.raises(HttpUnreachable, match="node-2"):
            async with client.exchange(request(door, tls=other)):
                pass
        with pytest.raises((HttpUnreachable, HttpBroken)):
            async with client.exchange(request(door, tls=None)):
                pass
        await client.aclose()


async def test_a_start_that_is_gone_is_asked_nothing() -> None:
    async with served(serve_lean, paths) as server, doored(silent) as door:
        door.machine.records = [record(StartId("start_2"), port=server.port)]
        client = H11HttpClient(credentials=door.gateway)
        with pytest.raises((HttpUnreachable, HttpBroken)) as refused:
            async with client.exchange(request(door)):
                pass
        assert not isinstance(refused.value, HttpBroken) or not refused.value.head_seen
        await client.aclose()


async def test_a_cut_never_passes_for_the_end_of_an_answer() -> None:
    """Not even of one whose end is the end of the connection."""

    async def engine(stream: trio.SocketStream) -> None:
        await stream.receive_some()
        await stream.send_all(b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\ndata: token\n\n")
        await trio.sleep_forever()

    async with doored(engine) as door:
        client = H11HttpClient(credentials=door.gateway)
        async with client.exchange(request(door, body=b"")) as response:
            chunks = response.chunks()
            assert await anext(chunks) == b"data: token\n\n"
            door.machine.lease_until_ms = 0
            door.machine.door.look()
            with pytest.raises(HttpBroken):
                await anext(chunks)
        await client.aclose()


async def test_the_end_of_an_answer_is_its_end() -> None:
    async def engine(stream: trio.SocketStream) -> None:
        await stream.receive_some()
        await stream.send_all(b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\ndata: token\n\n")

    async with doored(engine) as door:
        client = H11HttpClient(credentials=door.gateway)
        async with client.exchange(request(door, body=b"")) as response:
            assert await response.read(100) == b"data: token\n\n"
        await client.aclose()


async def test_websockets_pass() -> None:
    async with served(serve_http, echo) as server, doored(silent) as door:
        door.machine.records = [record(port=server.port)]
        caller = await door.call()
        await caller.send(handshake())
        raw = b""
        while b"\r\n\r\n" not in raw:
            raw += await caller.receive()
        await caller.send(frame(2, b"x" * 70_000) + frame(1, b"text"))
        while not raw.endswith(b"text"):
            raw += await caller.receive()
        await caller.send(frame(8, b"\x03\xe8"))
        while data := await caller.receive():
            raw += data
        assert ws_frames(raw) == [(2, b"x" * 70_000), (1, b"text"), (8, b"\x03\xe8")]
