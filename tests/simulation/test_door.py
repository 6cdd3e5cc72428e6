"""The simulated network's data listeners, and TLS between machines whose clocks differ."""

from collections.abc import Callable
from typing import Any

import pytest
import trio
import trio.testing

from lunanexa_core.drivers.specification import EngineAddress
from lunanexa_core.identity.certificate import PeerCertificate
from lunanexa_ports.asgi import Message, Receive, Scope, Send
from lunanexa_ports.conformance.http_client_tls import CLIENT, SERVER, Seen
from lunanexa_ports.data_door import Doorkeeper, DoorRefusal, Passage
from lunanexa_ports.http_client import HttpBroken, HttpClient, HttpRequest, HttpUnreachable, TlsPeer
from lunanexa_simulation.clock import SimulatedClock
from tests.simulation.tls_fleet import SimulatedFleet

ENGINE = EngineAddress("127.0.0.1", 40_000)
DOOR = ("node", 8_410)


class Way(Passage):
    def __init__(self, *, over: bool = False) -> None:
        self._over = over
        self.close: Callable[[], None] | None = None
        self.was_left = trio.Event()

    @property
    def to(self) -> EngineAddress:
        return ENGINE

    def on_close(self, close: Callable[[], None]) -> None:
        self.close = close
        if self._over:
            close()

    def left(self) -> None:
        self.was_left.set()


class Keeper(Doorkeeper):
    """Lets in whoever asks for a start that it knows."""

    def __init__(self, **ways: Way) -> None:
        self._ways = ways
        self.asked: list[tuple[str, str | None]] = []

    def admit(self, peer: PeerCertificate, server_name: str | None) -> Passage | DoorRefusal:
        self.asked.append((peer.identity, server_name))
        return self._ways.get(server_name or "", DoorRefusal.UNKNOWN_START_ID)


class House:
    """A node with a door, an engine behind it, and a gateway."""

    def __init__(self, nursery: trio.Nursery, engine: Any, way: Way | None = None) -> None:
        fleet = SimulatedFleet(nursery, (1, 5))
        self.network = fleet.network
        self.way = way or Way()
        self.keeper = Keeper(start1=self.way)
        self.client: HttpClient = fleet.client(fleet.bench.party(CLIENT))
        self.network.listen(ENGINE.host, ENGINE.port, engine)
        credentials = fleet.credentials()
        credentials.trust([fleet.bench.root(0)])
        fleet.bench.renew(credentials, SERVER)
        self.network.listen_door(*DOOR, self.keeper, credentials)

    def request(self, method: str = "GET", *, start: str = "start1", **rest: Any) -> HttpRequest:
        tls = TlsPeer(identity=SERVER, server_name=start)
        return HttpRequest(method=method, host=DOOR[0], port=DOOR[1], target="/a%20b?c=d", tls=tls, **rest)


class Engine:
    """Streams what it is sent, then goes on until its client leaves."""

    def __init__(self) -> None:
        self.scopes: list[Scope] = []
        self.left = trio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.scopes.append(scope)
        await send({"type": "http.response.start", "status": 207, "headers": [(b"x-one", b"1")]})
        message: Message = {"more_body": True}
        while message.get("more_body"):
            message = await receive()
            await send({"type": "http.response.body", "body": message["body"], "more_body": True})
        if scope["method"] == "POST":
            await send({"type": "http.response.body", "body": b"", "more_body": False})
            return
        while (await receive())["type"] != "http.disconnect":
            pass
        self.left.set()


async def test_whoever_is_let_in_is_passed_on(autojump_clock: trio.testing.MockClock, nursery: trio.Nursery) -> None:
    assert autojump_clock.autojump_threshold == 0
    engine = Engine()
    house = House(nursery, engine)
    body = bytes(range(256)) * 4_096
    async with house.client.exchange(house.request("POST", body=body, headers=((b"x-in", b"2"),))) as response:
        assert (response.status, response.headers) == (207, ((b"x-one", b"1"),))
        assert await response.read(len(body)) == body
    await house.way.was_left.wait()
    assert house.keeper.asked == [(CLIENT, "start1")]
    (scope,) = engine.scopes
    assert (scope["raw_path"], scope["query_string"], scope["client"][0]) == (b"/a%20b", b"c=d", "node")
    assert (b"x-in", b"2") in scope["headers"]
    async with house.client.exchange(house.request("POST")) as response:
        await response.read(0)
    assert len(house.keeper.asked) == 2, "each exchange asks anew"


async def test_who_is_not_let_in_reaches_no_engine(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    assert autojump_clock.autojump_threshold == 0
    engine = Engine()
    house = House(nursery, engine)
    for start in ("start0", "start1 "):
        assert not (await broken(house, house.request(start=start))).head_seen
    assert engine.scopes == []
    anonymous = TlsPeer(identity=SERVER, server_name="start1", anonymous=True)
    assert not (await broken(house, HttpRequest(method="GET", host="node", port=8_410, target="/"))).head_seen
    asked = HttpRequest(method="GET", host="node", port=8_410, target="/", tls=anonymous)
    assert not (await broken(house, asked)).head_seen
    assert len(house.keeper.asked) == 2, "who shows no certificate is not asked about"


async def test_a_passage_that_is_over_is_closed_at_once(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    assert autojump_clock.autojump_threshold == 0
    engine = Engine()
    house = House(nursery, engine, Way(over=True))
    assert not (await broken(house, house.request())).head_seen
    assert engine.scopes == []
    await house.way.was_left.wait()


@pytest.mark.parametrize("end", ["closed", "door", "engine", "client"])
async def test_either_end_sees_the_end_of_a_passage(
    end: str, autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    assert autojump_clock.autojump_threshold == 0
    engine = Engine()
    house = House(nursery, engine)
    async with house.client.exchange(house.request(body=b"some")) as response:
        pieces = response.chunks()
        assert await anext(pieces) == b"some"
        assert not house.way.was_left.is_set()
        if end == "closed":
            assert house.way.close is not None
            house.way.close()
        elif end == "door":
            house.network.kill(*DOOR)
        elif end == "engine":
            house.network.kill(ENGINE.host, ENGINE.port)
        if end != "client":
            with pytest.raises(HttpBroken) as caught:
                await anext(pieces)
            assert caught.value.head_seen
    await house.way.was_left.wait()
    if end != "engine":
        await engine.left.wait()


async def test_a_door_before_an_engine_that_is_away(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    assert autojump_clock.autojump_threshold == 0
    house = House(nursery, Engine())
    house.network.kill(ENGINE.host, ENGINE.port)
    assert not (await broken(house, house.request())).head_seen
    await house.way.was_left.wait()


@pytest.mark.parametrize("by_ms", [-2 * 86_400_000, 2 * 86_400_000])
async def test_each_side_goes_by_its_own_clock(
    by_ms: int, autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    assert autojump_clock.autojump_threshold == 0
    fleet, app = SimulatedFleet(nursery), Seen()
    strange = SimulatedClock()
    strange.jump_wall(by_ms)
    own = fleet.credentials(strange)
    own.trust([fleet.bench.root(0)])
    fleet.bench.renew(own, CLIENT)
    client, honest = fleet.client(own), fleet.client(fleet.bench.party(CLIENT))
    peer = TlsPeer(identity=SERVER, server_name="x")
    async with fleet.serve(app, fleet.bench.party(SERVER), demand=True) as served:
        with pytest.raises(HttpUnreachable, match="not good by now"):
            async with client.exchange(served.request(tls=peer)):
                pass
        async with client.exchange(served.request(tls=TlsPeer(identity=None, server_name="x"))) as response:
            assert response.status == 200, "by the server's clock the client's certificate is good"
        async with honest.exchange(served.request(tls=peer)) as response:
            assert response.status == 200
    async with fleet.serve(app, own, demand=True) as served:
        with pytest.raises(HttpBroken, match="refused: check this process's certificate"):
            async with honest.exchange(served.request(tls=TlsPeer(identity=CLIENT, server_name="x"))):
                pass


async def broken(house: House, request: HttpRequest) -> HttpBroken:
    with pytest.raises(HttpBroken) as caught:
        async with house.client.exchange(request):
            pass
    return caught.value
