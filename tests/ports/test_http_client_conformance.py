"""The published suite of the ``http_client`` port on the simulated client, and the faults of its network."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing

from lunanexa_ports.asgi import AsgiApplication, Receive, Scope, Send
from lunanexa_ports.conformance.http_client import HTTP_CLIENT_CHECKS, LIMIT_S, Bench, ServedApp
from lunanexa_ports.http_client import HttpBroken, HttpClient, HttpRequest, HttpUnreachable
from lunanexa_simulation.http_client import SimulatedHttpClient, SimulatedNetwork
from lunanexa_simulation.rng import Streams

REQUEST = HttpRequest(method="GET", host="server", port=80, target="/")


@pytest.mark.parametrize("check", HTTP_CLIENT_CHECKS)
@pytest.mark.parametrize("latency_ms", [(0, 0), (1, 5)])
async def test_simulated_client(
    check: Callable[[Bench], Awaitable[None]],
    latency_ms: tuple[int, int],
    autojump_clock: trio.testing.MockClock,
    nursery: trio.Nursery,
) -> None:
    assert autojump_clock.autojump_threshold == 0
    network = SimulatedNetwork(nursery, Streams(7), latency_ms=latency_ms)
    ports = iter(range(1, 1_000))

    def make_client(*, exchanges_per_origin: int = 8) -> HttpClient:
        return SimulatedHttpClient(network, "client", exchanges_per_origin=exchanges_per_origin)

    @asynccontextmanager
    async def serve_app(app: AsgiApplication) -> AsyncIterator[ServedApp]:
        port = next(ports)
        network.listen("server", port, app)
        alive = True

        def kill() -> None:
            nonlocal alive
            network.kill("server", port)
            alive = False

        yield ServedApp(host="server", port=port, kill=kill)
        if alive:
            kill()

    with trio.fail_after(LIMIT_S):
        await check(Bench(make_client, serve_app))


async def hello(_scope: Scope, _receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"hello", "more_body": True})
    await send({"type": "http.response.body", "body": b" world", "more_body": False})


async def ask(client: HttpClient, request: HttpRequest = REQUEST) -> bytes:
    async with client.exchange(request) as response:
        return await response.read(1_000)


async def test_blocked_way_there_delays_a_request_until_it_heals(
    mock_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    network = SimulatedNetwork(nursery, Streams(1))
    network.listen("server", 80, hello)
    client = SimulatedHttpClient(network, "client")
    assert await ask(client) == b"hello world"  # from here on there is a connection
    network.block("client", "server")
    bodies: list[bytes] = []

    async def later() -> None:
        bodies.append(await ask(client))

    async with trio.open_nursery() as asking:
        asking.start_soon(later)
        await trio.testing.wait_all_tasks_blocked()
        mock_clock.jump(25)
        await trio.testing.wait_all_tasks_blocked()
        assert bodies == []
        network.heal("client", "server")
    assert bodies == [b"hello world"]


async def test_blocked_link_leaves_no_connection(autojump_clock: trio.testing.MockClock, nursery: trio.Nursery) -> None:
    network = SimulatedNetwork(nursery, Streams(1))
    network.listen("server", 80, hello)
    network.block("server", "client")
    with pytest.raises(HttpUnreachable, match="5000 ms"):
        await ask(SimulatedHttpClient(network, "client"))
    assert autojump_clock.current_time() == 5.0
    assert await ask(SimulatedHttpClient(network, "other")) == b"hello world"


async def test_blocked_way_back_holds_the_answer_and_keeps_its_order(
    mock_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    network = SimulatedNetwork(nursery, Streams(1))

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        network.block("server", "client")
        await hello(scope, receive, send)

    network.listen("server", 80, app)
    bodies: list[bytes] = []

    async def later() -> None:
        bodies.append(await ask(SimulatedHttpClient(network, "client")))

    async with trio.open_nursery() as asking:
        asking.start_soon(later)
        await trio.testing.wait_all_tasks_blocked()
        mock_clock.jump(25)
        await trio.testing.wait_all_tasks_blocked()
        assert bodies == []
        network.heal("server", "client")
    assert bodies == [b"hello world"]


async def test_departure_is_not_seen_through_a_blocked_link(nursery: trio.Nursery) -> None:
    network = SimulatedNetwork(nursery, Streams(1))
    left = trio.Event()

    async def app(_scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while (await receive())["type"] != "http.disconnect":
            pass
        left.set()

    network.listen("server", 80, app)
    client = SimulatedHttpClient(network, "client")
    async with client.exchange(REQUEST):
        network.block("client", "server")
    await trio.testing.wait_all_tasks_blocked()
    assert not left.is_set()
    network.heal("client", "server")
    await left.wait()


async def test_refusal_and_its_end(nursery: trio.Nursery) -> None:
    network = SimulatedNetwork(nursery, Streams(1))
    network.listen("server", 80, hello)
    network.refuse("server", 80)
    client = SimulatedHttpClient(network, "client")
    with pytest.raises(HttpUnreachable):
        await ask(client)
    network.refuse("server", 80, on=False)
    assert await ask(client) == b"hello world"


async def test_killed_server_says_nothing_more(nursery: trio.Nursery) -> None:
    """Not even in the shielded cleanup of its handlers."""
    network = SimulatedNetwork(nursery, Streams(1))
    asked = trio.Event()
    refused = trio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            asked.set()
            await trio.sleep_forever()
        finally:
            with trio.move_on_after(1, shield=True):
                try:
                    await hello(scope, receive, send)
                except OSError:
                    refused.set()

    network.listen("server", 80, app)

    async def kill() -> None:
        await asked.wait()
        network.kill("server", 80)

    nursery.start_soon(kill)
    with pytest.raises(HttpBroken) as caught:
        await ask(SimulatedHttpClient(network, "client"))
    assert not caught.value.head_seen
    await refused.wait()


async def test_killed_client_is_a_departure(nursery: trio.Nursery) -> None:
    network = SimulatedNetwork(nursery, Streams(1))
    asked, left = trio.Event(), trio.Event()

    async def app(_scope: Scope, receive: Receive, _send: Send) -> None:
        asked.set()
        while (await receive())["type"] != "http.disconnect":
            pass
        left.set()

    network.listen("server", 80, app)
    client = SimulatedHttpClient(network, "client")

    async def kill() -> None:
        await asked.wait()
        client.kill()

    nursery.start_soon(kill)
    with pytest.raises(HttpBroken):
        await ask(client)
    await left.wait()
    with pytest.raises(HttpUnreachable):
        await ask(client)


async def test_slow_reader_slows_its_server(nursery: trio.Nursery) -> None:
    network = SimulatedNetwork(nursery, Streams(1))
    sent = 0

    async def app(_scope: Scope, _receive: Receive, send: Send) -> None:
        nonlocal sent
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(100):
            await send({"type": "http.response.body", "body": b"x" * 65_536, "more_body": True})
            sent += 1
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    network.listen("server", 80, app)
    async with SimulatedHttpClient(network, "client").exchange(REQUEST) as response:
        await trio.testing.wait_all_tasks_blocked()
        assert sent < 10
        assert len(await response.read(100 * 65_536)) == 100 * 65_536


async def test_arrivals_repeat_with_the_seed(autojump_clock: trio.testing.MockClock, nursery: trio.Nursery) -> None:
    async def arrivals(seed: int) -> list[float]:
        network = SimulatedNetwork(nursery, Streams(seed), latency_ms=(1, 1_000))
        network.listen("server", 80, hello)
        began = trio.current_time()
        times: list[float] = []
        async with SimulatedHttpClient(network, "client").exchange(REQUEST) as response:
            times.append(trio.current_time() - began)
            times += [trio.current_time() - began async for _ in response.chunks()]
        return [round(time, 6) for time in times]

    first = await arrivals(3)
    assert first == sorted(first)
    assert first == await arrivals(3)
    assert first != await arrivals(4)
    assert autojump_clock.current_time() > 0
