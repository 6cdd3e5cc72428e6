"""The front and the console over a world, in memory and on virtual time."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from pathlib import Path
from typing import Any, Final

import attrs
import pytest
import trio

from lunanexa_core.ids import RequestId
from lunanexa_core.time import Instant
from lunanexa_ports.asgi import AsgiApplication, Message, Scope
from lunanexa_ports.clock import Clock
from lunanexa_ports.http_client import HttpRequest
from lunanexa_simulation.client import Client, Ending
from lunanexa_simulation.controller_host import HOST, PORT
from lunanexa_simulation.faults import crash_controller
from lunanexa_simulation.giving_up import GIVE_UP_S
from lunanexa_simulation.http_client import SimulatedHttpClient
from lunanexa_simulation.ids import SimulatedIds
from lunanexa_simulation.rng import Streams
from lunanexa_simulation.run import Run, run_simulated
from lunanexa_simulation.serving.application import ServingApp
from lunanexa_simulation.serving.board import FaultBoard
from lunanexa_simulation.serving.console import Console
from lunanexa_simulation.serving.feed import Feed
from lunanexa_simulation.serving.front import Front
from lunanexa_simulation.serving.front_stream import carry_stream
from lunanexa_simulation.serving.kinds import FAULTS
from lunanexa_simulation.serving.real_time import RealTime
from lunanexa_simulation.serving.status import Access
from lunanexa_simulation.serving.switches import SWITCHES
from lunanexa_simulation.serving.watch import Watch
from lunanexa_simulation.sight import Sight
from lunanexa_simulation.trace import LogBuffer, Trace
from lunanexa_simulation.upload import WINDOW_BYTES
from lunanexa_simulation.verdicts import Verdict
from lunanexa_simulation.websocket_client import StreamCaller
from lunanexa_simulation.websocket_network import Refused, WebSocketExchange, open_websocket
from lunanexa_simulation.world import World, open_world
from lunanexa_simulation.world_plan import WorldPlan

FRONT: Final = "front"
WEB: Final = 80
BACK_MS: Final = 120_000
DRAINED_BYTES: Final = 5 * 1024 * 1024
"""What a controller takes of a body that it has refused, at most, and the limit of this one."""


@attrs.frozen
class Served:
    """A world that serves strangers."""

    world: World
    http: SimulatedHttpClient
    client: Client
    board: FaultBoard
    said: list[str]
    app: ServingApp

    async def ask(self, method: str, target: str, body: bytes = b"") -> tuple[int, Any]:
        request = HttpRequest(method=method, host=FRONT, port=WEB, target=target, body=body)
        async with self.http.exchange(request) as response:
            return response.status, json.loads(await response.read(1 << 20))

    async def begin(self, **fault: object) -> int:
        status, document = await self.ask("POST", "/sim/faults", json.dumps(fault).encode())
        assert status == 201, document
        return int(document["id"])

    async def heal(self, number: int) -> None:
        assert (await self.ask("DELETE", f"/sim/faults/{number}"))[0] == 202
        await self.world.until("it is healed", lambda: not self.board.in_force, within_ms=BACK_MS)


@asynccontextmanager
async def served(world: World, replicas: int = 1) -> AsyncIterator[Served]:
    said: list[str] = []
    await world.start()
    await world.deploy(replicas=replicas)
    await world.until("it serves", lambda: world.routable() == replicas, within_ms=60_000)
    async with trio.open_nursery() as nursery:
        watch = Watch(world, nullcontext, said.append)
        board = FaultBoard(world, nursery, watch, said.append)
        access = Access(base_url="", api_key=world.secrets.api_key, operator_token="")
        console = Console(world, access, board, watch, Feed(world.run.trace))
        ids = SimulatedIds(world.run.streams.stream("front"), world.clock)
        app = ServingApp(world, Front(world), console, ids)
        world.network.listen(FRONT, WEB, app)
        http = SimulatedHttpClient(world.network, "stranger")
        key = world.secrets.api_key
        client = Client(http, host=FRONT, port=WEB, api_key=key, trace=world.run.trace, name="stranger")
        yield Served(world, http, client, board, said, app)
        nursery.cancel_scope.cancel("the test is over")


def serving(body: Callable[[Served], Awaitable[None]], plan: WorldPlan | None = None) -> None:
    async def main(run: Run) -> None:
        async with open_world(run, plan) as world, served(world) as all_of_it:
            await body(all_of_it)

    result = run_simulated(main, 1, horizon_ms=600_000)
    assert result.verdict is Verdict.HELD, (result.problem, result.detail, *result.tail)


def test_what_passes_the_front_is_what_the_controller_said() -> None:
    async def body(served: Served) -> None:
        world = served.world
        prompt = world.prompt("the same", stream=True)
        direct, carried = [await _bytes_of(served, host, port, prompt) for host, port in ((HOST, PORT), (FRONT, WEB))]
        assert [event.split(b'"choices"')[1] for event in _events(direct)] == [
            event.split(b'"choices"')[1] for event in _events(carried)
        ]
        for stream in (False, True):
            prompt = world.prompt("the sea", stream=stream)
            answer = await served.client.chat(prompt)
            assert answer.ending is Ending.WHOLE
            assert world.oracle.fault(prompt, answer) is None
        assert (await served.client.call("GET", "/v1/no-such?a=b"))[0] == 404
        assert world.run.happened["answer 200"] == 3

    serving(body)


async def _bytes_of(served: Served, host: str, port: int, prompt: dict[str, object]) -> bytes:
    key = served.world.secrets.api_key
    headers = ((b"authorization", b"Bearer " + key.encode()), (b"content-type", b"application/json"))
    request = HttpRequest(
        method="POST",
        host=host,
        port=port,
        target="/v1/chat/completions",
        headers=headers,
        body=json.dumps(prompt).encode(),
    )
    async with served.http.exchange(request) as response:
        assert response.status == 200
        return await response.read(1 << 20)


def _events(body: bytes) -> list[bytes]:
    return [event for event in body.split(b"\n\n") if b'"choices"' in event]


def test_an_answer_that_breaks_off_breaks_the_strangers_connection() -> None:
    async def body(served: Served) -> None:
        world = served.world
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_cut_short, served)
            await world.until("the stream runs", lambda: served.client.begun == 1, within_ms=10_000)
            crash_controller(world)
        status, document = await served.ask("GET", "/v1/models")
        assert (status, document["error"]["code"]) == (502, "controller_unreachable")
        assert document["error"]["retryable"]
        await world.start_controller()
        await world.until_told("it is listed again", lambda: _listed(served), within_ms=BACK_MS)

    serving(body)


async def _cut_short(served: Served) -> None:
    prompt = served.world.prompt("to be cut", stream=True)
    answer = await served.client.chat(prompt)
    assert answer.ending is Ending.CUT
    assert 0 < len(answer.text) < len(served.world.oracle.expect(prompt))


async def _listed(served: Served) -> bool:
    return bool(await served.client.models())


def test_strangers_are_carried_to_who_leads() -> None:
    async def body(served: Served) -> None:
        world = served.world
        await world.start_standbys()
        first = world.controller.host
        down = await served.begin(kind="controller-down", target=1)
        await world.until_told("another serves", lambda: _listed(served), within_ms=BACK_MS)
        assert world.controller.host != first
        await served.heal(down)

    serving(body, WorldPlan(controllers=2))


def test_who_leaves_is_seen_to_leave() -> None:
    async def body(served: Served) -> None:
        world = served.world
        async with trio.open_nursery() as nursery:
            nursery.start_soon(served.client.chat, world.prompt("never mind", stream=True))
            await world.until("the stream runs", lambda: served.client.begun == 1, within_ms=10_000)
            nursery.cancel_scope.cancel("the stranger leaves")
        await world.until("nothing is held", lambda: not world.kernel.state.open, within_ms=2_000)

    serving(body)


def test_faults_of_the_way_reach_the_stranger() -> None:
    async def body(served: Served) -> None:
        slow = await served.begin(kind="client-slow", latency_ms=400)
        began_s = trio.current_time()
        assert (await served.ask("GET", "/health"))[0] == 200
        assert trio.current_time() - began_s >= 0.8
        await served.heal(slow)
        cut = await served.begin(kind="client-cut", way="to-controller")
        status, document = await served.ask("GET", "/health")
        assert (status, document["error"]["code"]) == (502, "controller_unreachable")
        await served.heal(cut)
        assert (await served.ask("GET", "/health"))[0] == 200

    serving(body)


def test_an_answer_whose_way_stays_cut_is_given_up_at_both_ends() -> None:
    async def body(served: Served) -> None:
        world = served.world
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_cut_short, served)
            await world.until("the stream runs", lambda: served.client.begun == 1, within_ms=10_000)
            began_s = trio.current_time()
            cut = await served.begin(kind="client-cut", way="to-client")
        assert trio.current_time() == pytest.approx(began_s + GIVE_UP_S, abs=0.1)
        await world.until("it is settled", lambda: not world.kernel.state.open, within_ms=1_000)
        await served.heal(cut)
        await world.until_told("it answers again", lambda: _answers(served), within_ms=BACK_MS)

    serving(body)


@pytest.mark.parametrize("in_pieces", [False, True])
def test_a_body_that_is_too_large_is_refused_by_the_controllers_words(*, in_pieces: bool) -> None:
    """As soon as that must be so, by a length that is said or by what has come; nobody takes all of it."""
    body_bytes = 64 * 1024 * 1024
    length = [] if in_pieces else [(b"content-length", b"%d" % body_bytes)]

    async def ask(app: AsgiApplication, key: bytes) -> tuple[list[Message], int]:
        told: list[Message] = []
        taken_bytes, gone = 0, trio.Event()

        async def receive() -> Message:
            nonlocal taken_bytes
            await trio.lowlevel.checkpoint()
            if gone.is_set() or taken_bytes >= body_bytes:
                await gone.wait()
                return {"type": "http.disconnect"}
            taken_bytes += 65_536
            return {"type": "http.request", "body": b" " * 65_536, "more_body": taken_bytes < body_bytes}

        async def send(message: Message) -> None:
            await trio.lowlevel.checkpoint()
            told.append(message)
            if not message.get("more_body", True):
                gone.set()

        scope: Scope = {
            "type": "http",
            "method": "POST",
            "path": "/v1/embeddings",
            "raw_path": b"/v1/embeddings",
            "query_string": b"",
            "headers": [(b"host", b"x"), (b"authorization", b"Bearer " + key), (b"x-request-id", b"req_7"), *length],
            "extensions": {},
        }
        await app(scope, receive, send)
        return told, taken_bytes

    async def body(served: Served) -> None:
        world = served.world
        listeners = world.network._listeners
        key = world.secrets.api_key.encode()
        direct = await ask(listeners[HOST, PORT].app or served.app, key)
        carried = await ask(served.app, key)
        assert _said(carried[0]) == _said(direct[0])
        start, told = _said(carried[0])
        assert (start["status"], json.loads(told)["error"]["code"]) == (413, "payload_too_large")
        assert (b"connection", b"close") in start["headers"]
        assert carried[1] <= DRAINED_BYTES + 2 * WINDOW_BYTES

    serving(body)


def test_who_uploads_to_a_controller_that_dies_is_told_so() -> None:
    async def body(served: Served) -> None:
        told: list[Message] = []
        begun, rest = trio.Event(), iter([b" " * 65_536] * 20)

        async def receive() -> Message:
            begun.set()
            await trio.sleep(0.01)
            piece = next(rest, None)
            return {"type": "http.request", "body": piece or b"", "more_body": piece is not None}

        async def send(message: Message) -> None:
            await trio.lowlevel.checkpoint()
            told.append(message)

        scope: Scope = {
            "type": "http",
            "method": "POST",
            "path": "/v1/chat/completions",
            "raw_path": b"/v1/chat/completions",
            "headers": [(b"authorization", b"Bearer " + served.world.secrets.api_key.encode())],
            "extensions": {},
        }
        async with trio.open_nursery() as nursery:
            nursery.start_soon(served.app, scope, receive, send)
            await begun.wait()
            crash_controller(served.world)
        head, document = _said(told)
        assert (head["status"], json.loads(document)["error"]["code"]) == (502, "controller_broke")
        assert next(rest, None) is None, "what it says first is taken, so that it sees its answer"
        await served.world.start_controller()

    serving(body)


def _said(told: Sequence[Message]) -> tuple[Message, bytes]:
    """Head and body, whatever pieces it came in."""
    return told[0], b"".join(message["body"] for message in told[1:])


def test_a_websocket_is_carried_and_refused_by_the_controllers_words() -> None:
    async def body(served: Served) -> None:
        world = served.world
        caller = StreamCaller(
            world.network,
            host=FRONT,
            port=WEB,
            api_key=world.secrets.api_key,
            trace=world.run.trace,
            name="stranger",
        )
        async with caller.connected() as session:
            prompt = world.prompt("over a websocket", stream=True)
            heard = session.submit("a", prompt)
            await world.until("it has ended", lambda: heard.end is not None, within_ms=30_000)
            assert world.oracle.fault(prompt, heard.answer()) is None
        for subprotocols, status in (((), 400), (("lunanexa.v1",), 401)):
            async with _websocket(world, subprotocols) as exchange:
                refused = await exchange.hear()
                assert isinstance(refused, Refused)
                assert refused.status == status
                assert json.loads(refused.body)["error"]["code"] in ("invalid_request", "invalid_api_key")

    serving(body)


def _websocket(
    world: World, subprotocols: Sequence[str], *headers: tuple[bytes, bytes]
) -> AbstractAsyncContextManager[WebSocketExchange]:
    return open_websocket(
        world.network,
        "stranger",
        host=FRONT,
        port=WEB,
        path="/v1/stream",
        subprotocols=subprotocols,
        headers=headers,
    )


def test_a_stream_of_a_controller_that_dies_ends() -> None:
    async def body(served: Served) -> None:
        world = served.world
        key = (b"authorization", b"Bearer " + world.secrets.api_key.encode())
        async with _websocket(world, ("lunanexa.v1",), key) as exchange:
            assert exchange.accepting is not None
            down = await served.begin(kind="controller-down")
            assert not isinstance(await exchange.hear(), str)
        async with _websocket(world, ("lunanexa.v1",), key) as exchange:
            refused = await exchange.hear()
            assert isinstance(refused, Refused)
            assert refused.status == 502
        await served.heal(down)

    serving(body)


def test_what_a_stranger_says_before_it_leaves_is_heard() -> None:
    """Also where it is all there at once, as in one packet."""

    async def body(served: Served) -> None:
        world, accepted = served.world, trio.Event()
        submit = {"type": "submit", "endpoint": "chat/completions", "request": world.prompt("and I go", stream=True)}
        said: list[Message] = [
            {"type": "websocket.receive", "text": json.dumps({**submit, "id": f"{number}"})} for number in range(5)
        ]
        coming = iter([{"type": "websocket.connect"}, *said, {"type": "websocket.disconnect", "code": 1000}])

        async def receive() -> Message:
            message = next(coming)
            if message is said[0]:
                await accepted.wait()
            return message

        async def send(_: Message) -> None:
            accepted.set()
            await trio.lowlevel.checkpoint()

        scope: Scope = {
            "type": "websocket",
            "raw_path": b"/v1/stream",
            "path": "/v1/stream",
            "subprotocols": ["lunanexa.v1"],
            "headers": [(b"authorization", b"Bearer " + world.secrets.api_key.encode())],
            "extensions": {},
        }
        await carry_stream(world, scope, receive, send, RequestId("req_1"))
        await world.until("all are settled", lambda: len(world.receipts) == len(said), within_ms=BACK_MS)

    serving(body)


BAD: Final[list[tuple[bytes, str | None]]] = [
    (b"", None),
    (b"[]", None),
    (b"\xff", None),
    (b"[" * 10_000, None),
    (b"{}", "kind"),
    (b'{"kind": []}', "kind"),
    (b'{"kind": "agent-away"}', "kind"),
    (b'{"kind": "agent-down", "target": 0}', "target"),
    (b'{"kind": "agent-down", "target": 3}', "target"),
    (b'{"kind": "agent-down", "target": true}', "target"),
    (b'{"kind": "agent-down"}', "target"),
    (b'{"kind": "agent-down", "target": 1, "why": 1}', "why"),
    (b'{"kind": "agent-down", "target": 1, "for_ms": 0}', "for_ms"),
    (b'{"kind": "agent-down", "target": 1, "for_ms": 1.5}', "for_ms"),
    (b'{"kind": "agent-dies", "target": 1, "for_ms": 5}', "for_ms"),
    (b'{"kind": "node-cut", "target": 1, "way": "up"}', "way"),
    (b'{"kind": "client-slow", "latency_ms": 1e99}', "latency_ms"),
]


def test_a_fault_that_is_none_is_refused_by_its_field() -> None:
    async def body(served: Served) -> None:
        for text, param in BAD:
            status, document = await served.ask("POST", "/sim/faults", text)
            assert (status, document["error"]["param"]) == (400, param), (text, document)
        kinds = (await served.ask("POST", "/sim/faults", b"{}"))[1]["error"]["message"]
        assert all(kind in kinds for kind in FAULTS)
        assert (await served.ask("POST", "/sim/faults", b" " * 20_000))[0] == 413
        assert not served.board.in_force

    serving(body, WorldPlan(nodes=2))


def test_the_page_names_every_fault_that_is_switched() -> None:
    page = (Path(__file__).parents[2] / "docs" / "simulation.md").read_text(encoding="utf-8")
    for kind in SWITCHES:
        assert f"`{kind.name}`" in page
        for parameter in kind.parameters:
            assert all(f"`{choice}`" in page for choice in (parameter.name, *parameter.choices))


def test_two_faults_have_not_the_same_in_their_hands() -> None:
    async def body(served: Served) -> None:
        down = await served.begin(kind="agent-down", target=2)
        status, document = await served.ask("POST", "/sim/faults", b'{"kind": "node-off", "target": 2}')
        assert (status, document["error"]["code"]) == (409, "fault_in_force")
        assert "agent-down (node 2)" in document["error"]["message"]
        own = await served.begin(kind="agent-dies", target=1)
        assert (await served.ask("DELETE", f"/sim/faults/{own}"))[1]["error"]["code"] == "heals_by_itself"
        for number, status in (("99", 404), ("x", 400), ("9" * 40, 400)):
            assert (await served.ask("DELETE", f"/sim/faults/{number}"))[0] == status
        shown = (await served.ask("GET", "/sim"))[1]
        assert [one["kind"] for one in shown["faults"]] == ["agent-down", "agent-dies"]
        assert [one["agent"] for one in shown["nodes"]] == [False, False]
        await served.heal(down)
        shown = (await served.ask("GET", "/sim/faults"))[1]
        assert (shown["in_force"], len(shown["over"])) == ([], 2)
        for method, path in (("PUT", "/sim/faults"), ("POST", "/sim"), ("GET", "/sim/faults/1")):
            assert (await served.ask(method, path))[0] == 405
        assert (await served.ask("GET", "/sim/no-such"))[0] == 404

    serving(body, WorldPlan(nodes=2))


def test_what_happens_is_told_as_it_happens() -> None:
    async def body(served: Served) -> None:
        request = HttpRequest(method="GET", host=FRONT, port=WEB, target="/sim/events")
        async with served.http.exchange(request) as response:
            assert response.status == 200
            await served.begin(kind="agent-down", target=1, for_ms=100)
            told = b""
            async for piece in response.chunks():
                told += piece
                if b"agent-down (node 1) is over" in told:
                    break
        assert b'"actor":"world","event":"fault 1: agent-down (node 1) begins"}' in told
        async with served.http.exchange(attrs.evolve(request, method="HEAD")) as response:
            assert (response.status, await response.read(0)) == (200, b"")

    serving(body)


def test_what_is_taken_is_no_more_than_there_is() -> None:
    async def body(served: Served) -> None:
        memory = served.world.nodes[0].memory
        usual_mib = memory.used_mib
        taken = await served.begin(kind="memory-taken", target=1, left_mib=1_000)
        assert memory.used_mib == memory.total_mib - 1_000
        await served.heal(taken)
        taken = await served.begin(kind="memory-taken", target=1, left_mib=131_072)
        assert memory.used_mib == usual_mib, "as much as that is left anyway"
        await served.heal(taken)

    serving(body)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [*(one.name for one in SWITCHES), "engine-dies"])
def test_the_world_is_well_again_after_each_fault(kind: str) -> None:
    """Of those that a swarm lets happen, one stands for all."""

    async def body(served: Served) -> None:
        world = served.world
        fault: dict[str, object] = {"kind": kind, "target": 1}
        if not FAULTS[kind].by_itself:
            fault["for_ms"] = 2_000
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_asks, served)
            await served.begin(**fault)
            await world.until("it is over", lambda: not served.board.in_force, within_ms=400_000)
            nursery.cancel_scope.cancel("enough was asked")
        assert served.board.ended[0].problem is None
        await world.until_told("it serves again", lambda: _listed(served), within_ms=BACK_MS)
        await world.until_told("it answers again", lambda: _answers(served), within_ms=BACK_MS)

    serving(body, WorldPlan(nodes=2, restart_budget=1_000))


async def _asks(served: Served) -> None:
    for number in range(1_000):
        prompt = served.world.prompt(f"meanwhile {number}", stream=bool(number % 2), max_tokens=16)
        answer = await served.client.chat(prompt)
        assert served.world.oracle.fault(prompt, answer) is None
        await trio.sleep(0.1)


async def _answers(served: Served) -> bool:
    return (await served.client.chat(served.world.prompt("after it"))).ending is Ending.WHOLE


async def test_what_is_broken_is_told_once_and_the_rest_is_asked_on() -> None:
    def broken(_: Sight) -> str:
        return "it is"

    said: list[str] = []
    run = _run()
    async with open_world(run) as world:
        world.checkers.invariants = [broken, *world.checkers.invariants]
        watch = Watch(world, nullcontext, said.append)
        for _ in range(3):
            watch.look()
        assert watch.broken == {"broken": "it is"}
        assert said == ["broken: broken: it is"]
        assert (run.asked["broken"], run.asked["one_receipt"]) == (1, 2)


async def test_it_is_looked_at_while_it_goes_on() -> None:
    run = _run()
    async with open_world(run) as world, trio.open_nursery() as nursery:
        nursery.start_soon(Watch(world, nullcontext, lambda _: None).run)
        with trio.fail_after(10):
            while run.instants < 3:
                await trio.sleep(0.01)
        nursery.cancel_scope.cancel("enough")


def _run() -> Run:
    trace = Trace()
    return Run(1, Streams(1), trace, LogBuffer(trace), [])


@attrs.define
class Hands(Clock):
    """A clock that a test sets."""

    mono_ms: int = 5_000

    def now(self) -> Instant:
        return Instant(mono_ms=self.mono_ms, wall_ms=0)


def test_real_time_begins_at_nothing_and_stands_while_it_is_held() -> None:
    hands = Hands()
    time = RealTime(hands)
    time.start_clock()
    assert time.current_time() == 0
    hands.mono_ms += 1_500
    assert time.current_time() == 1.5
    with time.held():
        hands.mono_ms += 250
        assert time.current_time() == 1.5
    assert time.current_time() == 1.75
    assert time.deadline_to_sleep_time(2.0) == 0.25
    assert time.deadline_to_sleep_time(1.0) == 0
    assert time.deadline_to_sleep_time(float("inf")) == float("inf")
