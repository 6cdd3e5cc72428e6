"""Whole answers through the gateway: the engine's bytes, one receipt, honest refusals."""

import json
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from lunanexa_core.ids import Alias
from lunanexa_core.outcomes import Outcome
from lunanexa_core.policy import Policy
from lunanexa_core.workload import Dialect, Priority, Usage, WorkloadState
from lunanexa_ports.asgi import Receive, Scope, Send
from tests.apps.gateway_fleet import DONE, USAGE, Part, Script, ScriptedEngine, Sink, delta, fleet, reference
from tests.core.builders import api_key

CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "Once"}], "max_tokens": 5, "temperature": 0}
ANSWER = (
    b'{ "choices":[{"index":0,"finish_reason":"stop","message":{"content":"hi"}}],'
    b'"usage":{"prompt_tokens":3,"completion_tokens":1} }'
)


def whole(body: bytes = ANSWER, status: int = 200) -> Script:
    return Script(status=status, content_type="application/json", parts=(Part(body),))


async def test_a_chat_is_answered_and_booked(autojump_clock: MockClock) -> None:
    async with fleet(autojump_clock) as world:
        sink = await world.ask(CHAT)
        assert sink.status == 200
        answer = sink.json()
        assert answer["object"] == "chat.completion"
        assert answer["usage"]["completion_tokens"] == 5
        receipt = world.receipt()
        assert receipt.state is WorkloadState.SUCCEEDED
        used = answer["usage"]
        assert receipt.settlement.usage == Usage(input_tokens=used["prompt_tokens"], output_tokens=5)
        assert sink.headers["x-lunanexa-workload-id"] == receipt.workload
        assert sink.headers["content-length"] == str(len(sink.body))
        assert float(sink.headers["x-lunanexa-overhead-ms"]) >= 0
        assert [attempt.failure for attempt in receipt.settlement.attempts] == [None]
        assert world.at_rest()
        route = {"route": "chat/completions"}
        assert world.metrics.value("lunanexa_requests_total", {**route, "outcome": "succeeded"}) == 1
        assert world.metrics.value("lunanexa_tokens_total", {"direction": "output"}) == 5
        assert world.metrics.value("lunanexa_time_to_first_token_seconds_count", route) == 1
        assert world.metrics.value("lunanexa_requests_in_flight") == 0


async def test_the_other_dialects_are_answered(autojump_clock: MockClock) -> None:
    async with fleet(autojump_clock) as world:
        sink = await world.ask({"model": "tiny", "prompt": "Once", "max_tokens": 3}, Dialect.COMPLETIONS)
        assert sink.json()["object"] == "text_completion"
        sink = await world.ask({"model": "tiny", "input": ["a b", "c"]}, Dialect.EMBEDDINGS)
        assert len(sink.json()["data"]) == 2
        assert [receipt.dialect for receipt in world.receipts()] == [Dialect.COMPLETIONS, Dialect.EMBEDDINGS]
        assert world.receipts()[1].settlement.usage.input_tokens > 0


async def test_the_engine_gets_the_callers_bytes_and_our_key(autojump_clock: MockClock) -> None:
    scripted = ScriptedEngine(whole())
    async with fleet(autojump_clock, scripted) as world:
        body = b' {"messages" : [ ], "model":\t"tiny","seed":1.50} '
        sink = await world.ask(body, headers={"traceparent": "00-1"})
        assert sink.body == ANSWER
        assert scripted.bodies == [body]
        headers = scripted.headers[0]
        assert headers[b"authorization"].startswith(b"Bearer ")
        assert b"lnx_" not in headers[b"authorization"]
        assert not {b"x-api-key", b"cookie", b"x-conversation-id", b"traceparent"} & headers.keys()
        assert "x-secret-topology" not in sink.headers


@pytest.mark.parametrize(
    ("call", "outcome", "param"),
    [
        ({"api_key": None}, Outcome.INVALID_API_KEY, None),
        ({"api_key": "lnx_unknown"}, Outcome.INVALID_API_KEY, None),
    ],
)
async def test_what_is_refused_before_it_is_admitted(
    call: dict[str, Any], outcome: Outcome, param: str | None, autojump_clock: MockClock
) -> None:
    async with fleet(autojump_clock) as world:
        sink = await world.ask(CHAT, **call)
        assert sink.refusal is not None
        assert (sink.refusal.outcome, sink.refusal.param) == (outcome, param)
        assert "x-lunanexa-workload-id" not in sink.headers
        assert not world.receipts()
        assert world.at_rest()


async def test_a_body_or_alias_that_is_wrong_is_refused(autojump_clock: MockClock) -> None:
    async with fleet(autojump_clock) as world:
        sink = await world.ask(b"{")
        assert sink.refusal is not None
        assert sink.refusal.outcome is Outcome.INVALID_REQUEST
        sink = await world.ask({"model": "other"})
        assert sink.refusal is not None
        assert sink.refusal.outcome is Outcome.MODEL_NOT_FOUND


async def test_priority_and_deadline_reach_the_kernel(autojump_clock: MockClock) -> None:
    scripted = ScriptedEngine(Script(stuck=True, before_s=1_000))
    async with fleet(autojump_clock, scripted) as world, trio.open_nursery() as nursery:
        headers = {"x-lunanexa-deadline-ms": "90000", "x-lunanexa-priority": "interactive"}
        nursery.start_soon(world.gateway.infer, world.call(CHAT, headers=headers), Sink())
        await scripted.asked.wait()
        (workload,) = world.kernel.state.open.values()
        assert workload.request.priority is Priority.INTERACTIVE
        assert workload.request.deadline_ms == 90_000
        assert workload.request.alias == Alias("tiny")
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("status", [400, 404, 413, 422, 429])
async def test_the_engines_own_4xx_passes_as_it_is(status: int, autojump_clock: MockClock) -> None:
    body = b'{"error": {"message": "too long"}}'
    async with fleet(autojump_clock, ScriptedEngine(whole(body, status))) as world:
        sink = await world.ask(CHAT)
        assert (sink.status, sink.body) == (status, body)
        assert sink.headers["x-should-retry"] == ("true" if status == 429 else "false")
        assert ("retry-after" in sink.headers) == (status == 429)
        receipt = world.receipt()
        assert receipt.state is WorkloadState.FAILED
        assert receipt.settlement.detail == f"engine_refused_{status}"
        assert receipt.settlement.usage == Usage()
        labels = {"route": "chat/completions", "outcome": "engine_refused"}
        assert world.metrics.value("lunanexa_requests_total", labels) == 1


FAILURES = [
    (whole(b"oops", 500), "engine_error"),
    (whole(b"", 503), "engine_error"),
    (whole(b"", 302), "engine_error"),
    (whole(b"", 401), "engine_key_refused"),
    (whole(b"", 403), "engine_key_refused"),
    (Script(content_type="application/json", parts=(Part(b"{"),), whole=False), "engine_cut"),
    (whole(b'{"error":{"message":"gpu-7 is gone"}}'), "engine_error_in_answer"),
]


@pytest.mark.parametrize(("failure", "reason"), FAILURES)
async def test_an_engine_that_fails_is_a_502(failure: Script, reason: str, autojump_clock: MockClock) -> None:
    async with fleet(autojump_clock, ScriptedEngine(failure)) as world:
        sink = await world.ask(CHAT)
        assert sink.refusal is not None
        assert sink.refusal.outcome is Outcome.ENGINE_FAILED
        assert "gpu" not in sink.refusal.message
        assert sink.headers == {"x-lunanexa-workload-id": world.receipt().workload}
        assert world.receipt().state is WorkloadState.FAILED
        assert world.receipt().settlement.detail == reason
        assert world.receipt().settlement.usage == Usage()
        assert [attempt.failure for attempt in world.receipt().settlement.attempts] == [reason]
        assert world.at_rest()


@pytest.mark.parametrize(("failure", "reason"), FAILURES)
async def test_another_replica_is_asked_once(failure: Script, reason: str, autojump_clock: MockClock) -> None:
    engines = (ScriptedEngine(failure), ScriptedEngine(failure))
    async with fleet(autojump_clock, *engines) as world:
        sink = await world.ask(CHAT)
        assert sink.refusal is not None
        assert sink.refusal.outcome is Outcome.ENGINE_FAILED
        attempts = world.receipt().settlement.attempts
        assert sorted((attempt.start, attempt.failure) for attempt in attempts) == [("st_1", reason), ("st_2", reason)]
        assert world.at_rest()


@pytest.mark.parametrize(("failure", "reason"), FAILURES)
async def test_the_second_replica_answers(failure: Script, reason: str, autojump_clock: MockClock) -> None:
    class Once(ScriptedEngine):
        """Fails where it is asked first, and answers where it is asked second."""

        async def __call__(self, scope: Scope, receive: Receive, send: Send, /) -> None:
            # The first attempt's socket is closed before the second begins.
            assert sum(engine.in_progress for engine in engines) == 0
            self.scripts = [failure if not any(engine.bodies for engine in engines) else whole()]
            await super().__call__(scope, receive, send)

    engines = (Once(), Once())
    async with fleet(autojump_clock, *engines) as world:
        sink = await world.ask(CHAT)
        assert (sink.status, sink.body) == (200, ANSWER)
        assert [attempt.failure for attempt in world.receipt().settlement.attempts] == [reason, None]
        assert world.receipt().settlement.usage == Usage(input_tokens=3, output_tokens=1)
        assert world.at_rest()


async def test_an_engine_that_is_gone_costs_the_caller_nothing(autojump_clock: MockClock) -> None:
    async with fleet(autojump_clock, reference(0), reference(1)) as world:
        world.network.refuse("127.0.0.1", 9000)
        for _ in range(3):
            assert (await world.ask(CHAT)).status == 200
        attempts = [attempt for receipt in world.receipts() for attempt in receipt.settlement.attempts]
        assert {attempt.failure for attempt in attempts if attempt.start == "st_1"} <= {"engine_unreachable"}
        assert sum(attempt.failure is None for attempt in attempts) == 3


async def test_a_deadline_ends_queue_and_run(autojump_clock: MockClock) -> None:
    scripted = ScriptedEngine(Script(before_s=100, stuck=True))
    async with fleet(autojump_clock, scripted) as world:
        began_s = trio.current_time()
        sink = await world.ask(CHAT, headers={"x-lunanexa-deadline-ms": "3000"})
        assert sink.refusal is not None
        assert sink.refusal.outcome is Outcome.DEADLINE_EXCEEDED
        assert trio.current_time() - began_s == pytest.approx(3, abs=0.01)
        await scripted.departed.wait()
        assert world.receipt().settlement.outcome is Outcome.DEADLINE_EXCEEDED
        assert world.receipt().settlement.usage.estimated
        assert world.at_rest()


async def test_a_client_that_leaves_frees_everything_at_once(autojump_clock: MockClock) -> None:
    scripted = ScriptedEngine(Script(before_s=100, stuck=True))
    async with fleet(autojump_clock, scripted, slots=1) as world:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(world.gateway.infer, world.call(CHAT), Sink())
            await scripted.asked.wait()
            left_s = trio.current_time()
            nursery.cancel_scope.cancel()
        await scripted.departed.wait()
        assert trio.current_time() - left_s < 0.1
        assert world.receipt().state is WorkloadState.CANCELLED
        assert world.at_rest()
        labels = {"route": "chat/completions", "outcome": "cancelled_by_caller"}
        assert world.metrics.value("lunanexa_requests_total", labels) == 1
        assert world.metrics.value("lunanexa_requests_in_flight") == 0


async def test_a_client_that_leaves_the_queue_gives_up_its_place(autojump_clock: MockClock) -> None:
    scripted = ScriptedEngine(Script(before_s=50, content_type="application/json", parts=(Part(ANSWER),)), whole())
    async with fleet(autojump_clock, scripted, slots=1) as world, trio.open_nursery() as nursery:
        first, last = Sink(), Sink()
        nursery.start_soon(world.gateway.infer, world.call(CHAT), first)
        await scripted.asked.wait()
        async with trio.open_nursery() as leaving:
            leaving.start_soon(world.gateway.infer, world.call(CHAT), Sink())
            while not any(map(len, world.kernel.observed.queues.values())):
                await trio.testing.wait_all_tasks_blocked()
            leaving.cancel_scope.cancel()
        assert [receipt.state for receipt in world.receipts()] == [WorkloadState.CANCELLED]
        assert world.receipts()[0].settlement.usage == Usage()
        await world.gateway.infer(world.call(CHAT), last)
        assert (first.status, last.status) == (200, 200)
        assert int(last.headers["x-lunanexa-queue-ms"]) > 1_000
        assert float(last.headers["x-lunanexa-overhead-ms"]) < 100


async def test_overload_is_a_429_with_a_time(autojump_clock: MockClock) -> None:
    scripted = ScriptedEngine(*[Script(before_s=1, content_type="application/json", parts=(Part(ANSWER),))] * 2)
    async with (
        fleet(autojump_clock, scripted, slots=1, policy=Policy(queue_requests_max=1)) as world,
        trio.open_nursery() as nursery,
    ):
        for _ in range(2):
            nursery.start_soon(world.gateway.infer, world.call(CHAT), Sink())
        while len(world.kernel.state.open) < 2:
            await trio.testing.wait_all_tasks_blocked()
        sink = await world.ask(CHAT)
        assert sink.refusal is not None
        assert sink.refusal.outcome is Outcome.QUEUE_FULL
        assert sink.refusal.wait_ms


async def test_the_limit_of_a_key_comes_back_after_each_kind_of_end(autojump_clock: MockClock) -> None:
    scripted = ScriptedEngine(whole(), whole(b"", 500), Script(before_s=100, stuck=True), whole())
    async with fleet(autojump_clock, scripted, key=api_key(concurrency=1)) as world:
        statuses = []
        for _ in range(4):
            sink = await world.ask(CHAT, headers={"x-lunanexa-deadline-ms": "2000"})
            statuses.append(sink.status)
        assert statuses == [200, 502, 504, 200]


async def test_an_answer_without_a_receipt_is_not_told_as_one(autojump_clock: MockClock) -> None:
    async with fleet(autojump_clock) as world:
        world.disk.faults.delay_ms = 3_000
        sink = await world.ask(CHAT)
        assert sink.refusal is not None
        assert sink.refusal.outcome is Outcome.RECEIPT_UNAVAILABLE
        assert sink.headers["x-lunanexa-workload-id"]
        # The kernel goes on settling.
        while not world.receipts():
            await trio.sleep(1)
        assert world.receipt().state is WorkloadState.SUCCEEDED


async def test_usage_that_the_engine_does_not_tell_is_estimated(autojump_clock: MockClock) -> None:
    body = b'{"choices":[{"index":0,"finish_reason":"stop","message":{"content":"abcdef"}}]}'
    async with fleet(autojump_clock, ScriptedEngine(whole(body))) as world:
        assert (await world.ask(CHAT)).body == body
        usage = world.receipt().settlement.usage
        assert usage.estimated
        assert usage.output_tokens == 2
        assert usage.input_tokens == -(-len(json.dumps(CHAT)) // 3)


async def test_vectors_are_not_read_for_texts(autojump_clock: MockClock) -> None:
    body = b'{"object":"list","data":[{"embedding":[1,2]}],"choices":[{"text":"a text that vectors do not have"}]}'
    async with fleet(autojump_clock, ScriptedEngine(whole(body))) as world:
        assert (await world.ask({"model": "tiny", "input": "a"}, Dialect.EMBEDDINGS)).body == body
        usage = world.receipt().settlement.usage
        assert usage.estimated
        assert usage.output_tokens == 0


async def test_an_engine_that_misses_departures_is_asked_for_a_stream(autojump_clock: MockClock) -> None:
    scripted = ScriptedEngine(Script(parts=(Part(delta("a")), Part(delta("b", "stop")), Part(USAGE + DONE))))
    async with fleet(autojump_clock, scripted, driver="llama_cpp") as world:
        sink = await world.ask(CHAT)
        sent = json.loads(scripted.bodies[0])
        assert sent["stream"] is True
        assert sent["stream_options"] == {"include_usage": True}
        answer = sink.json()
        assert answer["object"] == "chat.completion"
        assert answer["choices"][0]["message"]["content"] == "ab"
        assert answer["usage"]["completion_tokens"] == 2
        assert sink.headers["content-type"] == "application/json"
        assert world.receipt().settlement.usage == Usage(input_tokens=7, output_tokens=2)


async def test_an_assembled_answer_that_is_cut_is_a_502(autojump_clock: MockClock) -> None:
    scripted = ScriptedEngine(Script(parts=(Part(delta("a")),)))
    async with fleet(autojump_clock, scripted, driver="llama_cpp") as world:
        sink = await world.ask(CHAT)
        assert sink.refusal is not None
        assert sink.refusal.outcome is Outcome.ENGINE_FAILED
        assert world.receipt().settlement.detail == "engine_cut"


async def test_models_are_those_of_the_key(autojump_clock: MockClock) -> None:
    async with fleet(autojump_clock) as world:
        cards = await world.gateway.models("lnx_unknown")
        assert not isinstance(cards, tuple)
        cards = await world.gateway.models(None)
        assert not isinstance(cards, tuple)
        assert cards.outcome is Outcome.INVALID_API_KEY
