"""When the ends of a connection give it up whose link stays blocked, in one way or both."""

from functools import partial
from typing import Final

import pytest
import trio

from lunanexa_ports.asgi import Receive, Scope, Send
from lunanexa_ports.http_client import HttpBroken, HttpUnreachable
from lunanexa_simulation.giving_up import ACKNOWLEDGED_S, GIVE_UP_S
from lunanexa_simulation.http_client import SimulatedHttpClient
from lunanexa_simulation.websocket_network import Closed
from tests.simulation.test_links import (
    HOST,
    Echo,
    Lab,
    Server,
    ask,
    asking,
    connected,
    forever,
    forever_until,
    simulated,
    until_cut,
)

THERE: Final = ("client", HOST)
BACK: Final = (HOST, "client")


async def blocked(
    lab: Lab,
    *ways: tuple[str, str],
    after_s: float = 0,
    for_s: float = 600,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    await trio.sleep(after_s)
    for way in ways:
        lab.network.block(*way)
    task_status.started()
    await trio.sleep(for_s)
    for way in ways:
        lab.network.heal(*way)


@pytest.mark.parametrize("ways", [(THERE,), (BACK,), (THERE, BACK)])
def test_ends_that_don_t_hear_each_other_give_up(ways: tuple[tuple[str, str], ...]) -> None:
    gone: list[float] = []

    @simulated
    async def test(lab: Lab) -> None:
        lab.network.listen(HOST, 80, forever_until(gone))
        lab.nursery.start_soon(partial(blocked, lab, *ways, after_s=2.5))
        *heard, cut = await until_cut(SimulatedHttpClient(lab.network, "client"))
        assert cut == 2.5 + GIVE_UP_S, "it sent nothing that waits for word"
        assert gone == [3 + ACKNOWLEDGED_S], "it did"
        assert heard == [0, 1, 2] if BACK in ways else heard[:5] == [0, 1, 2, 3, 4]

    test()


@pytest.mark.parametrize("way", [THERE, BACK])
def test_a_request_on_a_kept_connection_whose_link_is_blocked_is_given_up(way: tuple[str, str]) -> None:
    @simulated
    async def test(lab: Lab) -> None:
        client, server = SimulatedHttpClient(lab.network, "client"), Server()
        lab.network.listen(HOST, 80, server)
        await ask(client, asking())
        await lab.nursery.start(partial(blocked, lab, way, for_s=100))
        with pytest.raises(HttpBroken) as caught:
            await ask(client, asking("POST", b"x"))
        assert not caught.value.head_seen
        assert trio.current_time() == ACKNOWLEDGED_S
        with pytest.raises(HttpUnreachable, match="within 5000 ms"):
            await ask(client, asking("POST"))
        await trio.sleep(80)
        assert server.heard == (1 if way is THERE else 2), "what was not delivered never is"
        assert await ask(client, asking("POST")) == b"hello"

    test()


@simulated
async def test_a_connection_that_nobody_uses_is_given_up_too(lab: Lab) -> None:
    client, server = SimulatedHttpClient(lab.network, "client"), Server()
    lab.network.listen(HOST, 80, server)
    await ask(client, asking())
    kept = lab.network._listeners[HOST, 80].connections
    assert len(kept) == 1
    lab.nursery.start_soon(partial(blocked, lab, THERE, for_s=GIVE_UP_S + 1))
    await trio.sleep(GIVE_UP_S - 1)
    assert len(kept) == 1
    await trio.sleep(3)
    assert not kept
    assert await ask(client, asking("POST")) == b"hello"
    await client.aclose()
    assert not lab.network._living, "nothing is kept of what is over"


@pytest.mark.parametrize(("for_s", "cut"), [(29, []), (35, [0, 1, 2, 2.5 + GIVE_UP_S])])
def test_what_an_end_held_back_that_gave_up_never_comes(for_s: float, cut: list[float]) -> None:
    """Where neither has, all goes on."""

    @simulated
    async def test(lab: Lab) -> None:
        async def listen() -> None:
            heard.extend(await until_cut(SimulatedHttpClient(lab.network, "client")))

        heard: list[float] = []
        lab.network.listen(HOST, 80, forever)
        lab.nursery.start_soon(partial(blocked, lab, BACK, after_s=2.5, for_s=for_s))
        lab.nursery.start_soon(listen)
        await trio.sleep(100)
        assert heard == cut

    test()


@pytest.mark.parametrize(("answer_after_s", "comes"), [(38, True), (41, False)])
def test_what_is_heard_again_just_before_the_end_is_a_sign(answer_after_s: float, *, comes: bool) -> None:
    """Both ask in vain after 30 s, and give up after 40 unless something is said in between."""

    async def app(_scope: Scope, _receive: Receive, send: Send, /) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await trio.sleep(answer_after_s)
        await send({"type": "http.response.body", "body": b"late", "more_body": False})

    @simulated
    async def test(lab: Lab) -> None:
        lab.network.listen(HOST, 80, app)
        async with SimulatedHttpClient(lab.network, "client").exchange(asking()) as response:
            await lab.nursery.start(partial(blocked, lab, BACK, for_s=36))
            try:
                assert (await response.read(10) == b"late") == comes
            except HttpBroken:
                assert not comes
        assert trio.current_time() == (answer_after_s if comes else GIVE_UP_S)

    test()


@pytest.mark.parametrize("way", [THERE, BACK])
def test_a_websocket_whose_link_stays_blocked_is_given_up_at_both_ends(way: tuple[str, str]) -> None:
    @simulated
    async def test(lab: Lab) -> None:
        echo = Echo()
        lab.network.listen(HOST, 80, echo)
        async with connected(lab.network) as exchange:
            await lab.nursery.start(blocked, lab, way)
            exchange.say("hello")
            while not isinstance(item := await exchange.hear(), Closed):
                assert (item, way) == ("hello", THERE)
            assert item == Closed(1006)
            assert trio.current_time() == ACKNOWLEDGED_S
        await trio.sleep(GIVE_UP_S)
        assert len(echo.over) == 1
        assert ACKNOWLEDGED_S <= echo.over[0] <= GIVE_UP_S

    test()


@simulated
async def test_what_is_said_to_an_end_that_gave_up_is_answered_by_a_reset(lab: Lab) -> None:
    async def talks(_scope: Scope, receive: Receive, send: Send, /) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        await trio.sleep(1)
        await send({"type": "websocket.send", "text": "nobody hears it"})
        assert (await receive())["type"] == "websocket.disconnect"

    lab.network.listen(HOST, 80, talks)
    async with connected(lab.network) as exchange:
        await lab.nursery.start(partial(blocked, lab, BACK, for_s=35))
        await trio.sleep(36)
        began = trio.current_time()
        lab.network.set_latency(*THERE, (10, 10))
        exchange.say("are you there")
        assert await exchange.hear() == Closed(1006)
        assert round(trio.current_time() - began, 6) == 0.01
