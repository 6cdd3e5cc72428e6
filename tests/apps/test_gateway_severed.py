"""The node of a replica that works on a request is gone, and its connection does not say so: in the same instant the
engine's socket is closed, and the attempt has failed as one whose engine broke. A revoked node stands for all of them;
the rules have the others."""

from typing import Any

import attrs
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from lunanexa_apps.controller.gateway.settings import GatewaySettings
from lunanexa_core.commands import RevokeNode
from lunanexa_core.ids import NodeId, StartId
from lunanexa_core.keys import secret_digest
from lunanexa_core.openai.stream import KEEPALIVE
from lunanexa_core.outcomes import Outcome, Refusal
from lunanexa_core.workload import Dialect, Usage, WorkloadState
from lunanexa_ports.dispatch import Admitted, Grant
from lunanexa_ports.gateway import News
from tests.apps.gateway_fleet import DONE, USAGE, Fleet, Part, Script, ScriptedEngine, Sink, delta, fleet, reference
from tests.core.builders import SECRET, request

CHAT: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "Once"}], "max_tokens": 6}
STREAM = CHAT | {"stream": True}
SPEECH: dict[str, Any] = {"model": "tiny", "input": "Once", "voice": "alloy", "response_format": "wav"}
WHOLE = b'{"choices":[{"index":0,"finish_reason":"stop","message":{"content":"a"}}]}'
SILENT = Script(before_s=1_000)
GOOD = Script(parts=(Part(delta("a")), Part(delta("", "stop") + USAGE + DONE)))
WHOLE_ONE = Script(content_type="application/json", parts=(Part(WHOLE),))
FAILURE = "node_revoked"


async def revoke(world: Fleet, node: NodeId | None = None) -> None:
    """The node of the one request in progress, unless it is told."""
    if node is None:
        (held,) = world.kernel.observed.held.values()
        node = held.node
    answer = await world.kernel.ask(RevokeNode(node=node), "test")
    assert not isinstance(answer, Refusal), answer


def failures(world: Fleet) -> list[str | None]:
    return [attempt.failure for attempt in world.receipt().settlement.attempts]


async def asked_one(engines: tuple[ScriptedEngine, ...]) -> tuple[ScriptedEngine, ScriptedEngine]:
    """The engine that was asked, and the other one."""
    await wait_all_tasks_blocked()
    first = next(engine for engine in engines if engine.in_progress)
    return first, next(engine for engine in engines if engine is not first)


@pytest.mark.parametrize(
    ("body", "stuck", "good"),
    [
        pytest.param(STREAM, SILENT, GOOD, id="stream"),
        pytest.param(STREAM, Script(stuck=True), GOOD, id="stream-with-a-head"),
        pytest.param(CHAT, SILENT, WHOLE_ONE, id="whole"),
        pytest.param(
            CHAT,
            Script(content_type="application/json", parts=(Part(WHOLE[:20]),), stuck=True),
            WHOLE_ONE,
            id="half-of-a-whole",
        ),
    ],
)
async def test_nothing_has_reached_the_client_and_another_replica_is_asked(
    body: dict[str, Any], stuck: Script, good: Script, autojump_clock: MockClock
) -> None:
    engines = ScriptedEngine(stuck), ScriptedEngine(stuck)
    async with fleet(autojump_clock, *engines, slots=1) as world, trio.open_nursery() as nursery:
        sink = Sink()
        nursery.start_soon(world.gateway.infer, world.call(body), sink)
        first, second = await asked_one(engines)
        second.scripts = [good]
        await trio.sleep(5)
        cut_s = trio.current_time()
        await revoke(world)
        await sink.until(lambda sink: sink.ended)
        assert trio.current_time() == cut_s
        assert (first.departures, first.in_progress) == (1, 0)
        assert (sink.status, len(second.bodies)) == (200, 1)
        assert world.receipt().state is WorkloadState.SUCCEEDED
        assert failures(world) == [FAILURE, None]
        assert world.receipt().settlement.queue_ms == 0, "what an engine took is no time in the queue"
        assert world.at_rest()


async def test_an_answer_that_is_put_together_is_asked_for_again(autojump_clock: MockClock) -> None:
    """Of what the engine has said nothing has reached the client."""
    engines = tuple(ScriptedEngine(Script(parts=(Part(delta("z")),), stuck=True)) for _ in range(2))
    async with fleet(autojump_clock, *engines, driver="llama_cpp") as world, trio.open_nursery() as nursery:
        sink = Sink()
        nursery.start_soon(world.gateway.infer, world.call(CHAT), sink)
        _, second = await asked_one(engines)
        second.scripts = [GOOD]
        await revoke(world)
        await sink.until(lambda sink: sink.ended)
        assert sink.json()["choices"][0]["message"]["content"] == "a"
        assert failures(world) == [FAILURE, None]


async def test_a_stream_that_has_begun_ends_in_an_error_frame(autojump_clock: MockClock) -> None:
    engines = tuple(ScriptedEngine(Script(parts=(Part(delta("a")), Part(delta("b"))), stuck=True)) for _ in range(2))
    async with fleet(autojump_clock, *engines) as world, trio.open_nursery() as nursery:
        sink = Sink()
        nursery.start_soon(world.gateway.infer, world.call(STREAM), sink)
        await sink.until(lambda sink: len(sink.writes) == 2)
        first, second = await asked_one(engines)
        cut_s = trio.current_time()
        await revoke(world)
        await sink.until(lambda sink: sink.ended)
        assert trio.current_time() == cut_s
        assert (first.departures, len(second.bodies)) == (1, 0)
        assert sink.events()[:2] == [delta("a"), delta("b")]
        assert (sink.error()["code"], sink.error()["retryable"]) == ("engine_failed", True)
        settlement = world.receipt().settlement
        assert (settlement.outcome, settlement.detail) == (Outcome.ENGINE_FAILED, FAILURE)
        assert (settlement.usage.output_tokens, failures(world)) == (2, [FAILURE])
        assert world.at_rest()


async def test_bare_speech_that_has_begun_ends_without_its_end(autojump_clock: MockClock) -> None:
    sound = Script(content_type="audio/wav", parts=(Part(b"RIFF....WAVE"),), stuck=True)
    engines = ScriptedEngine(sound), ScriptedEngine(sound)
    async with fleet(autojump_clock, *engines) as world, trio.open_nursery() as nursery:
        sink = Sink()
        nursery.start_soon(world.gateway.infer, world.call(SPEECH, Dialect.AUDIO_SPEECH), sink)
        await sink.until(lambda sink: bool(sink.writes))
        await revoke(world)
        await sink.until(lambda sink: sink.ended)
        assert (sink.cut, failures(world)) == (True, [FAILURE])
        assert world.at_rest()


async def test_half_a_frame_is_not_what_the_client_gets(autojump_clock: MockClock) -> None:
    """The write in progress ends first, however slowly it is taken; nothing is read for it any more."""
    parts = (Part(delta("a")), Part(delta("b")), Part(delta("c")), Part(delta("d")))
    engines = ScriptedEngine(Script(parts=parts, stuck=True)), ScriptedEngine()
    async with fleet(autojump_clock, *engines[:1]) as world, trio.open_nursery() as nursery:
        sink = Sink()
        sink.room = trio.Event()
        nursery.start_soon(world.gateway.infer, world.call(STREAM), sink)
        await sink.until(lambda sink: sink.begun)
        await wait_all_tasks_blocked()
        await revoke(world)
        await trio.sleep(5)
        assert (sink.ended, sink.writes) == (False, [])
        sink.room.set()
        await sink.until(lambda sink: sink.ended)
        assert sink.events()[0] == delta("a")
        assert (len(sink.events()), sink.error()["code"]) == (2, "engine_failed")
        assert failures(world) == [FAILURE]


async def test_a_comment_that_is_on_its_way_is_whole_and_the_answer_comes_after_it(autojump_clock: MockClock) -> None:
    engines = ScriptedEngine(SILENT), ScriptedEngine(SILENT)
    settings = GatewaySettings(keepalive_ms=1_000)
    async with fleet(autojump_clock, *engines, settings=settings) as world, trio.open_nursery() as nursery:
        sink = Sink()
        nursery.start_soon(world.gateway.infer, world.call(STREAM), sink)
        first, second = await asked_one(engines)
        second.scripts = [GOOD]
        sink.room = trio.Event()
        await sink.until(lambda sink: sink.begun)
        await wait_all_tasks_blocked()
        await revoke(world)
        sink.room.set()
        await sink.until(lambda sink: sink.ended)
        assert (sink.events()[0], sink.text(), first.departures) == (KEEPALIVE, "a", 1)
        assert failures(world) == [FAILURE, None]


async def test_two_nodes_that_go_are_two_attempts_and_no_third(autojump_clock: MockClock) -> None:
    engines = ScriptedEngine(SILENT), ScriptedEngine(SILENT)
    async with fleet(autojump_clock, *engines) as world, trio.open_nursery() as nursery:
        sink = Sink()
        nursery.start_soon(world.gateway.infer, world.call(CHAT), sink)
        for _ in range(2):
            await wait_all_tasks_blocked()
            await revoke(world)
        await sink.until(lambda sink: sink.ended)
        assert (sink.status, failures(world)) == (502, [FAILURE, FAILURE])
        assert world.receipt().settlement.usage == Usage()
        assert world.at_rest()


async def test_what_works_elsewhere_is_left_alone(autojump_clock: MockClock) -> None:
    engines = ScriptedEngine(SILENT), ScriptedEngine(SILENT)
    async with fleet(autojump_clock, *engines, slots=1) as world, trio.open_nursery() as nursery:
        for number in range(2):
            nursery.start_soon(world.gateway.infer, world.call(CHAT, request=f"req_{number}"), Sink())
        await wait_all_tasks_blocked()
        gone, stays = world.kernel.observed.held.values()
        await revoke(world, gone.node)
        await wait_all_tasks_blocked()
        assert sorted(engine.departures for engine in engines) == [0, 1]
        assert [held.start for held in world.kernel.observed.held.values()] == [stays.start]
        nursery.cancel_scope.cancel("it is left alone")


async def test_a_node_that_went_before_it_was_asked_is_not_asked(autojump_clock: MockClock) -> None:
    class Slow(Sink):
        """Takes its time to hear that its request was accepted."""

        heard = trio.Event()

        async def tell(self, news: News) -> None:
            await self.heard.wait()

    engines = ScriptedEngine(WHOLE_ONE), ScriptedEngine(WHOLE_ONE)
    async with fleet(autojump_clock, *engines) as world, trio.open_nursery() as nursery:
        sink = Slow()
        nursery.start_soon(world.gateway.infer, world.call(CHAT), sink)
        await wait_all_tasks_blocked()
        await revoke(world)
        sink.heard.set()
        await sink.until(lambda sink: sink.ended)
        assert (sink.status, failures(world)) == (200, [FAILURE, None])
        assert sum(len(engine.bodies) for engine in engines) == 1


async def test_a_watch_that_opens_late_is_told_at_once(autojump_clock: MockClock) -> None:
    async with fleet(autojump_clock, reference()) as world:
        asked = attrs.evolve(request(1), key_digest=secret_digest(SECRET))
        assert isinstance(await world.dispatch.admit(asked), Admitted)
        await revoke(world)
        told: list[tuple[StartId, str]] = []
        async with world.dispatch.watch(asked.workload) as watch:
            grant = await watch.next()
            assert isinstance(grant, Grant)
            watch.on_severed(lambda start, failure: told.append((start, failure)))
            assert told == [(grant.start, FAILURE)]
