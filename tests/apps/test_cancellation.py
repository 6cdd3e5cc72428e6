"""A client leaves, in every phase of a request and in every way in which an engine is asked: in the same instant
of virtual time the engine's socket is closed and everything that was held is free, and one receipt says so."""

import enum
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import attrs
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from lunanexa_core.events import Event
from lunanexa_core.ids import WorkloadId
from lunanexa_core.outcomes import Outcome, Refusal
from lunanexa_core.routing.pick import Denied, Granted
from lunanexa_core.workload import Usage, WorkloadState
from lunanexa_ports.asgi import Receive
from lunanexa_simulation.journal import JournalState
from tests.apps.gateway_fleet import DONE, USAGE, Fleet, Part, Script, ScriptedEngine, Sink, delta, fleet
from tests.core.builders import api_key

WHOLE = b'{"choices":[{"index":0,"finish_reason":"stop","message":{"content":"a"}}]}'
CHAT: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "Once"}], "max_tokens": 6}
INPUT_TOKENS = -(-len(json.dumps(CHAT)) // 3)


class Phase(enum.Enum):
    """How far the request has come when its client leaves."""

    QUEUED = "queued"
    ASKED = "before the first byte"
    ANSWERED = "within the answer"


@attrs.frozen
class Way:
    """How a client asks, and how the engine is asked for it."""

    stream: bool
    driver: str

    @property
    def upstream_streams(self) -> bool:
        return self.stream or self.driver == "llama_cpp"

    @property
    def body(self) -> dict[str, Any]:
        return CHAT | {"stream": True} if self.stream else CHAT

    def answer(self) -> Script:
        """The whole answer of an engine that is asked in this way."""
        if self.upstream_streams:
            return Script(parts=(Part(delta("a")), Part(delta("", "stop") + USAGE + DONE)))
        return Script(content_type="application/json", parts=(Part(WHOLE),))

    def stuck(self, phase: Phase) -> Script:
        """An answer that gets no further than the phase."""
        if phase is Phase.ASKED:
            return Script(before_s=1_000)
        if self.upstream_streams:
            return Script(parts=(Part(delta("a")), Part(delta("b"))), stuck=True)
        return Script(content_type="application/json", parts=(Part(WHOLE[:20]),), stuck=True)


WAYS = [
    pytest.param(Way(stream, driver), id=f"{driver}-{'stream' if stream else 'unary'}")
    for driver in ("reference", "llama_cpp")
    for stream in (True, False)
]


class Server(ScriptedEngine):
    """Notes when it learned of departures. Like llama.cpp, ``deaf`` ones look for them only in streams."""

    def __init__(self, *scripts: Script, deaf: bool = False) -> None:
        super().__init__(*scripts)
        self.departed_s: list[float] = []
        self._deaf = deaf

    async def _watch(self, receive: Receive, scope: trio.CancelScope) -> None:
        if self._deaf and not json.loads(self.bodies[-1]).get("stream"):
            await trio.sleep_forever()
        await super()._watch(receive, scope)
        self.departed_s.append(trio.current_time())


class Places:
    """Notes what the kernel tells of queue places, and when."""

    def __init__(self) -> None:
        self.told: dict[WorkloadId, list[tuple[float, int]]] = {}

    def granted(self, granted: Granted) -> None:
        pass

    def denied(self, denied: Denied) -> None:
        pass

    def voided(self, workload: WorkloadId, refusal: Refusal) -> None:
        pass

    def events(self, events: Sequence[Event]) -> None:
        pass

    def place(self, workload: WorkloadId, place: int) -> None:
        told = self.told.setdefault(workload, [])
        if not told or told[-1][1] != place:
            told.append((trio.current_time(), place))


@asynccontextmanager
async def client(world: Fleet, body: dict[str, Any], request: str = "req_1") -> AsyncIterator[Sink]:
    """A client that leaves at the end of the block, whatever it was told so far."""
    sink = Sink()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.gateway.infer, world.call(body, request=request), sink)
        yield sink
        nursery.cancel_scope.cancel("the client has gone")


async def until_waiting(world: Fleet, count: int) -> None:
    with trio.fail_after(10):
        while sum(map(len, world.kernel.observed.queues.values())) < count:
            await wait_all_tasks_blocked()


def settled(world: Fleet) -> list[str]:
    """The workloads whose receipts stand in the ledger."""
    return [row.target for row in world.disk.state(JournalState).rows if row.action == "workload.settled"]


def check_cancelled(world: Fleet, usage: Usage) -> None:
    """One receipt that tells the client's departure and what was done for it until then."""
    receipt = world.receipts()[-1]
    assert receipt.state is WorkloadState.CANCELLED
    assert receipt.settlement.outcome is Outcome.CANCELLED_BY_CALLER
    assert receipt.settlement.usage == usage
    assert settled(world).count(receipt.workload) == 1
    labels = {"route": "chat/completions", "outcome": "cancelled_by_caller"}
    assert world.metrics.value("lunanexa_requests_total", labels) == 1


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("phase", [Phase.ASKED, Phase.ANSWERED])
async def test_an_engine_is_left_in_the_same_instant(way: Way, phase: Phase, autojump_clock: MockClock) -> None:
    # Where the client waits for a whole answer, only an engine that is asked for a stream notices anything.
    deaf = way.driver == "llama_cpp"
    server = Server(way.stuck(phase), way.answer(), deaf=deaf)
    async with fleet(autojump_clock, server, driver=way.driver, slots=1, key=api_key(concurrency=1)) as world:
        async with client(world, way.body) as sink:
            await server.asked.wait()
            await wait_all_tasks_blocked()
            if phase is Phase.ANSWERED and way.stream:
                await sink.until(lambda sink: len(sink.writes) == 2)
            left_s = trio.current_time()
        await wait_all_tasks_blocked()
        assert server.departed_s == [left_s]
        assert server.in_progress == 0
        assert world.at_rest()
        read = 2 if phase is Phase.ANSWERED and way.upstream_streams else 0
        asked_bytes = len(json.dumps(way.body))
        check_cancelled(world, Usage(input_tokens=-(-asked_bytes // 3), output_tokens=read, estimated=True))
        assert [attempt.failure for attempt in world.receipts()[-1].settlement.attempts] == ["cut_off"]
        # The only slot and the whole quota of the key are free, in the same instant too.
        assert (await world.ask(way.body)).status == 200
        assert trio.current_time() == left_s


@pytest.mark.parametrize("way", WAYS)
async def test_a_place_in_the_queue_is_free_in_the_same_instant(way: Way, autojump_clock: MockClock) -> None:
    server = Server(Script(before_s=1_000), way.answer())
    places = Places()
    async with (
        fleet(autojump_clock, server, driver=way.driver, slots=1) as world,
        trio.open_nursery() as nursery,
    ):
        world.kernel.listeners.append(places)
        async with client(world, way.body, "req_1"):
            await server.asked.wait()
            (running,) = world.kernel.state.open
            last = Sink()
            async with client(world, way.body, "req_2"):
                await until_waiting(world, 1)
                nursery.start_soon(world.gateway.infer, world.call(way.body, request="req_3"), last)
                await until_waiting(world, 2)
                _, leaving, staying = world.kernel.state.open
                await trio.sleep(3)
                left_s = trio.current_time()
            assert [told.workload for told in world.receipts()] == [leaving]
            check_cancelled(world, Usage())
            # The next waiter stands where the one stood that left, and no engine was asked for that one.
            assert [place for _, place in places.told[staying]] == [1, 0]
            assert places.told[staying][-1][0] == left_s
            assert list(world.kernel.state.open) == [running, staying]
            assert len(server.bodies) == 1
        await last.until(lambda sink: sink.ended)
        assert last.status == 200
        assert trio.current_time() == left_s
        assert world.at_rest()


async def test_an_engine_that_would_miss_the_departure_is_the_reason_for_streams(autojump_clock: MockClock) -> None:
    """The test's own engine: asked for a whole answer it works on for nobody."""
    way = Way(stream=False, driver="reference")
    server = Server(way.stuck(Phase.ASKED), deaf=True)
    async with fleet(autojump_clock, server, driver=way.driver) as world:
        async with client(world, way.body):
            await server.asked.wait()
        await trio.sleep(30)
        assert server.in_progress == 1
        assert not server.departed_s
        assert world.at_rest()


@pytest.mark.parametrize("way", WAYS)
async def test_a_departure_between_two_attempts_asks_nobody_else(way: Way, autojump_clock: MockClock) -> None:
    # Each replica has one slot, and one of them is taken, so that a second attempt must wait for it.
    engines = (Server(Script(before_s=1_000)), Server(Script(before_s=1_000)))
    async with fleet(autojump_clock, *engines, driver=way.driver, slots=1) as world:
        async with client(world, way.body, "req_1"):
            await wait_all_tasks_blocked()
            (free,) = [engine for engine in engines if not engine.in_progress]
            free.scripts = [Script(status=500, content_type="application/json")]
            async with client(world, way.body, "req_2"):
                await until_waiting(world, 1)
            assert [len(engine.bodies) for engine in engines] == [1, 1]
        await wait_all_tasks_blocked()
        assert world.at_rest()
        assert len(world.receipts()[0].settlement.attempts) == 1
        assert {receipt.state for receipt in world.receipts()} == {WorkloadState.CANCELLED}
        assert len(settled(world)) == len(set(settled(world))) == 2
        assert world.receipts()[0].settlement.usage == Usage()


@pytest.mark.parametrize("way", WAYS)
async def test_many_clients_that_leave_at_once_leave_nothing(way: Way, autojump_clock: MockClock) -> None:
    scripts = [way.stuck(phase) for phase in (Phase.ASKED, Phase.ANSWERED)] * 4
    server = Server(*scripts, way.answer(), deaf=way.driver == "llama_cpp")
    async with fleet(autojump_clock, server, driver=way.driver, slots=8) as world:
        async with trio.open_nursery() as nursery:
            for number in range(24):
                nursery.start_soon(world.gateway.infer, world.call(way.body, request=f"req_{number}"), Sink())
            await until_waiting(world, 16)
            await wait_all_tasks_blocked()
            left_s = trio.current_time()
            nursery.cancel_scope.cancel("all of them go")
        await wait_all_tasks_blocked()
        assert server.departed_s == [left_s] * 8
        assert server.in_progress == 0
        assert world.at_rest()
        assert len(settled(world)) == len(set(settled(world))) == 24
        assert {receipt.state for receipt in world.receipts()} == {WorkloadState.CANCELLED}
        assert sum(receipt.settlement.usage != Usage() for receipt in world.receipts()) == 8
        assert world.metrics.value("lunanexa_requests_in_flight") == 0
        assert (await world.ask(way.body)).status == 200
