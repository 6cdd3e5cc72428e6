"""The limits of a key as its callers meet them: refusals, headers, revocation and expiry under way."""

from typing import Any

import attrs
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from lunanexa_apps.controller.gateway.outlet import CUT_PATIENCE_S
from lunanexa_apps.controller.gateway.settings import GatewaySettings
from lunanexa_core.commands import CreateKey, RevokeKey
from lunanexa_core.events import KeyCreated
from lunanexa_core.ids import KeyId
from lunanexa_core.keys import secret_digest
from lunanexa_core.outcomes import Outcome, Refusal
from lunanexa_core.workload import WorkloadState
from lunanexa_ports.dispatch import Admitted
from tests.apps.gateway_fleet import Fleet, Part, Script, ScriptedEngine, Sink, delta, fleet, reference
from tests.core.builders import api_key, request

LIMITED = KeyId("key_2")
SECRET = "lnx_" + "l" * 20 + "0123456789abcdefghijklm"
CHAT: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "Once"}], "max_tokens": 6}
STREAM = CHAT | {"stream": True}
STUCK = Script(parts=(Part(delta("a")), Part(delta("b"), wait_s=1)), stuck=True)
SILENT = Script(before_s=10_000)


async def make_key(world: Fleet, **limits: Any) -> None:
    key = api_key(key=LIMITED, digest=secret_digest(SECRET), **limits)
    assert isinstance(await world.kernel.ask(CreateKey(key), "test"), KeyCreated)


async def revoke(world: Fleet) -> None:
    assert not isinstance(await world.kernel.ask(RevokeKey(LIMITED), "test"), Refusal)


def expected(limit: int, remaining: int, what: str) -> dict[str, str]:
    return {f"x-ratelimit-limit-{what}": str(limit), f"x-ratelimit-remaining-{what}": str(remaining)}


async def test_answers_tell_what_is_left(autojump_clock: MockClock) -> None:
    async with fleet(autojump_clock) as world:
        await make_key(world, requests_per_minute=2, tokens_per_minute=500)
        first = await world.ask(CHAT, api_key=SECRET)
        reserved = 500 - int(first.headers["x-ratelimit-remaining-tokens"])
        assert first.headers.items() >= (expected(2, 1, "requests") | expected(500, 500 - reserved, "tokens")).items()
        assert first.headers["x-ratelimit-reset-requests"] in ("60s", "61s")
        assert reserved >= 6
        used = world.receipt().settlement.usage
        second = await world.ask(STREAM, api_key=SECRET)
        left = 500 - used.input_tokens - used.output_tokens
        assert second.headers.items() >= expected(2, 0, "requests").items()
        assert abs(int(second.headers["x-ratelimit-remaining-tokens"]) - (left - reserved)) <= 10
        third = await world.ask(STREAM, api_key=SECRET)
        assert third.status == 429
        assert third.refusal is not None
        assert third.headers.items() >= expected(2, 0, "requests").items()
        wait_ms = third.refusal.wait_ms
        assert wait_ms is not None
        await trio.sleep(wait_ms / 1000)
        assert (await world.ask(CHAT, api_key=SECRET)).status == 200
        unlimited = await world.ask(CHAT)
        assert not [name for name in unlimited.headers if name.startswith("x-ratelimit")]


async def test_a_budget_for_one_admits_one_of_many_at_once(autojump_clock: MockClock) -> None:
    for limits in ({"concurrency": 1}, {"requests_per_minute": 1}, {"tokens_per_minute": 1_100}):
        async with fleet(autojump_clock) as world:
            await make_key(world, **limits)
            answers: list[Admitted | Refusal] = []

            async def admit(number: int, world: Fleet = world, answers: list[Any] = answers) -> None:
                asked = request(number, key_digest=secret_digest(SECRET))
                answers.append(await world.dispatch.admit(asked))

            async with trio.open_nursery() as nursery:
                for number in range(8):
                    nursery.start_soon(admit, number)
            assert sum(isinstance(answer, Admitted) for answer in answers) == 1, limits
            refused = [answer for answer in answers if isinstance(answer, Refusal)]
            assert {refusal.outcome for refusal in refused} == {Outcome.RATE_LIMITED}


async def test_what_no_engine_worked_for_comes_back(autojump_clock: MockClock) -> None:
    refuses = Script(status=400, content_type="application/json", parts=(Part(b'{"error":{"message":"no"}}'),))
    async with fleet(autojump_clock, ScriptedEngine(refuses, STUCK)) as world:
        await make_key(world, concurrency=1, requests_per_minute=1, tokens_per_minute=500)
        assert (await world.ask(CHAT, api_key=SECRET)).status == 400
        assert not world.kernel.state.windows
        # A departure in mid-stream is work of an engine: the slot comes back, the request counts.
        sink = Sink()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(world.gateway.infer, world.call(STREAM, api_key=SECRET), sink)
            await sink.until(lambda sink: len(sink.writes) == 2)
            nursery.cancel_scope.cancel()
        assert world.at_rest()
        windows = world.kernel.state.windows[LIMITED]
        now = world.kernel.now().wall_ms
        used = world.receipts()[-1].settlement.usage
        assert (windows.requests.spent(now), windows.tokens.spent(now)) == (1, used.input_tokens + used.output_tokens)
        again = await world.ask(CHAT, api_key=SECRET)
        assert again.status == 429


async def test_revocation_ends_an_open_stream(autojump_clock: MockClock) -> None:
    engine = ScriptedEngine(STUCK)
    async with fleet(autojump_clock, engine) as world, trio.open_nursery() as nursery:
        await make_key(world, requests_per_minute=5)
        sink = Sink()
        nursery.start_soon(world.gateway.infer, world.call(STREAM, api_key=SECRET), sink)
        await sink.until(lambda sink: len(sink.writes) == 2)
        began_s = trio.current_time()
        await revoke(world)
        await engine.departed.wait()
        await sink.until(lambda sink: sink.ended)
        assert trio.current_time() - began_s < 1
        assert sink.error()["code"] == "invalid_api_key"
        assert b"[DONE]" not in sink.body
        settlement = world.receipt().settlement
        assert (world.receipt().state, settlement.outcome) == (WorkloadState.FAILED, Outcome.INVALID_API_KEY)
        assert settlement.detail == "key_revoked"
        assert settlement.usage.output_tokens == 2
        assert world.at_rest()
        assert (await world.ask(STREAM, api_key=SECRET)).status == 401


@pytest.mark.parametrize("script", [STUCK, SILENT], ids=["output", "keepalive"])
async def test_a_client_that_does_not_read_keeps_no_engine_of_a_revoked_key(
    autojump_clock: MockClock, script: Script
) -> None:
    """Neither by an event that it does not take nor by a comment."""
    engine = ScriptedEngine(script)
    settings = GatewaySettings(keepalive_ms=1_500)
    async with fleet(autojump_clock, engine, settings=settings) as world, trio.open_nursery() as nursery:
        await make_key(world)
        sink = Sink()
        nursery.start_soon(world.gateway.infer, world.call(STREAM, api_key=SECRET), sink)
        await sink.until(lambda sink: len(sink.writes) == 1)
        sink.room = trio.Event()
        # The next write has begun, and nobody takes it.
        await trio.sleep(2)
        began_s = trio.current_time()
        await revoke(world)
        await engine.departed.wait()
        assert trio.current_time() - began_s <= CUT_PATIENCE_S + 0.01
        while not world.receipts():
            await trio.sleep(0.1)
        assert world.receipt().settlement.detail == "key_revoked"
        assert len(sink.writes) == 1
        nursery.cancel_scope.cancel("the client is reset")
    assert world.at_rest()


@pytest.mark.parametrize("stream", [False, True])
async def test_revocation_before_any_output_is_a_401(autojump_clock: MockClock, stream: bool) -> None:
    engine = ScriptedEngine(SILENT)
    async with fleet(autojump_clock, engine) as world, trio.open_nursery() as nursery:
        await make_key(world)
        sink = Sink()
        nursery.start_soon(world.gateway.infer, world.call(CHAT | {"stream": stream}, api_key=SECRET), sink)
        await engine.asked.wait()
        await revoke(world)
        await engine.departed.wait()
        await sink.until(lambda sink: sink.ended)
        assert sink.status == 401
        assert world.receipt().settlement.detail == "key_revoked"
        assert world.at_rest()


async def test_revocation_frees_a_place_in_the_queue(autojump_clock: MockClock) -> None:
    async with fleet(autojump_clock, ScriptedEngine(STUCK), slots=1) as world, trio.open_nursery() as nursery:
        await make_key(world, requests_per_minute=5)
        held, waiting = Sink(), Sink()
        nursery.start_soon(world.gateway.infer, world.call(STREAM), held)
        await held.until(lambda sink: sink.begun)
        nursery.start_soon(world.gateway.infer, world.call(CHAT, api_key=SECRET), waiting)
        await wait_all_tasks_blocked()
        assert sum(map(len, world.kernel.observed.queues.values())) == 1
        await revoke(world)
        await waiting.until(lambda sink: sink.ended)
        assert waiting.status == 401
        assert not any(map(len, world.kernel.observed.queues.values()))
        assert not world.kernel.state.windows
        nursery.cancel_scope.cancel("the test is over")


async def test_expiry_ends_an_open_stream_too(autojump_clock: MockClock) -> None:
    async with fleet(autojump_clock, ScriptedEngine(STUCK)) as world:
        expires_wall_ms = world.kernel.now().wall_ms + 5_000
        await make_key(world, expires_wall_ms=expires_wall_ms)
        began_s = trio.current_time()
        sink = await world.ask(STREAM, api_key=SECRET)
        assert 5 <= trio.current_time() - began_s < 6
        assert sink.error()["code"] == "invalid_api_key"
        assert (await world.ask(CHAT, api_key=SECRET)).status == 401


async def test_a_watch_that_opens_late_is_told_at_once(autojump_clock: MockClock) -> None:
    async with fleet(autojump_clock, reference()) as world:
        await make_key(world)
        asked = attrs.evolve(request(1), key_digest=secret_digest(SECRET))
        assert isinstance(await world.dispatch.admit(asked), Admitted)
        await revoke(world)
        told: list[Refusal] = []
        async with world.dispatch.watch(asked.workload) as watch:
            watch.on_void(told.append)
            assert [refusal.outcome for refusal in told] == [Outcome.INVALID_API_KEY]
        await trio.sleep(2)
        assert len(told) == 1
