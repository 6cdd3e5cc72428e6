"""What the simulated network does to packets, answers and machines."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import attrs
import pytest
import trio

from lunanexa_ports.asgi import AsgiApplication, Receive, Scope, Send
from lunanexa_ports.http_client import HttpBroken, HttpRequest, HttpUnreachable
from lunanexa_simulation.giving_up import ACKNOWLEDGED_S, GIVE_UP_S, PROBE_S
from lunanexa_simulation.http_client import SimulatedHttpClient, SimulatedNetwork
from lunanexa_simulation.links import RESEND_OPENING_S, RESEND_S
from lunanexa_simulation.rng import Streams
from lunanexa_simulation.run import Run, run_simulated
from lunanexa_simulation.verdicts import Verdict
from lunanexa_simulation.websocket_network import Closed, WebSocketExchange, open_websocket

HOST = "server"


@attrs.frozen
class Lab:
    """A network, and where what happens beside a test runs."""

    network: SimulatedNetwork
    nursery: trio.Nursery


def simulated(body: Callable[[Lab], Awaitable[None]]) -> Callable[[], None]:
    """A test on virtual time, which starts at 0."""

    async def main(run: Run) -> None:
        async with trio.open_nursery() as nursery:
            await body(Lab(SimulatedNetwork(nursery, run.streams), nursery))
            nursery.cancel_scope.cancel("the test is over")

    def test() -> None:
        result = run_simulated(main, 7, horizon_ms=600_000)
        assert result.verdict is Verdict.HELD, result.detail

    return test


def asking(method: str = "GET", body: bytes = b"", connect_timeout_ms: int = 5_000) -> HttpRequest:
    return HttpRequest(method=method, host=HOST, port=80, target="/", body=body, connect_timeout_ms=connect_timeout_ms)


async def ask(client: SimulatedHttpClient, request: HttpRequest) -> bytes:
    async with client.exchange(request) as response:
        return await response.read(10_000_000)


class Server:
    """Answers ``hello`` in two pieces, and counts."""

    def __init__(self) -> None:
        self.heard = 0

    async def __call__(self, _scope: Scope, receive: Receive, send: Send, /) -> None:
        while (await receive()).get("more_body"):
            pass
        self.heard += 1
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"hel", "more_body": True})
        await send({"type": "http.response.body", "body": b"lo", "more_body": False})


async def forever(_scope: Scope, receive: Receive, send: Send, /) -> None:
    """Answers with a piece a second until its client has gone."""
    await receive()
    await send({"type": "http.response.start", "status": 200, "headers": []})
    while True:
        await send({"type": "http.response.body", "body": b"x", "more_body": True})
        await trio.sleep(1)


def forever_until(gone: list[float]) -> AsgiApplication:
    """The same, and notes when its client has gone."""

    async def app(scope: Scope, receive: Receive, send: Send, /) -> None:
        try:
            await forever(scope, receive, send)
        except OSError:
            gone.append(trio.current_time())

    return app


# --- packets ---


@simulated
async def test_a_lost_packet_comes_after_a_pause_that_doubles(lab: Lab) -> None:
    link = lab.network.link("client", HOST)
    link.spoil(loss_per_mille=500)
    late = {round(link.draw_arrival(), 6) for _ in range(200)}
    pauses = [round(RESEND_S * (2**lost - 1), 6) for lost in range(9)]
    assert set(pauses[:4]) <= late <= set(pauses)
    link.spoil(loss_per_mille=1_000)
    assert link.draw_arrival(opening=True) == RESEND_OPENING_S * (2**8 - 1)
    link.spoil()
    assert link.draw_arrival() == 0


@simulated
async def test_losses_change_no_other_draw(lab: Lab) -> None:
    networks = [SimulatedNetwork(lab.nursery, Streams(3), latency_ms=(1, 1_000_000)) for _ in range(2)]
    links = [network.link("client", HOST) for network in networks]
    links[1].spoil(loss_per_mille=300)
    usual, spoilt = ([link.draw_arrival() for _ in range(50)] for link in links)
    late = [round(after - before, 6) for before, after in zip(usual, spoilt, strict=True)]
    assert late.count(0) > 10
    assert set(late) <= {round(RESEND_S * (2**lost - 1), 6) for lost in range(9)}


@simulated
async def test_what_was_sent_after_a_lost_packet_waits_for_it(lab: Lab) -> None:
    lab.network.listen(HOST, 80, forever)
    lab.network.link(HOST, "client").spoil(loss_per_mille=400)
    pieces, began = [], trio.current_time()
    async with SimulatedHttpClient(lab.network, "client").exchange(asking()) as response:
        async for _ in response.chunks():
            pieces.append(trio.current_time() - began)
            if len(pieces) == 30:
                break
    assert pieces == sorted(pieces)
    assert max(pieces[number] - number for number in range(30)) >= RESEND_S
    assert any(pieces[number] == pieces[number + 1] for number in range(29)), "one that waited comes with the next"


@simulated
async def test_a_narrow_link_is_shared_by_all_that_is_sent_over_it(lab: Lab) -> None:
    lab.network.listen(HOST, 80, Server())
    lab.network.link("client", HOST).spoil(bytes_s=100_000)
    ended: list[float] = []

    async def upload() -> None:
        await ask(SimulatedHttpClient(lab.network, "client"), asking("POST", b"x" * 1_000_000))
        ended.append(trio.current_time())

    async with trio.open_nursery() as uploads:
        uploads.start_soon(upload)
        uploads.start_soon(upload)
    assert [round(at_s) for at_s in ended] == [10, 20]


@simulated
async def test_what_is_wrong_is_told(lab: Lab) -> None:
    assert lab.network.troubles() == []
    lab.network.block("b", "a")
    lab.network.link("a", "b").spoil(loss_per_mille=20, breaks_per_mille=30, bytes_s=1_000)
    lab.network.silence("b")
    assert lab.network.troubles() == [
        "the machine of b is gone",
        "a to b: loses 20 of 1000 packets, loses 30 of 1000 answers, carries 1000 bytes a second",
        "b to a: is blocked",
    ]
    lab.network.heal("b", "a")
    lab.network.link("a", "b").spoil()
    lab.network.wake("b")
    assert lab.network.troubles() == []


# --- answers ---


@simulated
async def test_a_lost_answer_was_asked_for_and_who_asks_again_says_it_twice(lab: Lab) -> None:
    server, client = Server(), SimulatedHttpClient(lab.network, "client")
    lab.network.listen(HOST, 80, server)
    lab.network.link(HOST, "client").spoil(breaks_per_mille=1_000)
    with pytest.raises(HttpBroken) as caught:
        await ask(client, asking("POST"))
    assert not caught.value.head_seen
    lab.network.link(HOST, "client").spoil()
    assert await ask(client, asking("POST")) == b"hello"
    assert server.heard == 2


@simulated
async def test_what_may_be_done_twice_is_on_a_connection_that_was_kept(lab: Lab) -> None:
    server, client = Server(), SimulatedHttpClient(lab.network, "client")
    lab.network.listen(HOST, 80, server)
    await ask(client, asking())
    lab.network.link(HOST, "client").spoil(breaks_per_mille=1_000)
    with pytest.raises(HttpBroken):
        await ask(client, asking("PUT"))
    assert server.heard == 3


# --- machines ---


async def until_cut(client: SimulatedHttpClient) -> list[float]:
    """When pieces came of an answer without end, and when it was cut."""
    times: list[float] = []
    try:
        async with client.exchange(asking()) as response:
            chunks = response.chunks()
            while await anext(chunks):
                times.append(trio.current_time())
    except HttpBroken:
        times.append(trio.current_time())
    return times


@pytest.mark.parametrize(("back_after_s", "noticed_after_s"), [(None, GIVE_UP_S), (1, PROBE_S), (35, GIVE_UP_S)])
def test_a_machine_that_is_gone_is_given_up_by_who_is_left(back_after_s: int | None, noticed_after_s: int) -> None:
    @simulated
    async def test(lab: Lab) -> None:
        lab.network.listen(HOST, 80, forever)
        lab.nursery.start_soon(power_loss, lab)
        assert await until_cut(SimulatedHttpClient(lab.network, "client")) == [0, 1, 2, 2.5 + noticed_after_s]

    async def power_loss(lab: Lab) -> None:
        await trio.sleep(2.5)
        lab.network.silence(HOST)
        lab.network.kill(HOST, 80)
        if back_after_s is not None:
            await trio.sleep(back_after_s)
            lab.network.wake(HOST)

    test()


@simulated
async def test_what_a_machine_that_is_gone_still_tries_reaches_nobody(lab: Lab) -> None:
    """As its processes end, they cut their connections."""

    async def power_loss() -> None:
        await trio.sleep(2.5)
        connections = list(lab.network._listeners[HOST, 80].connections)
        lab.network.silence(HOST)
        lab.network.kill(HOST, 80)
        for connection in connections:
            connection.cut()

    lab.network.listen(HOST, 80, forever)
    lab.nursery.start_soon(power_loss)
    assert await until_cut(SimulatedHttpClient(lab.network, "client")) == [0, 1, 2, 2.5 + GIVE_UP_S]


@simulated
async def test_a_process_that_dies_is_heard_of_at_once(lab: Lab) -> None:
    async def kill() -> None:
        await trio.sleep(2.5)
        lab.network.kill(HOST, 80)

    lab.network.listen(HOST, 80, forever)
    lab.nursery.start_soon(kill)
    assert await until_cut(SimulatedHttpClient(lab.network, "client")) == [0, 1, 2, 2.5]


@simulated
async def test_a_machine_that_is_gone_answers_no_opening(lab: Lab) -> None:
    async def comes_back() -> None:
        await trio.sleep(8)
        lab.network.listen(HOST, 80, Server())
        lab.network.wake(HOST)

    lab.network.silence(HOST)
    with pytest.raises(HttpUnreachable, match="within 5000 ms"):
        await ask(SimulatedHttpClient(lab.network, "client"), asking())
    assert trio.current_time() == 5
    lab.nursery.start_soon(comes_back)
    request = asking(connect_timeout_ms=60_000)
    assert await ask(SimulatedHttpClient(lab.network, "client"), request) == b"hello"
    assert trio.current_time() == 13


@simulated
async def test_a_kept_connection_to_a_machine_that_was_gone_is_replaced(lab: Lab) -> None:
    client, server = SimulatedHttpClient(lab.network, "client"), Server()
    lab.network.listen(HOST, 80, server)
    await ask(client, asking())
    lab.network.silence(HOST)
    lab.network.kill(HOST, 80)
    lab.network.wake(HOST)
    lab.network.listen(HOST, 80, server)
    assert await ask(client, asking()) == b"hello"
    assert (server.heard, trio.current_time()) == (2, 0)


@simulated
async def test_a_request_on_a_kept_connection_to_a_machine_that_is_gone_waits(lab: Lab) -> None:
    client = SimulatedHttpClient(lab.network, "client")
    lab.network.listen(HOST, 80, Server())
    await ask(client, asking())
    lab.network.silence(HOST)
    lab.network.kill(HOST, 80)
    await trio.sleep(10)
    with pytest.raises(HttpBroken):
        await ask(client, asking("POST"))
    assert trio.current_time() == GIVE_UP_S


@simulated
async def test_a_client_whose_machine_is_gone_is_missed_late(lab: Lab) -> None:
    gone: list[float] = []

    async def power_loss() -> None:
        await trio.sleep(2.5)
        lab.network.silence("client")
        client.kill()

    lab.network.listen(HOST, 80, forever_until(gone))
    client = SimulatedHttpClient(lab.network, "client")
    lab.nursery.start_soon(power_loss)
    assert await until_cut(client) == [0, 1, 2, 2.5]
    await trio.sleep(2 * GIVE_UP_S)
    assert gone == [3 + ACKNOWLEDGED_S]


# --- WebSockets ---


class Echo:
    """Says again what it hears."""

    def __init__(self) -> None:
        self.over: list[float] = []

    async def __call__(self, _scope: Scope, receive: Receive, send: Send, /) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        while (message := await receive())["type"] == "websocket.receive":
            await send({"type": "websocket.send", "text": message["text"]})
        self.over.append(trio.current_time())


@asynccontextmanager
async def connected(network: SimulatedNetwork) -> AsyncIterator[WebSocketExchange]:
    async with open_websocket(network, "client", host=HOST, port=80, path="/", subprotocols=(), headers=()) as exchange:
        yield exchange


@simulated
async def test_messages_keep_their_order_over_a_lossy_link(lab: Lab) -> None:
    lab.network.listen(HOST, 80, Echo())
    for way in (("client", HOST), (HOST, "client")):
        lab.network.link(*way).spoil(loss_per_mille=300)
    async with connected(lab.network) as exchange:
        for number in range(40):
            exchange.say(str(number))
        assert [await exchange.hear() for _ in range(40)] == [str(number) for number in range(40)]
    assert trio.current_time() > RESEND_S


@simulated
async def test_a_websocket_to_a_machine_that_is_gone_is_given_up(lab: Lab) -> None:
    lab.network.listen(HOST, 80, Echo())
    async with connected(lab.network) as exchange:
        exchange.say("hello")
        assert await exchange.hear() == "hello"
        lab.network.silence(HOST)
        lab.network.kill(HOST, 80)
        assert await exchange.hear() == Closed(1006)
    assert trio.current_time() == GIVE_UP_S


@simulated
async def test_a_websocket_of_a_machine_that_is_gone_is_given_up_by_its_server(lab: Lab) -> None:
    echo = Echo()
    lab.network.listen(HOST, 80, echo)
    async with connected(lab.network):
        lab.network.silence("client")
    await trio.sleep(GIVE_UP_S + 1)
    assert echo.over == [GIVE_UP_S]


@simulated
async def test_an_opening_whose_answer_is_lost_is_no_websocket(lab: Lab) -> None:
    lab.network.listen(HOST, 80, Echo())
    lab.network.link(HOST, "client").spoil(breaks_per_mille=1_000)
    async with connected(lab.network) as exchange:
        assert await exchange.hear() == Closed(1006)
