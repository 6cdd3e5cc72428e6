"""Slots, the line behind them, pacing, and departure in each phase, on a clock that the test moves."""

import hashlib
import json

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from lunanexa_apps.engine.app import ReferenceEngine
from lunanexa_apps.engine.settings import Mode
from lunanexa_ports.asgi import Message
from tests.apps.engine_driver import Call, calling, chat, engine, get, metric, post, prepare

CHAT, EMBEDDINGS = "/v1/chat/completions", "/v1/embeddings"
STREAM = chat("one two three", stream=True)
UNARY = chat("one two three")


async def gauges(app: ReferenceEngine) -> tuple[float, float]:
    return await metric(app, "vllm:num_requests_running"), await metric(app, "vllm:num_requests_waiting")


async def aborted(app: ReferenceEngine) -> float:
    return await metric(app, 'vllm:request_success_total{engine="0",finished_reason="abort"')


async def test_requests_beyond_the_slots_wait_in_order_and_beyond_the_line_are_refused(mock_clock: MockClock) -> None:
    app = engine(mode=Mode.ECHO, slots=2, queue=2, ttft_ms=1000)
    async with calling(app, CHAT, STREAM, UNARY, STREAM, UNARY) as calls:
        assert await gauges(app) == (2, 2)
        refused = await post(app, CHAT, STREAM)
        assert refused.status == 429
        assert refused.json()["error"]["code"] == "queue_full"
        assert refused.header(b"retry-after") == b"1"
        assert (await post(app, EMBEDDINGS, {"model": "reference", "input": "a"})).status == 429
        assert await metric(app, "vllm:admission_rejections_total") == 2
        assert [slot["is_processing"] for slot in (await get(app, "/slots")).json()] == [True, True]
        mock_clock.jump(1)
        await calls[0].ended.wait()
        await calls[1].ended.wait()
        await wait_all_tasks_blocked()
        assert not calls[2].ended.is_set()
        assert await gauges(app) == (2, 0)
        mock_clock.jump(1)
        await calls[2].ended.wait()
        await calls[3].ended.wait()
        assert await gauges(app) == (0, 0)
    assert len(calls[2].documents()) == 5
    assert await metric(app, "vllm:request_queue_time_seconds_sum") == 2


async def test_the_line_is_first_in_first_out(mock_clock: MockClock) -> None:
    app = engine(mode=Mode.ECHO, slots=1, queue=10, ttft_ms=1000)
    async with calling(app, CHAT, *[UNARY] * 6) as calls:
        for number in range(6):
            assert [call.ended.is_set() for call in calls] == [i < number for i in range(6)]
            mock_clock.jump(1)
            await wait_all_tasks_blocked()
            await calls[number].ended.wait()


@pytest.mark.parametrize("body", [STREAM, UNARY], ids=["stream", "unary"])
async def test_leaving_the_line_frees_the_place(body: object, mock_clock: MockClock) -> None:
    app = engine(mode=Mode.ECHO, slots=1, queue=2, ttft_ms=1000)
    async with calling(app, CHAT, UNARY, body, UNARY) as calls:
        assert await gauges(app) == (1, 2)
        calls[1].departed.set()
        await calls[1].ended.wait()
        assert await gauges(app) == (1, 1)
        assert await aborted(app) == 1
        async with calling(app, CHAT, UNARY):
            assert await gauges(app) == (1, 2)
        mock_clock.jump(1)
        await calls[0].ended.wait()
        mock_clock.jump(1)
        await calls[2].ended.wait()


@pytest.mark.parametrize("body", [STREAM, UNARY], ids=["stream", "unary"])
async def test_leaving_before_the_first_token_frees_the_slot(body: object, mock_clock: MockClock) -> None:
    app = engine(mode=Mode.ECHO, slots=1, ttft_ms=1000)
    async with calling(app, CHAT, body, UNARY) as calls:
        assert await gauges(app) == (1, 1)
        calls[0].departed.set()
        await calls[0].ended.wait()
        await wait_all_tasks_blocked()
        assert await gauges(app) == (1, 0)
        assert await aborted(app) == 1
        assert await metric(app, "vllm:generation_tokens_total") == 0
        mock_clock.jump(1)
        await calls[1].ended.wait()
        assert calls[1].status == 200


@pytest.mark.parametrize("body", [STREAM, UNARY], ids=["stream", "unary"])
async def test_leaving_between_tokens_frees_the_slot(body: object, mock_clock: MockClock) -> None:
    app = engine(mode=Mode.ECHO, slots=1, itl_ms=1000)
    async with calling(app, CHAT, body) as calls:
        mock_clock.jump(1)
        await wait_all_tasks_blocked()
        assert await metric(app, "vllm:generation_tokens_total") == 2
        assert (await get(app, "/slots")).json()[0]["completion_tokens"] == 2
        calls[0].departed.set()
        await calls[0].ended.wait()
        assert await gauges(app) == (0, 0)
        assert await aborted(app) == 1
        assert await metric(app, "vllm:kv_cache_usage_perc") == 0
    assert b"[DONE]" not in calls[0].body


async def test_leaving_frees_the_slot_of_embeddings(mock_clock: MockClock) -> None:
    app = engine(slots=1, ttft_ms=1000)
    async with calling(app, EMBEDDINGS, {"model": "reference", "input": "a"}) as calls:
        assert await gauges(app) == (1, 0)
        calls[0].departed.set()
        await calls[0].ended.wait()
        assert await gauges(app) == (0, 0)
    assert mock_clock.current_time() == 0


async def test_leaving_while_the_body_arrives_ends_the_call() -> None:
    class HalfSent(Call):
        async def receive(self) -> dict[str, object]:
            self.read_bytes += 1
            if self.read_bytes == 1:
                return {"type": "http.request", "body": b'{"mod', "more_body": True}
            return {"type": "http.disconnect"}

    call = HalfSent("POST", CHAT, [], [])
    await call.run(engine())
    assert call.sent == []


async def test_a_reader_that_stops_holds_its_own_slot_only() -> None:
    class Stuck(Call):
        async def send(self, message: object) -> None:
            await trio.sleep_forever()

    app = engine(mode=Mode.ECHO, slots=2)
    stuck = Stuck("POST", CHAT, [json.dumps(STREAM).encode()], [])
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stuck.run, app)
        await wait_all_tasks_blocked()
        assert len((await post(app, CHAT, STREAM)).documents()) == 5
        stuck.departed.set()
        await stuck.ended.wait()
    assert await gauges(app) == (0, 0)


@pytest.mark.parametrize(("body", "generated"), [(STREAM, 1), (UNARY, 3)], ids=["stream", "unary"])
async def test_a_server_that_refuses_to_send_means_that_the_client_has_gone(body: object, generated: int) -> None:
    class Gone(Call):
        async def send(self, message: Message) -> None:
            if message["type"] == "http.response.body":
                raise BrokenPipeError
            await super().send(message)

    app = engine(mode=Mode.ECHO)
    await Gone("POST", CHAT, [json.dumps(body).encode()], []).run(app)
    assert await gauges(app) == (0, 0)
    assert await metric(app, "vllm:generation_tokens_total") == generated
    assert await aborted(app) == (1 if generated < 3 else 0)


async def test_tokens_come_when_they_are_due(autojump_clock: MockClock) -> None:
    app = engine(mode=Mode.ECHO, ttft_ms=250, itl_ms=62.5)
    start = autojump_clock.current_time()
    times: list[float] = []

    class Timed(Call):
        async def send(self, message: object) -> None:
            times.append(autojump_clock.current_time() - start)

    call = Timed("POST", CHAT, [json.dumps(STREAM).encode()], [])
    await call.run(app)
    # Head at once; role and first piece at the first token's time; two more pieces; the end one step later.
    assert times == [0, 0.25, 0.25, 0.3125, 0.375, 0.4375, 0.4375]
    assert await metric(app, "vllm:time_to_first_token_seconds_sum") == 0.25
    assert await metric(app, "vllm:inter_token_latency_seconds_sum") == 0.125
    assert await metric(app, "vllm:e2e_request_latency_seconds_sum") == 0.4375


@pytest.mark.thorough
async def test_without_pacing_each_token_is_still_a_turn_for_others() -> None:
    app = engine(slots=2)
    long = chat(stream=True, ignore_eos=True, max_tokens=400)
    async with calling(app, CHAT) as _, trio.open_nursery() as nursery:
        first, second = prepare("POST", CHAT, long), prepare("POST", CHAT, long)
        nursery.start_soon(first.run, app)
        nursery.start_soon(second.run, app)
        await first.until_events(50)
        assert not first.ended.is_set()
        assert len(second.events()) > 20
    assert len(first.documents()) == len(second.documents()) == 402


def test_a_run_is_the_same_in_each_loop() -> None:
    async def scenario() -> str:
        app = engine(slots=2, ttft_ms=125, itl_ms=31.25)
        digest = hashlib.sha256()
        async with calling(app, CHAT, *[chat(f"question {i}", stream=True) for i in range(4)]) as calls:
            calls[1].departed.set()
            for call in calls:
                await call.ended.wait()
                digest.update(call.body)
        digest.update((await get(app, "/metrics")).body)
        return digest.hexdigest()

    clocks = [MockClock(autojump_threshold=0) for _ in range(3)]
    assert len({trio.run(scenario, clock=clock) for clock in clocks}) == 1
