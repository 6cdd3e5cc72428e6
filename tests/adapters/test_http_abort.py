"""The extension with which an application closes its connection: over sockets, and in the simulated network."""

from typing import Any

import pytest
import trio

from lunanexa_adapters.http_client.http_client import H11HttpClient
from lunanexa_adapters.http_server.lean import serve_lean
from lunanexa_adapters.http_server.serve import serve_http
from lunanexa_ports.asgi import ABORT, Receive, Scope, Send
from lunanexa_ports.http_client import HttpBroken, HttpClient, HttpRequest
from lunanexa_simulation.http_client import SimulatedHttpClient, SimulatedNetwork
from lunanexa_simulation.rng import Streams
from tests.adapters.http_tools import served, talk

STARTS = {
    "/framed": [(b"content-length", b"10")],
    "/chunked": [],
}


async def aborting(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers ``/``; begins an answer on the other paths but ``/nothing``, and closes."""
    assert ABORT in scope["extensions"]
    await receive()
    headers = STARTS.get(scope["path"])
    if scope["path"] == "/":
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})
        return
    if headers is not None:
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"abc", "more_body": True})
    await send({"type": ABORT})


async def check(client: HttpClient, host: str, port: int) -> None:
    def request(path: str) -> HttpRequest:
        return HttpRequest(method="GET", host=host, port=port, target=path)

    async def answers() -> None:
        async with client.exchange(request("/")) as response:
            assert await response.read(10) == b"ok"

    for path in STARTS:
        await answers()
        async with client.exchange(request(path)) as response:
            chunks = response.chunks()
            assert await anext(chunks) == b"abc"
            with pytest.raises(HttpBroken):
                await anext(chunks)
    await answers()
    with pytest.raises(HttpBroken):
        async with client.exchange(request("/nothing")):
            pass
    await answers()


async def test_over_sockets() -> None:
    async with served(serve_lean, aborting) as server:
        client = H11HttpClient()
        await check(client, server.host, server.port)
        await client.aclose()
        assert await talk(server, b"GET /nothing HTTP/1.1\r\nhost: x\r\n\r\n") == b""
        assert (await talk(server, b"GET /chunked HTTP/1.1\r\nhost: x\r\n\r\n")).endswith(b"\r\n3\r\nabc\r\n")
        assert server.faults == []


async def test_in_the_simulated_network() -> None:
    async with trio.open_nursery() as nursery:
        network = SimulatedNetwork(nursery, Streams(1))
        network.listen("server", 80, aborting)
        await check(SimulatedHttpClient(network, "client"), "server", 80)


async def unended(_scope: Scope, receive: Receive, send: Send) -> None:
    """Returns within its answer."""
    await receive()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"audio/wav")]})
    await send({"type": "http.response.body", "body": b"abc", "more_body": True})


@pytest.mark.parametrize("serve", [serve_http, serve_lean])
async def test_an_answer_that_does_not_end_ends_with_its_connection(serve: Any) -> None:
    async with served(serve, unended) as server:
        client = H11HttpClient()
        async with client.exchange(HttpRequest(method="GET", host=server.host, port=server.port, target="/")) as answer:
            chunks = answer.chunks()
            assert await anext(chunks) == b"abc"
            with pytest.raises(HttpBroken):
                await anext(chunks)
        await client.aclose()
        assert (await talk(server, b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")).endswith(b"\r\n3\r\nabc\r\n")
