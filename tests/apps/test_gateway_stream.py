"""Streams through the gateway: bytes as the engine sent them, keepalives, last frames behind the receipt."""

import json
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from lunanexa_apps.controller.gateway.outlet import CUT_PATIENCE_S
from lunanexa_apps.controller.gateway.progress import Progress
from lunanexa_apps.controller.gateway.settings import GatewaySettings
from lunanexa_apps.controller.gateway.settling import Settler
from lunanexa_core.ids import WorkloadId
from lunanexa_core.openai.stream import KEEPALIVE
from lunanexa_core.outcomes import Outcome
from lunanexa_core.workload import Dialect, Usage, WorkloadState
from lunanexa_ports.asgi import Receive, Scope, Send
from tests.apps.gateway_fleet import (
    DONE,
    USAGE,
    Fleet,
    Part,
    Script,
    ScriptedEngine,
    Sink,
    delta,
    fleet,
    frame,
    reference,
)

CHAT: dict[str, Any] = {
    "model": "tiny",
    "messages": [{"role": "user", "content": "Once"}],
    "max_tokens": 6,
    "temperature": 0,
    "stream": True,
}
WITH_USAGE = CHAT | {"stream_options": {"include_usage": True}}
GOOD = (Part(delta("a")), Part(delta("b")), Part(delta("", "stop") + USAGE + DONE))
SLOW = (Part(delta("a")), Part(delta("b"), wait_s=1), Part(delta("", "stop") + USAGE + DONE, wait_s=1))
"""Leaves a test the time to change the world between two writes."""


def script(*parts: Part, **changes: Any) -> Script:
    return Script(parts=parts, **changes)


async def test_a_stream_is_told_and_booked(autojump_clock: MockClock) -> None:
    async with fleet(autojump_clock, reference(itl_ms=8)) as world:
        sink = await world.ask(CHAT)
        whole = await world.ask(CHAT | {"stream": False})
        assert sink.status == 200
        assert sink.headers["content-type"].startswith("text/event-stream")
        assert sink.headers["cache-control"] == "no-cache"
        assert sink.headers["x-accel-buffering"] == "no"
        assert sink.text() == whole.json()["choices"][0]["message"]["content"]
        assert sink.data()[-1] == b"[DONE]"
        # Usage is booked, and not shown to who did not ask for it.
        assert not any((json.loads(data) or {}).get("usage") for data in sink.data()[:-1])
        streamed, unary = world.receipts()
        assert streamed.settlement.usage == unary.settlement.usage
        assert streamed.settlement.usage.output_tokens == 6
        assert not streamed.settlement.usage.estimated
        assert streamed.settlement.first_output_ms is not None
        assert sink.headers["x-lunanexa-workload-id"] == streamed.workload
        assert world.at_rest()


async def test_usage_is_shown_to_who_asks(autojump_clock: MockClock) -> None:
    async with fleet(autojump_clock) as world:
        sink = await world.ask(WITH_USAGE)
        usage = json.loads(sink.data()[-2])["usage"]
        assert usage["completion_tokens"] == world.receipt().settlement.usage.output_tokens == 6


async def test_completions_stream_too(autojump_clock: MockClock) -> None:
    async with fleet(autojump_clock) as world:
        body = {"model": "tiny", "prompt": "Once", "max_tokens": 3, "stream": True}
        sink = await world.ask(body, Dialect.COMPLETIONS)
        assert sink.data()[-1] == b"[DONE]"
        assert world.receipt().settlement.usage.output_tokens == 3


async def test_every_byte_passes_but_the_usage_event(autojump_clock: MockClock) -> None:
    calls = [{"index": 0, "function": {"arguments": '{"a' + "é\\\\"}}]
    odd = [
        b": engine comment\n\n",
        b"event: message\nid: 7\r\ndata: "
        + json.dumps({"choices": [{"delta": {"tool_calls": calls}}]}).encode()
        + b"\r\n\r\n",
        b'data:  { "choices" : [ { "index":0, "delta":{} , "finish_reason" : "tool_calls" } ] }\n\n',
    ]
    sent = b"".join(odd)
    for size in (1, 7, 1_000):
        parts = [Part(data=(sent + USAGE + DONE)[at : at + size]) for at in range(0, len(sent + USAGE + DONE), size)]
        async with fleet(autojump_clock, ScriptedEngine(script(*parts), script(*parts))) as world:
            assert (await world.ask(CHAT)).body == sent + DONE
            assert (await world.ask(WITH_USAGE)).body == sent + USAGE + DONE
            assert {receipt.settlement.usage for receipt in world.receipts()} == {
                Usage(input_tokens=7, output_tokens=2)
            }


async def test_what_one_read_brought_is_one_write(autojump_clock: MockClock) -> None:
    parts = (Part(delta("a") + delta("b")), Part(delta("c"), wait_s=1), Part(delta("", "stop") + DONE))
    async with fleet(autojump_clock, ScriptedEngine(script(*parts))) as world:
        sink = await world.ask(CHAT)
        assert sink.writes == [delta("a") + delta("b"), delta("c"), delta("", "stop") + DONE]


async def test_the_end_is_told_only_when_the_receipt_is_durable(autojump_clock: MockClock) -> None:
    async with fleet(autojump_clock, ScriptedEngine(script(*SLOW))) as world, trio.open_nursery() as nursery:
        sink = Sink()
        nursery.start_soon(world.gateway.infer, world.call(CHAT), sink)
        await sink.until(lambda sink: len(sink.writes) == 1)
        world.disk.faults.delay_ms = 1_000
        await sink.until(lambda sink: len(sink.writes) == 2)
        told_s = trio.current_time()
        assert not world.receipts()
        await sink.until(lambda sink: sink.ended)
        assert trio.current_time() - told_s >= 2
        assert sink.writes[-1] == delta("", "stop") + DONE
        assert world.receipt().state is WorkloadState.SUCCEEDED


async def test_without_a_receipt_the_stream_ends_in_an_error(autojump_clock: MockClock) -> None:
    async with fleet(autojump_clock, ScriptedEngine(script(*SLOW))) as world, trio.open_nursery() as nursery:
        sink = Sink()
        nursery.start_soon(world.gateway.infer, world.call(CHAT), sink)
        await sink.until(lambda sink: len(sink.writes) == 1)
        world.disk.faults.delay_ms = 5_000
        await sink.until(lambda sink: sink.ended)
        assert sink.error()["code"] == "receipt_unavailable"
        assert sink.error()["request_id"] == "req_1"
        assert b"[DONE]" not in sink.body
        assert b'"stop"' not in sink.body
        # The kernel goes on settling what was handed to it.
        while not world.receipts():
            await trio.sleep(1)
        assert world.receipt().state is WorkloadState.SUCCEEDED


async def test_a_stream_without_done_gets_one(autojump_clock: MockClock) -> None:
    async with fleet(autojump_clock, ScriptedEngine(script(Part(delta("a", "stop"))))) as world:
        sink = await world.ask(CHAT)
        assert sink.body == delta("a", "stop") + DONE
        assert world.receipt().state is WorkloadState.SUCCEEDED
        assert world.receipt().settlement.usage.estimated


async def test_a_finished_stream_whose_end_does_not_come_is_whole(autojump_clock: MockClock) -> None:
    scripted = ScriptedEngine(script(Part(delta("a")), Part(delta("", "stop")), stuck=True))
    async with fleet(autojump_clock, scripted) as world:
        began_s = trio.current_time()
        sink = await world.ask(CHAT)
        assert sink.data()[-1] == b"[DONE]"
        assert trio.current_time() - began_s == pytest.approx(2, abs=0.1)
        await scripted.departed.wait()


async def test_a_finish_that_was_not_the_last_is_passed_on(autojump_clock: MockClock) -> None:
    parts = (Part(delta("a", "stop")), Part(delta("b"), wait_s=30), Part(delta("", "stop") + DONE))
    settings = GatewaySettings(tail_ms=60_000)
    async with fleet(autojump_clock, ScriptedEngine(script(*parts)), settings=settings) as world:
        sink = await world.ask(CHAT)
        events = [event for event in sink.events() if event != KEEPALIVE]
        assert b"".join(events) == delta("a", "stop") + delta("b") + delta("", "stop") + DONE


BREAKS = [
    (script(Part(delta("a")), Part(DONE)), "engine_cut"),
    (script(Part(delta("a"))), "engine_cut"),
    (script(Part(delta("a")), whole=False), "engine_cut"),
    (script(Part(delta("a")), Part(frame(error={"message": "gpu-7"}) + DONE)), "engine_error_in_stream"),
    (script(Part(delta("a")), Part(frame(error={"message": "gpu-7"})), stuck=True), "engine_error_in_stream"),
    (script(Part(delta("a")), Part(delta("", "stop") + frame(error={"message": "x"}))), "engine_error_in_stream"),
    (script(Part(delta("a")), Part(b"data: " + b"x" * 5_000_000)), "engine_event_too_long"),
]


@pytest.mark.parametrize(("broken", "reason"), BREAKS)
async def test_a_stream_that_breaks_ends_in_an_error_frame(
    broken: Script, reason: str, autojump_clock: MockClock
) -> None:
    engines = (ScriptedEngine(broken), ScriptedEngine(broken))
    async with fleet(autojump_clock, *engines) as world:
        sink = await world.ask(CHAT)
        assert sink.status == 200
        assert sink.events()[0] == delta("a")
        assert sink.error()["code"] == "engine_failed"
        assert sink.error()["retryable"] is True
        assert b"[DONE]" not in sink.body
        assert b"gpu-7" not in sink.body
        settlement = world.receipt().settlement
        assert (settlement.outcome, settlement.detail) == (Outcome.ENGINE_FAILED, reason)
        # After output there is no second attempt.
        assert [attempt.failure for attempt in settlement.attempts] == [reason]
        assert settlement.usage.output_tokens >= 1
        assert world.at_rest()
        # It did not wait for an end that need not come.
        assert trio.current_time() < 60


EARLY = [
    script(status=500, content_type="application/json"),
    script(Part(frame(error={"message": "overloaded"}) + DONE)),
    script(Part(DONE)),
    script(whole=False),
    script(content_type="application/json"),
]


@pytest.mark.parametrize("failure", EARLY)
async def test_before_output_another_replica_takes_over(failure: Script, autojump_clock: MockClock) -> None:
    class Once(ScriptedEngine):
        async def __call__(self, scope: Scope, receive: Receive, send: Send, /) -> None:
            assert sum(engine.in_progress for engine in engines) == 0
            self.scripts = [failure if not any(engine.bodies for engine in engines) else script(*GOOD)]
            await super().__call__(scope, receive, send)

    engines = (Once(), Once())
    async with fleet(autojump_clock, *engines) as world:
        sink = await world.ask(CHAT)
        assert sink.body == delta("a") + delta("b") + delta("", "stop") + DONE
        assert len(world.receipt().settlement.attempts) == 2


async def test_a_failure_before_the_head_is_a_plain_502(autojump_clock: MockClock) -> None:
    async with fleet(autojump_clock, ScriptedEngine(EARLY[0])) as world:
        sink = await world.ask(CHAT)
        assert sink.refusal is not None
        assert sink.refusal.outcome is Outcome.ENGINE_FAILED


async def test_the_engines_own_4xx_passes_as_it_is(autojump_clock: MockClock) -> None:
    body = b'{"error": {"message": "too long"}}'
    refusing = script(Part(body), status=400, content_type="application/json")
    async with fleet(autojump_clock, ScriptedEngine(refusing)) as world:
        sink = await world.ask(CHAT)
        assert (sink.status, sink.body, sink.headers["content-type"]) == (400, body, "application/json")


async def test_silences_are_filled_from_admission_on(autojump_clock: MockClock) -> None:
    slow = Script(before_s=40, parts=(Part(delta("a")), Part(delta("b"), wait_s=31), Part(delta("", "stop") + DONE)))
    async with fleet(autojump_clock, ScriptedEngine(slow)) as world:
        sink = await world.ask(CHAT)
        keep = KEEPALIVE
        assert sink.events() == [keep, keep, delta("a"), keep, keep, delta("b"), delta("", "stop"), DONE]


async def test_after_a_keepalive_errors_are_frames(autojump_clock: MockClock) -> None:
    refusals = [
        (Script(before_s=20, status=500), "engine_failed"),
        (Script(before_s=20, status=400, parts=(Part(b'{"error": {\n"code": "too_long"}}'),)), "too_long"),
        (Script(before_s=20, status=422, parts=(Part(b"<html>"),)), "invalid_request"),
    ]
    for refusing, code in refusals:
        async with fleet(autojump_clock, ScriptedEngine(refusing)) as world:
            sink = await world.ask(CHAT)
            assert sink.status == 200
            assert sink.events()[0] == KEEPALIVE
            assert sink.error()["code"] == code
            assert b"[DONE]" not in sink.body


async def test_a_deadline_ends_a_stream(autojump_clock: MockClock) -> None:
    scripted = ScriptedEngine(script(Part(delta("a")), Part(delta("b")), stuck=True))
    async with fleet(autojump_clock, scripted) as world:
        began_s = trio.current_time()
        sink = await world.ask(CHAT, headers={"x-lunanexa-deadline-ms": "4000"})
        assert trio.current_time() - began_s == pytest.approx(4, abs=0.01)
        assert sink.error()["code"] == "deadline_exceeded"
        assert sink.error()["retryable"] is False
        settlement = world.receipt().settlement
        assert settlement.outcome is Outcome.DEADLINE_EXCEEDED
        assert (settlement.usage.output_tokens, settlement.usage.estimated) == (2, True)
        await scripted.departed.wait()
        assert world.at_rest()


async def test_a_deadline_before_the_head_is_a_504(autojump_clock: MockClock) -> None:
    scripted = ScriptedEngine(Script(before_s=100))
    async with fleet(autojump_clock, scripted) as world:
        sink = await world.ask(CHAT, headers={"x-lunanexa-deadline-ms": "4000"})
        assert sink.refusal is not None
        assert sink.refusal.outcome is Outcome.DEADLINE_EXCEEDED


@pytest.mark.parametrize("parts", [(Part(delta("a")), Part(delta("b"))), ()], ids=["output", "keepalive"])
@pytest.mark.parametrize("late_s", [CUT_PATIENCE_S - 0.1, None])
async def test_a_deadline_waits_a_little_for_a_write(
    autojump_clock: MockClock, parts: tuple[Part, ...], late_s: float | None
) -> None:
    """The write may be output or a comment; a client that takes it soon enough is still told why it ends."""
    scripted = ScriptedEngine(script(*parts, stuck=True))
    settings = GatewaySettings(keepalive_ms=2_000)
    async with fleet(autojump_clock, scripted, settings=settings) as world, trio.open_nursery() as nursery:
        sink = Sink()
        sink.room = trio.Event()
        began_s = trio.current_time()
        nursery.start_soon(world.gateway.infer, world.call(CHAT, headers={"x-lunanexa-deadline-ms": "4000"}), sink)
        await trio.sleep_until(began_s + 4 + (late_s or 0))
        assert not sink.writes
        if late_s is not None:
            sink.room.set()
            await sink.until(lambda sink: sink.ended)
            assert sink.events()[0] == (delta("a") if parts else KEEPALIVE)
            assert sink.error()["code"] == "deadline_exceeded"
        await scripted.departed.wait()
        assert trio.current_time() - began_s <= 4 + CUT_PATIENCE_S + 0.01
        while not world.receipts():
            await trio.sleep(0.1)
        assert world.receipt().settlement.outcome is Outcome.DEADLINE_EXCEEDED
        nursery.cancel_scope.cancel("the client is reset")
    assert world.at_rest()


async def test_a_slow_reader_slows_the_engine(autojump_clock: MockClock) -> None:
    big = delta("x" * 60_000)
    scripted = ScriptedEngine(script(*[Part(big)] * 100, Part(delta("", "stop") + DONE)))
    async with fleet(autojump_clock, scripted) as world, trio.open_nursery() as nursery:
        sink = Sink()
        sink.room = trio.Event()
        nursery.start_soon(world.gateway.infer, world.call(CHAT), sink)
        await sink.until(lambda sink: sink.begun)
        await wait_all_tasks_blocked()
        assert scripted.in_progress == 1
        sink.room.set()
        await sink.until(lambda sink: sink.ended)
        assert sink.events()[:100] == [big] * 100


async def leave(world: Fleet, scripted: ScriptedEngine, sink: Sink, writes: int) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.gateway.infer, world.call(CHAT), sink)
        await scripted.asked.wait()
        await sink.until(lambda sink: len(sink.writes) >= writes)
        nursery.cancel_scope.cancel()


async def test_a_client_that_leaves_half_way_is_booked_and_the_engine_stops(autojump_clock: MockClock) -> None:
    scripted = ScriptedEngine(script(Part(delta("a")), Part(delta("b")), Part(delta("c")), stuck=True))
    async with fleet(autojump_clock, scripted, slots=1) as world:
        await leave(world, scripted, Sink(), 3)
        await scripted.departed.wait()
        receipt = world.receipt()
        assert receipt.state is WorkloadState.CANCELLED
        assert (receipt.settlement.usage.output_tokens, receipt.settlement.usage.estimated) == (3, True)
        assert world.at_rest()
        scripted.scripts.append(script(*GOOD))
        assert (await world.ask(CHAT)).data()[-1] == b"[DONE]"


async def test_a_client_that_leaves_while_its_receipt_is_written_has_one(autojump_clock: MockClock) -> None:
    scripted = ScriptedEngine(script(*SLOW))
    async with fleet(autojump_clock, scripted) as world:
        sink = Sink()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(world.gateway.infer, world.call(CHAT), sink)
            await sink.until(lambda sink: len(sink.writes) == 1)
            world.disk.faults.delay_ms = 1_000
            await sink.until(lambda sink: len(sink.writes) == 2)
            # The finish comes a second later, and its receipt a second after that.
            await trio.sleep(1.5)
            assert not sink.ended
            nursery.cancel_scope.cancel()
        while not world.receipts():
            await trio.sleep(1)
        assert world.receipt().state is WorkloadState.SUCCEEDED
        assert world.at_rest()


async def test_a_client_that_leaves_while_it_is_admitted_holds_nothing(autojump_clock: MockClock) -> None:
    async with fleet(autojump_clock) as world:
        world.disk.faults.delay_ms = 500
        with trio.move_on_after(0.2):
            await world.gateway.infer(world.call(CHAT), Sink())
        while not world.receipts():
            await trio.sleep(1)
        assert world.receipt().state is WorkloadState.CANCELLED
        assert world.receipt().settlement.usage == Usage()
        assert world.at_rest()


async def test_many_streams_are_each_whole(autojump_clock: MockClock) -> None:
    async with fleet(autojump_clock, reference(0, itl_ms=4), reference(1, itl_ms=4), slots=8) as world:
        sinks = [Sink() for _ in range(60)]
        async with trio.open_nursery() as nursery:
            for number, sink in enumerate(sinks):
                nursery.start_soon(world.gateway.infer, world.call(CHAT, request=f"req_{number}"), sink)
        assert {sink.text() for sink in sinks} == {sinks[0].text()}
        assert all(sink.data()[-1] == b"[DONE]" for sink in sinks)
        assert {receipt.state for receipt in world.receipts()} == {WorkloadState.SUCCEEDED}
        assert len(world.receipts()) == 60
        assert world.at_rest()


async def test_a_driver_without_usage_in_streams_is_asked_once_more_without(autojump_clock: MockClock) -> None:
    refusing = script(Part(b"{}"), status=400, content_type="application/json")
    scripted = ScriptedEngine(refusing, script(*GOOD[:2], Part(delta("", "stop") + DONE)))
    async with fleet(autojump_clock, scripted, driver="generic_openai") as world:
        sink = await world.ask(CHAT)
        assert sink.text() == "ab"
        assert ["stream_options" in json.loads(body) for body in scripted.bodies] == [True, False]
        assert world.receipt().settlement.usage.estimated
        assert len(world.receipt().settlement.attempts) == 1


async def test_a_session_that_lapsed_contradicts_no_receipt(autojump_clock: MockClock) -> None:
    scripted = ScriptedEngine(script(Part(delta("a")), Part(delta("b"), wait_s=5), Part(delta("", "stop") + DONE)))
    async with fleet(autojump_clock, scripted) as world, trio.open_nursery() as nursery:
        sink = Sink()
        nursery.start_soon(world.gateway.infer, world.call(CHAT), sink)
        await sink.until(lambda sink: len(sink.writes) == 1)
        # As if the gateway had been silent for a lease.
        world.kernel.observed.sessions.clear()
        await sink.until(lambda sink: sink.ended)
        assert world.receipt().settlement.detail == "gateway_lost"
        assert sink.error()["code"] == "internal"
        assert b"[DONE]" not in sink.body


@pytest.mark.parametrize("closed", [False, True])
async def test_a_gateway_that_is_ended_keeps_no_request_waiting(closed: bool, autojump_clock: MockClock) -> None:
    async with fleet(autojump_clock) as world, trio.open_nursery() as nursery:
        settler = Settler(world.dispatch, GatewaySettings())
        scope = trio.CancelScope()
        ended = trio.Event()

        async def run(*, task_status: trio.TaskStatus[None]) -> None:
            with scope:
                await settler.run(task_status=task_status)
            ended.set()

        await nursery.start(run)
        began_s = trio.current_time()
        scope.cancel("a second signal")
        if closed:
            await ended.wait()
        progress = Progress(workload=WorkloadId("wl_1"), began_s=began_s, owed=True)
        await settler.clean_up(progress, Outcome.CANCELLED_BY_CALLER)
        assert trio.current_time() == began_s
        assert not progress.owed


async def test_an_engine_that_does_not_stream_is_a_plain_502(autojump_clock: MockClock) -> None:
    answer = script(Part(b'{"choices": []}'), content_type="application/json")
    async with fleet(autojump_clock, ScriptedEngine(answer)) as world:
        sink = await world.ask(CHAT)
        assert sink.refusal is not None
        assert sink.refusal.outcome is Outcome.ENGINE_FAILED
        assert world.receipt().settlement.detail == "engine_did_not_stream"


async def test_a_second_engine_decides_what_the_answer_is(autojump_clock: MockClock) -> None:
    class First(ScriptedEngine):
        async def __call__(self, scope: Scope, receive: Receive, send: Send, /) -> None:
            first = not any(engine.bodies for engine in engines)
            self.scripts = [script(content_type="application/json") if first else script(*GOOD)]
            await super().__call__(scope, receive, send)

    engines = (First(), First())
    async with fleet(autojump_clock, *engines) as world:
        sink = await world.ask(CHAT)
        assert sink.headers["content-type"] == "text/event-stream"


async def test_each_prompt_of_a_list_has_its_answer(autojump_clock: MockClock) -> None:
    def text(index: int, finish: str | None = None) -> bytes:
        return frame(choices=[{"index": index, "text": "a", "finish_reason": finish}])

    parts = (Part(text(0, "stop")), Part(text(1), wait_s=10), Part(text(1, "stop") + DONE))
    async with fleet(autojump_clock, ScriptedEngine(script(*parts))) as world:
        sink = await world.ask({"model": "tiny", "prompt": ["a", "b"], "stream": True}, Dialect.COMPLETIONS)
        assert sink.body == text(0, "stop") + text(1) + text(1, "stop") + DONE
