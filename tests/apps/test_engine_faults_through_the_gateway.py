"""The reference engine's own faults, request by request, through gateway and kernel: what the caller is told, what
the receipt says, that the slot is free, and that the next call succeeds."""

import json
from collections.abc import Callable
from typing import Any

import attrs
import pytest
import trio
from trio.testing import MockClock

from lunanexa_apps.engine.app import ReferenceEngine
from lunanexa_apps.engine.settings import Mode
from lunanexa_core.keys import derive_engine_key
from lunanexa_core.outcomes import Outcome
from lunanexa_core.workload import Dialect, Receipt, WorkloadState
from tests.apps.engine_driver import arm, engine, metric
from tests.apps.gateway_fleet import ASSIGNMENTS, FIRST_PORT, HOST, Fleet, Sink, fleet
from tests.core.builders import SECRET

KEYS = [derive_engine_key(SECRET, assignment, 1) for assignment in ASSIGNMENTS]
CHAT: dict[str, Any] = {
    "model": "tiny",
    "messages": [{"role": "user", "content": "one two three four five"}],
    "temperature": 0,
}
STREAM = CHAT | {"stream": True}
EMBED = {"model": "tiny", "input": "one two"}
RESPONSE: dict[str, Any] = {"model": "tiny", "input": "one two three four five"}
MESSAGE = CHAT | {"max_tokens": 99}
SPEECH = {"model": "tiny", "input": "one two", "voice": "alloy"}
DIALECTS = [(CHAT, Dialect.CHAT), (STREAM, Dialect.CHAT), (EMBED, Dialect.EMBEDDINGS)]
TELLS_ALL = [
    pytest.param(*pair, id=name) for name, pair in zip(("whole", "stream", "embeddings"), DIALECTS, strict=True)
]
NAMED_STREAMS = [
    pytest.param(RESPONSE | {"stream": True}, Dialect.RESPONSES, "response.output_text.delta", id="responses"),
    pytest.param(MESSAGE | {"stream": True}, Dialect.MESSAGES, "content_block_delta", id="messages"),
    pytest.param(SPEECH | {"stream_format": "sse"}, Dialect.AUDIO_SPEECH, "speech.audio.delta", id="speech"),
]
WHOLES = [
    TELLS_ALL[0],
    TELLS_ALL[2],
    pytest.param(RESPONSE, Dialect.RESPONSES, id="responses"),
    pytest.param(MESSAGE, Dialect.MESSAGES, id="messages"),
]


def faulty(
    *faults: str, number: int = 0, end_process: Callable[[int], None] | None = None, **settings: Any
) -> ReferenceEngine:
    names = ("tiny", f"st_{number + 1}")
    return engine(*faults, end_process=end_process, names=names, api_key=KEYS[number], mode=Mode.ECHO, **settings)


async def check_the_next_call(world: Fleet, app: ReferenceEngine) -> None:
    """Nothing is held, here or there, and a call of each kind succeeds."""
    # The engine learns of a departure from its own socket, which takes a turn of the scheduler.
    await trio.testing.wait_all_tasks_blocked()
    for gauge in ("running", "waiting"):
        assert await metric(app, f"vllm:num_requests_{gauge}", key=KEYS[0]) == 0
    assert world.at_rest()
    for body, dialect in DIALECTS:
        sink = await world.ask(body, dialect)
        assert sink.status == 200
        assert world.receipts()[-1].state is WorkloadState.SUCCEEDED
    assert world.at_rest()


def check_failed(receipt: Receipt, reason: str) -> None:
    assert receipt.state is WorkloadState.FAILED
    assert (receipt.settlement.outcome, receipt.settlement.detail) == (Outcome.ENGINE_FAILED, reason)
    assert [attempt.failure for attempt in receipt.settlement.attempts] == [reason]


def check_engine_failed(sink: Sink) -> None:
    assert sink.refusal is not None
    assert (sink.status, sink.refusal.outcome) == (502, Outcome.ENGINE_FAILED)
    assert "told to" not in sink.refusal.message


@pytest.mark.parametrize(("body", "dialect"), TELLS_ALL)
@pytest.mark.parametrize(
    ("fault", "reason"),
    [("refuse=503", "engine_error"), ("refuse=500", "engine_error"), ("close", "engine_cut"), ("exit", "engine_cut")],
)
async def test_an_engine_that_does_not_answer_is_a_502(
    fault: str, reason: str, body: dict[str, Any], dialect: Dialect, autojump_clock: MockClock
) -> None:
    app = faulty(f"{fault},count=1")
    async with fleet(autojump_clock, app, slots=1) as world:
        check_engine_failed(await world.ask(body, dialect))
        check_failed(world.receipt(), reason)
        assert not world.receipt().settlement.usage.output_tokens
        await check_the_next_call(world, app)


@pytest.mark.parametrize(("body", "dialect"), TELLS_ALL)
async def test_an_engine_that_is_busy_says_so_itself(
    body: dict[str, Any], dialect: Dialect, autojump_clock: MockClock
) -> None:
    app = faulty("refuse=429,count=1")
    async with fleet(autojump_clock, app, slots=1) as world:
        sink = await world.ask(body, dialect)
        assert (sink.status, sink.json()["error"]["code"]) == (429, "injected_fault")
        assert (sink.headers["retry-after"], sink.headers["x-should-retry"]) == ("1", "true")
        assert world.receipt().settlement.detail == "engine_refused_429"
        assert not world.receipt().settlement.usage.output_tokens
        await check_the_next_call(world, app)


@pytest.mark.parametrize(("body", "dialect"), TELLS_ALL)
async def test_an_engine_that_hangs_is_left_at_the_deadline(
    body: dict[str, Any], dialect: Dialect, autojump_clock: MockClock
) -> None:
    app = faulty("hang,count=1", slots=1)
    async with fleet(autojump_clock, app, slots=1) as world, trio.open_nursery() as nursery:
        sink = Sink()
        began_s = trio.current_time()
        call = world.call(body, dialect, headers={"x-lunanexa-deadline-ms": "9000"})
        nursery.start_soon(world.gateway.infer, call, sink)
        await trio.sleep(8.9)
        assert await metric(app, "vllm:num_requests_running", key=KEYS[0]) == 1
        assert not sink.begun
        await sink.until(lambda sink: sink.ended)
        assert trio.current_time() - began_s == pytest.approx(9, abs=0.01)
        assert sink.refusal is not None
        assert (sink.status, sink.refusal.outcome) == (504, Outcome.DEADLINE_EXCEEDED)
        assert world.receipt().settlement.outcome is Outcome.DEADLINE_EXCEEDED
        await check_the_next_call(world, app)


async def test_a_stream_that_is_cut_ends_in_an_error_frame(autojump_clock: MockClock) -> None:
    app = faulty("cut=3,count=1")
    async with fleet(autojump_clock, app, slots=1) as world:
        sink = await world.ask(STREAM)
        assert sink.status == 200
        assert b"[DONE]" not in sink.body
        assert (sink.error()["code"], sink.error()["retryable"]) == ("engine_failed", True)
        assert [part["delta"]["content"] for part in pieces(sink)] == ["", "one", " two", " three"]
        check_failed(world.receipt(), "engine_cut")
        usage = world.receipt().settlement.usage
        assert (usage.output_tokens, usage.estimated) == (3, True)
        await check_the_next_call(world, app)


@pytest.mark.parametrize(("body", "dialect", "output"), NAMED_STREAMS)
@pytest.mark.parametrize(
    ("fault", "reason"), [("cut=2", "engine_cut"), ("error-frame=2", "engine_error_in_stream")], ids=["cut", "error"]
)
async def test_a_stream_of_named_events_ends_in_the_error_of_its_dialect(
    fault: str, reason: str, body: dict[str, Any], dialect: Dialect, output: str, autojump_clock: MockClock
) -> None:
    app = faulty(f"{fault},count=1")
    async with fleet(autojump_clock, app, slots=1) as world:
        sink = await world.ask(body, dialect)
        documents = [json.loads(data) for data in sink.data()]
        assert [document.get("type") for document in documents].count(output) == 2
        last = documents[-1]
        assert (last if dialect is Dialect.RESPONSES else last["error"])["code"] == "engine_failed"
        assert b"told to fail" not in sink.body
        check_failed(world.receipt(), reason)
        usage = world.receipt().settlement.usage
        assert (usage.output_tokens, usage.estimated) == (2, True)
        await check_the_next_call(world, app)


async def test_bare_speech_that_is_cut_is_cut_and_an_error_in_it_is_a_502(autojump_clock: MockClock) -> None:
    app = faulty("cut=1,count=1", "error-frame,after=1,count=1")
    async with fleet(autojump_clock, app, slots=1) as world:
        sink = await world.ask(SPEECH, Dialect.AUDIO_SPEECH)
        assert (sink.status, sink.cut) == (200, True)
        check_failed(world.receipt(), "engine_cut")
        check_engine_failed(await world.ask(SPEECH, Dialect.AUDIO_SPEECH))
        check_failed(world.receipts()[-1], "engine_error_in_answer")
        await check_the_next_call(world, app)


async def test_a_message_stream_without_its_stop_is_a_success(autojump_clock: MockClock) -> None:
    app = faulty("no-done,count=1")
    async with fleet(autojump_clock, app, slots=1) as world:
        sink = await world.ask(MESSAGE | {"stream": True}, Dialect.MESSAGES)
        assert json.loads(sink.data()[-1]) == {"type": "message_stop"}
        assert world.receipt().state is WorkloadState.SUCCEEDED
        await check_the_next_call(world, app)


async def test_a_stream_that_is_cut_before_its_first_token_costs_no_tokens(autojump_clock: MockClock) -> None:
    app = faulty("cut=0,count=1")
    async with fleet(autojump_clock, app, slots=1) as world:
        sink = await world.ask(STREAM)
        assert (sink.status, sink.error()["code"]) == (200, "engine_failed")
        assert b"[DONE]" not in sink.body
        check_failed(world.receipt(), "engine_cut")
        assert not world.receipt().settlement.usage.output_tokens
        await check_the_next_call(world, app)


@pytest.mark.parametrize(
    ("fault", "reason"), [("cut", "engine_cut"), ("error-frame", "engine_error_in_answer")], ids=["cut", "error"]
)
@pytest.mark.parametrize(("body", "dialect"), WHOLES)
async def test_a_whole_answer_that_is_none_is_a_502(
    fault: str, reason: str, body: dict[str, Any], dialect: Dialect, autojump_clock: MockClock
) -> None:
    app = faulty(f"{fault},count=1")
    async with fleet(autojump_clock, app, slots=1) as world:
        check_engine_failed(await world.ask(body, dialect))
        check_failed(world.receipt(), reason)
        await check_the_next_call(world, app)


async def test_an_error_frame_is_no_success_whatever_follows_it(autojump_clock: MockClock) -> None:
    app = faulty("error-frame=2,count=1")
    async with fleet(autojump_clock, app, slots=1) as world:
        sink = await world.ask(STREAM)
        assert sink.status == 200
        assert b"[DONE]" not in sink.body
        assert b"told to fail" not in sink.body
        assert sink.error()["code"] == "engine_failed"
        check_failed(world.receipt(), "engine_error_in_stream")
        assert world.receipt().settlement.usage.output_tokens == 2
        await check_the_next_call(world, app)


async def test_a_finished_stream_without_done_is_a_success(autojump_clock: MockClock) -> None:
    app = faulty("no-done,count=1")
    async with fleet(autojump_clock, app, slots=1) as world:
        sink = await world.ask(STREAM)
        whole = await world.ask(CHAT)
        assert sink.data()[-1] == b"[DONE]"
        assert sink.text() == whole.json()["choices"][0]["message"]["content"]
        streamed, unary = world.receipts()
        assert streamed.state is WorkloadState.SUCCEEDED
        assert streamed.settlement.usage == unary.settlement.usage
        await check_the_next_call(world, app)


async def test_a_leak_is_nothing_that_a_caller_sees(autojump_clock: MockClock) -> None:
    app = faulty("leak=1")
    async with fleet(autojump_clock, app, slots=1) as world:
        await check_the_next_call(world, app)
        assert app.faults.leaked_mib == len(DIALECTS)


async def test_an_engine_that_exits_costs_the_streams_in_it_and_no_other_call(autojump_clock: MockClock) -> None:
    """Two replicas: the first one's process ends with a call, while a stream runs in it."""
    worlds: list[Fleet] = []
    first = faulty("exit,after=1", end_process=lambda _: worlds[0].network.kill(HOST, FIRST_PORT), itl_ms=1000)
    second = faulty(number=1)
    async with fleet(autojump_clock, first, second, slots=8) as world, trio.open_nursery() as nursery:
        worlds.append(world)
        sinks = [Sink() for _ in range(8)]
        for number, sink in enumerate(sinks):
            nursery.start_soon(world.gateway.infer, world.call(STREAM), sink)
            if number < 2:
                await sink.until(lambda sink: len(sink.writes) >= 1)
        for sink in sinks:
            await sink.until(lambda sink: sink.ended)
        cut = [sink for sink in sinks if b"[DONE]" not in sink.body]
        assert [sink.error()["code"] for sink in cut] == ["engine_failed"]
        failures = [[attempt.failure for attempt in receipt.settlement.attempts] for receipt in world.receipts()]
        assert failures.count(["engine_cut"]) == 1
        assert ["engine_cut", None] in failures
        others = {tuple(one) for one in failures} - {("engine_cut",)}
        assert others <= {(None,), ("engine_cut", None), ("engine_unreachable", None)}
        assert world.at_rest()


@attrs.frozen
class Early:
    """A fault that strikes before output, and what the first attempt is booked as."""

    fault: str
    reason: str


@pytest.mark.parametrize(
    "early",
    [
        Early("refuse=503", "engine_error"),
        Early("close", "engine_cut"),
        Early("cut=0", "engine_cut"),
        Early("error-frame=0", "engine_error_in_stream"),
    ],
    ids=lambda early: early.fault,
)
async def test_before_output_the_other_replica_answers(early: Early, autojump_clock: MockClock) -> None:
    engines = [faulty(number=number) for number in range(2)]
    async with fleet(autojump_clock, *engines, slots=1) as world:
        for at, app in enumerate(engines):
            await arm(app, early.fault, key=KEYS[at])
            sinks = [await world.ask(STREAM) for _ in range(4)]
            assert [(sink.status, sink.data()[-1]) for sink in sinks] == [(200, b"[DONE]")] * 4
            assert len({sink.text() for sink in sinks}) == 1
            await arm(app, key=KEYS[at])
        failures = [[attempt.failure for attempt in receipt.settlement.attempts] for receipt in world.receipts()]
        assert [early.reason, None] in failures
        assert {tuple(one) for one in failures} <= {(early.reason, None), (None,)}
        assert {receipt.settlement.usage.output_tokens for receipt in world.receipts()} == {5}
        assert world.at_rest()


async def test_after_output_there_is_no_second_attempt(autojump_clock: MockClock) -> None:
    engines = [faulty("cut=1", number=number) for number in range(2)]
    async with fleet(autojump_clock, *engines) as world:
        sink = await world.ask(STREAM)
        assert sink.error()["code"] == "engine_failed"
        assert [part["delta"]["content"] for part in pieces(sink)] == ["", "one"]
        check_failed(world.receipt(), "engine_cut")


def pieces(sink: Sink) -> list[Any]:
    """The choices that the stream told before its error frame."""
    return [json.loads(data)["choices"][0] for data in sink.data()[:-1]]
