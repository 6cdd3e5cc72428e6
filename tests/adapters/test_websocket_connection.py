"""`/v1/stream` over the real kernel and gateway, in memory: workloads, credits, cancellation, bad frames, ends."""

import json
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from lunanexa_adapters.websocket.application import WebSocketPlane
from lunanexa_core.canonical import JsonValue
from lunanexa_core.commands import RevokeKey
from lunanexa_core.contract.frames import (
    Accepted,
    Cancel,
    Cancelled,
    Completed,
    Credit,
    Event,
    Failed,
    Goaway,
    Resume,
    Submit,
)
from lunanexa_core.ids import KeyId, WorkloadId
from lunanexa_core.keys import secret_digest
from lunanexa_core.outcomes import Outcome, Refusal
from lunanexa_ports import gateway as port
from lunanexa_ports.dispatch import ModelCard
from lunanexa_ports.errors import PortFault, PortUnavailable
from lunanexa_ports.gateway import InferenceCall, InferenceGateway, ResponseSink, WorkloadCall, WorkloadSink
from lunanexa_ports.workloads import WorkloadPlane
from lunanexa_simulation.clock import SimulatedClock
from lunanexa_simulation.ids import SimulatedIds
from lunanexa_simulation.metrics import SimulatedMetrics
from lunanexa_simulation.rng import Streams
from tests.adapters.edge import edge
from tests.adapters.ws_driver import CHAT, ENVELOPE, KEY, connected, events, plane, refused, submit, until_ended
from tests.apps.gateway_fleet import ScriptedEngine, fleet
from tests.core.builders import SECRET, SESSION, api_key


async def test_events_are_numbered_and_completed_ends_them(autojump_clock: MockClock) -> None:
    async with fleet(autojump_clock) as world, connected(plane(world)) as socket:
        assert socket.accepted is not None
        assert socket.accepted["subprotocol"] == "lunanexa.v1"
        socket.say(submit("a"))
        first, *rest = await until_ended(socket)
        assert isinstance(first, Accepted)
        assert first.resume_token is None
        assert [frame.seq for frame in rest] == list(range(1, len(rest) + 1))
        assert all(isinstance(frame, Event) for frame in rest[:-1])
        texts = [choice["delta"].get("content") or "" for frame in rest[:-1] for choice in frame.data["choices"]]
        assert "".join(texts)
        done = rest[-1].response
        assert (done["workload_id"], done["state"], done["output"]) == (first.workload_id, "Succeeded", None)
        assert done["usage"]["output"] == 4
        assert done["receipt"]["sequence"] > 0
        assert world.receipt().workload == first.workload_id


async def test_a_whole_answer_comes_in_completed(autojump_clock: MockClock) -> None:
    async with fleet(autojump_clock) as world, connected(plane(world)) as socket:
        socket.say(submit("a", CHAT), submit("b", {"model": "tiny", "input": "x"}, endpoint="embeddings"))
        frames = await until_ended(socket) + await until_ended(socket)
        done = {frame.id: frame for frame in frames if isinstance(frame, Completed)}
        assert done["a"].seq == 1
        assert done["a"].response["output"]["choices"][0]["message"]["content"]
        assert done["b"].response["output"]["data"][0]["embedding"]


async def test_an_envelope_streams_unless_it_says_otherwise(autojump_clock: MockClock) -> None:
    async with fleet(autojump_clock) as world, connected(plane(world)) as socket:
        socket.say(submit("a", ENVELOPE, endpoint=None))
        assert any(isinstance(frame, Event) for frame in await until_ended(socket))
        quiet = {**ENVELOPE, "payload": {**ENVELOPE["payload"], "stream": False}}  # type: ignore[dict-item]
        socket.say(submit("b", quiet, endpoint=None))
        _, done = await until_ended(socket)
        assert done.response["output"]["choices"]


async def test_many_workloads_share_a_connection(autojump_clock: MockClock) -> None:
    async with fleet(autojump_clock, slots=4) as world, connected(plane(world)) as socket:
        names = [f"w{number}" for number in range(20)]
        socket.say(*(submit(name) for name in names))
        ended: dict[str, list[Any]] = {name: [] for name in names}
        while not all(frames and isinstance(frames[-1], Completed) for frames in ended.values()):
            frame: Any = await socket.hear()
            ended[frame.id].append(frame)
        assert all(isinstance(frames[0], Accepted) for frames in ended.values())
        assert len(world.receipts()) == len(names)
        assert world.at_rest()


async def test_no_more_events_come_than_were_granted(autojump_clock: MockClock) -> None:
    async with (
        fleet(autojump_clock, ScriptedEngine(events(600))) as world,
        connected(plane(world)) as socket,
    ):
        socket.say(submit("a"))
        await trio.sleep(5)
        frames = socket.heard()
        assert len(frames) == 1 + 256
        socket.say(Credit("a", 10))
        await trio.sleep(5)
        assert len(socket.heard()) == 10
        socket.say(Credit("a", 1_000))
        rest = await until_ended(socket)
        assert [frame.seq for frame in rest] == list(range(267, 267 + len(rest)))
        assert isinstance(rest[-1], Completed)


async def test_a_workload_without_credit_holds_up_nobody_else(autojump_clock: MockClock) -> None:
    engines = ScriptedEngine(events(600), events(3))
    async with fleet(autojump_clock, engines) as world, connected(plane(world)) as socket:
        socket.say(submit("a"))
        await trio.sleep(1)
        socket.heard()
        socket.say(submit("b"))
        frames = await until_ended(socket)
        assert {frame.id for frame in frames} == {"b"}


async def test_a_client_that_grants_nothing_is_closed_as_slow(autojump_clock: MockClock) -> None:
    async with (
        fleet(autojump_clock, ScriptedEngine(events(600))) as world,
        connected(plane(world, slow_ms=3_000)) as socket,
    ):
        socket.say(submit("a"))
        await socket.closed.wait()
        assert socket.code == 4008
        await trio.sleep(1)
        assert world.receipt().settlement.detail == "slow_consumer"
        assert world.at_rest()


async def test_a_client_that_does_not_read_is_closed_as_slow(autojump_clock: MockClock) -> None:
    async with (
        fleet(autojump_clock, ScriptedEngine(events(200))) as world,
        connected(plane(world, slow_ms=3_000, outbox_bytes=2_000)) as socket,
    ):
        socket.room = trio.Event()
        socket.say(submit("a"))
        await trio.sleep(10)
        assert world.receipt().settlement.detail == "slow_consumer"
        assert len(socket.frames) == 0
        assert world.at_rest()


async def test_an_end_waits_for_no_credit(autojump_clock: MockClock) -> None:
    """The deadline passes while events wait: the client is told at once, not when it grants more."""
    async with (
        fleet(autojump_clock, ScriptedEngine(events(600))) as world,
        connected(plane(world), headers=(KEY, (b"x-lunanexa-deadline-ms", b"2000"))) as socket,
    ):
        socket.say(submit("a"))
        frames = await until_ended(socket)
        assert len(frames) == 1 + 256 + 1
        assert frames[-1].error["code"] == "deadline_exceeded"
        assert frames[-1].error["workload_id"] == frames[0].workload_id
        assert frames[-1].error["receipt"]["state"] == "Failed"


async def test_cancel_brings_the_receipt(autojump_clock: MockClock) -> None:
    async with (
        fleet(autojump_clock, ScriptedEngine(events(50, every_s=1))) as world,
        connected(plane(world)) as socket,
    ):
        socket.say(submit("a"))
        accepted = await socket.hear()
        assert isinstance(accepted, Accepted)
        await socket.hear()
        socket.say(Cancel("a"), Cancel("a"), Cancel("nobody"))
        frames = await until_ended(socket)
        assert isinstance(frames[-1], Cancelled)
        assert frames[-1].receipt is not None
        assert frames[-1].receipt["state"] == "Cancelled"
        assert frames[-1].receipt["workload_id"] == accepted.workload_id
        await trio.sleep(1)
        assert not socket.heard()
        assert world.receipt().settlement.outcome is Outcome.CANCELLED_BY_CALLER
        assert world.at_rest()


async def test_a_workload_is_cancelled_before_it_is_accepted(autojump_clock: MockClock) -> None:
    async with fleet(autojump_clock) as world, connected(plane(world)) as socket:
        socket.say(submit("a"), Cancel("a"))
        frames = await until_ended(socket)
        assert frames == [Cancelled("a", None)]
        await trio.sleep(1)
        assert len(world.receipts()) <= 1
        assert world.at_rest()


async def test_a_departure_cancels_all(autojump_clock: MockClock) -> None:
    engine = ScriptedEngine(*(events(50, every_s=1) for _ in range(3)))
    async with fleet(autojump_clock, engine) as world:
        async with connected(plane(world)) as socket:
            socket.say(*(submit(name) for name in "abc"))
            await trio.sleep(3)
        assert engine.departures == 3
        assert [receipt.settlement.outcome for receipt in world.receipts()] == [Outcome.CANCELLED_BY_CALLER] * 3
        assert world.at_rest()


async def test_refusals_are_of_the_workload_alone(autojump_clock: MockClock) -> None:
    async with fleet(autojump_clock) as world, connected(plane(world, workloads_max=1)) as socket:
        cases: dict[str, tuple[Submit, str, str | None]] = {
            "model": (submit("a", {**CHAT, "model": "none"}), "model_not_found", "model"),
            "endpoint": (submit("b", endpoint="images/generations"), "unsupported_endpoint", "endpoint"),
            "envelope": (submit("c", {"capability": "Nothing"}, endpoint=None), "invalid_request", None),
            "number": (submit("d", {**CHAT, "n": 0}), "invalid_request", "request"),
        }
        for frame, code, param in cases.values():
            text = json.dumps({"type": "submit", "id": frame.id, "request": frame.request, "endpoint": frame.endpoint})
            socket.say_text(text.replace('"n": 0', '"n": 1e999').replace(', "endpoint": null', ""))
            (failed,) = await until_ended(socket)
            assert failed.id == frame.id
            assert failed.error["code"] == code, failed.error
            assert param is None or failed.error["param"] == param
            assert failed.error["request_id"]
        socket.say(submit("e"), submit("f"))
        found = {frame.id: frame for frame in [*await until_ended(socket), *await until_ended(socket)]}
        assert found["f"].error["code"] == "rate_limited"
        assert found["f"].error["retry_after_ms"] == 1_000
        assert isinstance(found["e"], Completed)


async def test_a_wrong_frame_about_a_workload_ends_it_alone(autojump_clock: MockClock) -> None:
    engine = ScriptedEngine(*(events(20, every_s=1) for _ in range(3)))
    async with fleet(autojump_clock, engine) as world, connected(plane(world)) as socket:
        socket.say(submit("a"), submit("b"), submit("c"))
        await trio.sleep(3)
        socket.heard()
        socket.say_text('{"type":"credit","id":"a","events":0}')
        socket.say(submit("b"))
        socket.say_text('{"type":"resume","id":"never","after":0}')
        failed: list[Failed] = []
        while len(failed) < 3:
            frame = await socket.hear()
            failed += [frame] if isinstance(frame, Failed) else []
        assert [(frame.id, frame.error["param"]) for frame in failed] == [
            ("a", "events"),
            ("b", "id"),
            ("never", "token"),
        ]
        frames = await until_ended(socket)
        assert {frame.id for frame in frames} == {"c"}
        assert isinstance(frames[-1], Completed)
        await trio.sleep(1)
        assert world.at_rest()


@pytest.mark.parametrize(
    ("said", "code"),
    [
        (b"binary", 1003),
        ("no json", 1007),
        ("[]", 1007),
        ('{"type":"submit"}', 1007),
        ('{"type":"accepted","workload_id":"w"}', 1007),
        ("[" * 100_000, 1007),
        ("9" * 10_000, 1007),
        ('{"type":"credit","id":"a","events":1,"events":2}', 1007),
        ('{"id":"\\ud800","type":"cancel"}', 1007),
    ],
)
async def test_what_is_no_frame_ends_the_connection(autojump_clock: MockClock, said: str | bytes, code: int) -> None:
    async with fleet(autojump_clock, ScriptedEngine(events(20, every_s=1))) as world, connected(plane(world)) as socket:
        socket.say(submit("a"))
        await trio.sleep(2)
        if isinstance(said, bytes):
            socket.say_bytes(said)
        else:
            socket.say_text(said)
        await socket.closed.wait()
        assert socket.code == code
        await trio.sleep(3)
        assert world.receipt().settlement.outcome is Outcome.CANCELLED_BY_CALLER
        assert world.at_rest()


async def test_a_revoked_key_ends_workload_and_connection(autojump_clock: MockClock) -> None:
    async with (
        fleet(autojump_clock, ScriptedEngine(events(20, every_s=1))) as world,
        connected(plane(world)) as socket,
        connected(plane(world)) as idle,
    ):
        socket.say(submit("a"))
        await trio.sleep(2)
        await world.kernel.ask(RevokeKey(KeyId("key_1")), "test")
        frames = await until_ended(socket)
        assert frames[-1].error["code"] == "invalid_api_key"
        await socket.closed.wait()
        assert socket.code == 1008
        assert not idle.closed.is_set()
        idle.say(submit("b"))
        (failed,) = await until_ended(idle)
        assert failed.error["code"] == "invalid_api_key"
        await idle.closed.wait()
        assert idle.code == 1008


async def test_a_drain_lets_workloads_end(autojump_clock: MockClock) -> None:
    async with fleet(autojump_clock, ScriptedEngine(events(5, every_s=1))) as world:
        app = plane(world)
        async with connected(app) as socket, connected(app) as idle:
            socket.say(submit("a"))
            await trio.sleep(2)
            app.begin_drain()
            await idle.closed.wait()
            assert (idle.heard(), idle.code) == ([Goaway(1_000)], 1012)
            socket.say(submit("late"))
            frames = await until_ended(socket)
            assert (frames[-1].id, frames[-1].error["code"]) == ("late", "draining")
            assert isinstance((await until_ended(socket))[-1], Completed)
            await socket.closed.wait()
            assert socket.code == 1012
            late = await refused(app)
            assert (late.status, late.error()["code"]) == (503, "draining")


async def test_what_a_drain_leaves_is_closed(autojump_clock: MockClock) -> None:
    async with fleet(autojump_clock, ScriptedEngine(events(50, every_s=1))) as world:
        app = plane(world)
        async with connected(app) as socket:
            socket.say(submit("a"))
            await trio.sleep(2)
            app.close()
            await socket.closed.wait()
            assert socket.code == 1012
        assert world.at_rest()


@pytest.mark.parametrize(
    ("options", "status", "code", "param"),
    [
        ({"headers": ()}, 401, "invalid_api_key", None),
        ({"headers": ((b"x-api-key", b"lnx_wrong"),)}, 401, "invalid_api_key", None),
        ({"subprotocols": ()}, 400, "invalid_request", "sec-websocket-protocol"),
        ({"subprotocols": ("graphql-ws",)}, 400, "invalid_request", "sec-websocket-protocol"),
        ({"headers": (KEY, (b"x-lunanexa-priority", b"urgent"))}, 400, "invalid_request", "x-lunanexa-priority"),
        ({"path": "/v1/streams"}, 404, "not_found", None),
    ],
)
async def test_a_handshake_is_refused_in_the_one_error_shape(
    autojump_clock: MockClock, options: dict[str, Any], status: int, code: str, param: str | None
) -> None:
    async with edge(autojump_clock) as found:
        socket = await refused(found.root, **options)
        assert socket.status == status
        error = socket.error()
        assert (error["code"], error["param"]) == (code, param)
        assert set(error) == {"message", "type", "param", "code", "retryable", "request_id"}
        assert SECRET not in socket.body.decode()


async def test_a_server_without_the_extension_makes_a_403_of_a_refusal(autojump_clock: MockClock) -> None:
    async with edge(autojump_clock) as found:
        socket = await refused(found.root, headers=(), extensions=())
        assert (socket.code, socket.status) == (1000, None)


async def test_a_browser_sends_its_key_as_a_subprotocol(autojump_clock: MockClock) -> None:
    async with edge(autojump_clock) as found:
        offered = ("lunanexa.v1", f"lunanexa.key.{SECRET}")
        async with connected(found.root, headers=(), subprotocols=offered) as socket:
            assert socket.accepted is not None
            assert SECRET not in str(socket.accepted)


async def test_connections_over_the_bound_are_refused(autojump_clock: MockClock) -> None:
    async with fleet(autojump_clock) as world:
        app = plane(world, connections_max=1)
        async with connected(app):
            socket = await refused(app)
            assert (socket.status, socket.error()["code"]) == (503, "no_capacity")
        async with connected(app):
            pass
        assert world.metrics.value("lunanexa_websocket_connections") == 0
        assert world.metrics.value("lunanexa_websocket_closes_total", {"code": "1006"}) == 2


async def test_one_key_can_t_take_all_connections(autojump_clock: MockClock) -> None:
    other = "o" * 40
    more = api_key(key=KeyId("key_2"), digest=secret_digest(other))
    async with fleet(autojump_clock, more_keys=(more,)) as world:
        app = plane(world, connections_of_key_max=1)
        async with connected(app):
            socket = await refused(app)
            assert (socket.status, socket.error()["code"]) == (429, "rate_limited")
            async with connected(app, headers=((b"x-api-key", other.encode()),)):
                pass
        async with connected(app):
            pass


async def test_frames_are_read_no_faster_than_their_pace(autojump_clock: MockClock) -> None:
    async with fleet(autojump_clock) as world, connected(plane(world, frames_per_s=100)) as socket:
        began_s = trio.current_time()
        for _ in range(1_000):
            socket.say(Credit("nobody", 1))
        socket.say(submit("a"))
        await until_ended(socket)
        assert trio.current_time() - began_s >= 9


async def test_unwritten_answers_stop_the_reading(autojump_clock: MockClock) -> None:
    async with fleet(autojump_clock) as world, connected(plane(world, outbox_answers_max=10)) as socket:
        socket.room = trio.Event()
        for number in range(100):
            socket.say(Resume(f"r{number}", 0, "nothing"))
        await trio.sleep(1)
        assert len(socket._messages) >= 88
        socket.room.set()
        await trio.sleep(1)
        assert len(socket.heard()) == 100


class BrokenGateway(InferenceGateway):
    """Accepts, and then meets a bug where ``broken`` says so; otherwise it waits."""

    async def authenticate(self, api_key: str | None) -> Refusal | None:
        return None

    async def infer(self, call: InferenceCall, sink: ResponseSink) -> None:
        raise AssertionError

    async def models(self, api_key: str | None) -> tuple[ModelCard, ...] | Refusal:
        raise AssertionError

    async def submit(self, call: WorkloadCall | InferenceCall, sink: WorkloadSink) -> None:
        await sink.accepted(port.Accepted(workload=WorkloadId(f"wl-{call.request}"), place=0))
        if b"broken" in call.body:
            raise LookupError("a bug")
        await trio.sleep_forever()


class BrokenWorkloads(WorkloadPlane):
    def __init__(self, problem: Exception) -> None:
        self._problem = problem

    async def workload(self, api_key: str | None, workload: str) -> JsonValue | Refusal:
        raise AssertionError

    async def workloads(self, api_key: str | None, limit: int, cursor: str | None) -> JsonValue | Refusal:
        raise AssertionError

    async def cancel(self, api_key: str | None, workload: str) -> JsonValue | Refusal:
        raise self._problem

    async def capabilities(self, api_key: str | None) -> JsonValue | Refusal:
        raise AssertionError


def broken_plane(problem: Exception) -> tuple[WebSocketPlane, SimulatedMetrics]:
    clock, metrics = SimulatedClock(), SimulatedMetrics()
    plane = WebSocketPlane(
        gateway=BrokenGateway(),
        workloads=BrokenWorkloads(problem),
        ids=SimulatedIds(Streams(3).stream("websocket"), clock),
        clock=clock,
        metrics=metrics,
        session=SESSION,
    )
    return plane, metrics


@pytest.mark.parametrize("problem", [PortUnavailable("away"), PortFault("damaged")])
async def test_a_ledger_that_can_t_be_read_holds_up_no_cancellation(problem: Exception) -> None:
    app, _ = broken_plane(problem)
    async with connected(app) as socket:
        socket.say(submit("a"))
        assert isinstance(await socket.hear(), Accepted)
        socket.say(Cancel("a"))
        assert await socket.hear() == Cancelled("a", None)
        socket.say(submit("a"))
        assert isinstance(await socket.hear(), Accepted)


async def test_a_bug_ends_what_met_it_alone() -> None:
    """A workload's ends that workload; one of the connection's loop ends the connection with 1011."""
    app, metrics = broken_plane(LookupError("a bug"))
    async with connected(app) as socket, connected(app) as other:
        socket.say(submit("a", {"messages": "broken"}), submit("b"))
        frames = [await socket.hear() for _ in range(3)]
        told = {(type(frame), frame.id) for frame in frames if not isinstance(frame, Goaway)}
        assert told == {(Accepted, "a"), (Accepted, "b"), (Failed, "a")}
        socket.say(Cancel("b"))
        await socket.closed.wait()
        assert socket.code == 1011
        other.say(submit("c"))
        assert isinstance(await other.hear(), Accepted)
    assert metrics.value("lunanexa_websocket_closes_total", {"code": "1011"}) == 1
