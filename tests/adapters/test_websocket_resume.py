"""Resumable workloads: gapless after a drop, for their own key alone, for a time, and within bounds."""

from typing import Any

import pytest
import trio
from trio.testing import MockClock

from lunanexa_core.contract.frames import Accepted, Cancel, Cancelled, Completed, Credit, Event, Resume, ServerFrame
from lunanexa_core.ids import KeyId
from lunanexa_core.keys import secret_digest
from lunanexa_core.outcomes import Outcome
from tests.adapters.ws_driver import CHAT, Socket, connected, events, plane, refused, running, submit, until_ended
from tests.apps.gateway_fleet import Part, Script, ScriptedEngine, fleet
from tests.core.builders import api_key

OTHER = "lnx_" + "z" * 20 + "0123456789abcdefghijklm"


async def begun(socket: Socket, name: str = "a", **more: Any) -> str:
    """The token of a workload that was accepted."""
    socket.say(submit(name, resumable=True, **more))
    accepted = await socket.hear()
    assert isinstance(accepted, Accepted)
    assert accepted.resume_token is not None
    return accepted.resume_token


def numbers(frames: list[ServerFrame]) -> list[int]:
    return [frame.seq for frame in frames if isinstance(frame, Event | Completed)]


@pytest.mark.parametrize("away_s", [0, 3, 25])
async def test_what_followed_comes_without_a_gap(autojump_clock: MockClock, away_s: float) -> None:
    async with fleet(autojump_clock, ScriptedEngine(events(40, every_s=1))) as world, running(world) as app:
        async with connected(app) as socket:
            token = await begun(socket)
            await trio.sleep(5.5)
            seen = numbers(socket.heard())
            assert seen == [1, 2, 3, 4, 5]
        await trio.sleep(away_s)
        async with connected(app) as socket:
            socket.say(Resume("again", 3, token))
            frames = await until_ended(socket)
            assert {frame.id for frame in frames} == {"again"}
            assert numbers(frames) == list(range(4, 4 + len(frames)))
            assert frames[-1].response["state"] == "Succeeded"
        assert len(world.receipts()) == 1
        assert world.at_rest()


async def test_the_end_is_kept_too(autojump_clock: MockClock) -> None:
    async with fleet(autojump_clock, ScriptedEngine(events(3))) as world, running(world) as app:
        async with connected(app) as socket:
            token = await begun(socket)
            first = [*await until_ended(socket)]
        for after in (0, 2, first[-1].seq):
            async with connected(app) as socket:
                socket.say(Resume("b", after, token))
                if after < first[-1].seq:
                    frames = await until_ended(socket)
                    assert [frame.seq for frame in frames] == [frame.seq for frame in first[after:]]
                else:
                    await trio.sleep(1)
                    assert socket.heard() == []


async def test_a_failure_is_kept_too(autojump_clock: MockClock) -> None:
    cut = Script(parts=events(3, every_s=1).parts[:3], whole=False)
    async with fleet(autojump_clock, ScriptedEngine(cut)) as world, running(world) as app:
        async with connected(app) as socket:
            token = await begun(socket)
        await trio.sleep(10)
        async with connected(app) as socket:
            socket.say(Resume("a", 0, token))
            frames = await until_ended(socket)
            assert numbers(frames) == [1, 2, 3]
            assert frames[-1].error["code"] == "engine_failed"


async def test_nobody_comes_and_it_is_cancelled(autojump_clock: MockClock) -> None:
    engine = ScriptedEngine(events(100, every_s=1))
    async with fleet(autojump_clock, engine) as world, running(world) as app:
        async with connected(app) as socket:
            token = await begun(socket)
            workload = token.split("~")[1]
            await trio.sleep(2)
        await trio.sleep(29)
        assert not world.receipts()
        await trio.sleep(2)
        assert world.receipt().settlement.outcome is Outcome.CANCELLED_BY_CALLER
        assert engine.departures == 1
        async with connected(app) as socket:
            socket.say(Resume("a", 0, token))
            (failed,) = await until_ended(socket)
            assert failed.error["code"] == "resume_gone"
            assert failed.error["receipt"] == f"/v1/workloads/{workload}"
            assert not failed.error["retryable"]


async def test_a_token_opens_nothing_for_others(autojump_clock: MockClock) -> None:
    other = api_key(key=KeyId("key_2"), digest=secret_digest(OTHER))
    async with (
        fleet(autojump_clock, ScriptedEngine(events(9, every_s=1)), more_keys=(other,)) as world,
        running(world) as app,
    ):
        async with connected(app) as socket:
            token = await begun(socket)
        session, workload, secret = token.split("~")
        wrong = [
            f"{session}~{workload}~{secret[:-1]}{'A' if secret[-1] != 'A' else 'B'}",
            f"elsewhere~{workload}~{secret}",
            f"{session}~wl_other~{secret}",
            *("~", "a", "~~~~", "\ud800~b~c", "a~b~\ud800", session),
        ]
        async with connected(app, headers=((b"x-api-key", OTHER.encode()),)) as stranger:
            stranger.say(Resume("a", 0, token))
            (failed,) = await until_ended(stranger)
            assert failed.error["code"] == "resume_gone"
        async with connected(app) as socket:
            for text in wrong:
                socket.say(Resume("a", 0, text))
                (failed,) = await until_ended(socket)
                assert failed.error["code"] == "resume_gone"
            socket.say(Resume("a", 0, token))
            assert isinstance((await until_ended(socket))[-1], Completed)


async def test_another_process_has_nothing(autojump_clock: MockClock) -> None:
    async with fleet(autojump_clock, ScriptedEngine(events(9, every_s=1))) as world, running(world) as app:
        async with connected(app) as socket:
            token = await begun(socket)
        async with connected(plane(world)) as elsewhere:
            elsewhere.say(Resume("a", 0, token))
            (failed,) = await until_ended(elsewhere)
            assert failed.error["code"] == "resume_gone"


async def test_a_client_may_come_back_before_its_departure_is_noticed(autojump_clock: MockClock) -> None:
    async with (
        fleet(autojump_clock, ScriptedEngine(events(9, every_s=1))) as world,
        running(world) as app,
        connected(app) as dead,
        connected(app) as socket,
    ):
        token = await begun(dead)
        await trio.sleep(3.5)
        socket.say(Resume("b", 0, token))
        frames = await until_ended(socket)
        assert numbers(frames) == list(range(1, len(frames) + 1))
        assert len(numbers(dead.heard())) == 3
        assert not dead.closed.is_set()


async def test_the_replay_needs_credit_too(autojump_clock: MockClock) -> None:
    async with fleet(autojump_clock, ScriptedEngine(events(400))) as world, running(world) as app:
        async with connected(app) as socket:
            token = await begun(socket)
            socket.say(Credit("a", 200))
            await trio.sleep(1)
            assert numbers(socket.heard()) == list(range(1, 403)), "with credit left over"
        async with connected(app) as socket:
            socket.say(Resume("a", 100, token))
            await trio.sleep(1)
            assert numbers(socket.heard()) == list(range(101, 357))
            socket.say(Credit("a", 1_000))
            frames = await until_ended(socket)
            assert numbers(frames) == list(range(357, 357 + len(frames)))


async def test_an_engine_waits_when_no_more_can_be_kept(autojump_clock: MockClock) -> None:
    """Backpressure instead of a gap: what could not be kept is not asked of the engine yet."""
    engine = ScriptedEngine(events(300, every_s=0.01))
    async with fleet(autojump_clock, engine) as world, running(world, kept_events_max=100) as app:
        async with connected(app) as socket:
            token = await begun(socket)
            await socket.hear()
        await trio.sleep(20)
        assert not world.receipts()
        async with connected(app) as socket:
            socket.say(Resume("a", 1, token), Credit("a", 1_000))
            frames = await until_ended(socket)
            assert numbers(frames) == list(range(2, 2 + len(frames)))
            assert len(frames) >= 300


async def test_what_is_sent_long_ago_is_gone(autojump_clock: MockClock) -> None:
    async with fleet(autojump_clock, ScriptedEngine(events(300))) as world, running(world, kept_events_max=100) as app:
        async with connected(app) as socket:
            token = await begun(socket)
            socket.say(Credit("a", 1_000))
            last = (await until_ended(socket))[-1]
        async with connected(app) as socket:
            socket.say(Resume("a", 100, token))
            (failed,) = await until_ended(socket)
            assert failed.error["code"] == "resume_gone"
            socket.say(Resume("a", last.seq - 40, token))
            assert numbers(await until_ended(socket)) == list(range(last.seq - 39, last.seq + 1))


async def test_all_that_is_kept_has_one_bound(autojump_clock: MockClock) -> None:
    engine = ScriptedEngine(*(events(200, every_s=0.1) for _ in range(4)))
    async with (
        fleet(autojump_clock, engine) as world,
        running(world, kept_total_bytes_max=10_000) as app,
    ):
        most = 0
        async with connected(app) as socket:
            socket.say(*(submit(name, resumable=True) for name in "abcd"))
            for _ in range(30):
                await trio.sleep(1)
                most = max(most, app.kept_bytes)
            assert 5_000 < most <= 10_000
            # Who found no room is served all the same.
            assert sum(isinstance(frame, Completed) for frame in socket.heard()) == 4


async def test_more_than_so_many_get_no_token(autojump_clock: MockClock) -> None:
    engine = ScriptedEngine(*(events(5, every_s=1) for _ in range(2)))
    async with fleet(autojump_clock, engine) as world, running(world, resumables_max=1) as app:
        async with connected(app) as socket:
            await begun(socket)
            socket.say(submit("b", resumable=True))
            accepted = await socket.hear()
            while not isinstance(accepted, Accepted):
                accepted = await socket.hear()
            assert accepted.resume_token is None
        await trio.sleep(1)
        assert len(world.receipts()) == 1, "the one without a token ended with its connection"
        await trio.sleep(60)


async def test_cancel_after_a_resumption(autojump_clock: MockClock) -> None:
    async with fleet(autojump_clock, ScriptedEngine(events(99, every_s=1))) as world, running(world) as app:
        async with connected(app) as socket:
            token = await begun(socket)
        async with connected(app) as socket:
            socket.say(Resume("a", 0, token), Cancel("a"))
            frames = await until_ended(socket)
            assert isinstance(frames[-1], Cancelled)
            assert frames[-1].receipt is not None
        assert world.at_rest()
        assert world.receipt().settlement.outcome is Outcome.CANCELLED_BY_CALLER


async def test_a_drop_while_a_cancellation_is_under_way_ends_it(autojump_clock: MockClock) -> None:
    async with fleet(autojump_clock, ScriptedEngine(events(99, every_s=1))) as world, running(world) as app:
        async with connected(app) as socket:
            token = await begun(socket)
            socket.say(Cancel("a"))
        async with connected(app) as socket:
            socket.say(Resume("b", 0, token), Cancel("b"))
            frames = await until_ended(socket)
            assert isinstance(frames[-1], Cancelled)
        assert world.at_rest()
        assert world.receipt().settlement.outcome is Outcome.CANCELLED_BY_CALLER


async def test_a_drain_keeps_nothing(autojump_clock: MockClock) -> None:
    engine = ScriptedEngine(*(events(50, every_s=1) for _ in range(2)))
    async with fleet(autojump_clock, engine) as world, running(world) as app:
        async with connected(app) as socket:
            await begun(socket)
        async with connected(app) as socket:
            await begun(socket, "b")
            app.begin_drain()
            await trio.sleep(1)
            assert len(world.receipts()) == 1, "nobody can come back for the first"
        await trio.sleep(1)
        assert len(world.receipts()) == 2
        assert (await refused(app)).status == 503
        assert world.at_rest()


async def test_a_whole_answer_waits_for_its_client(autojump_clock: MockClock) -> None:
    async with fleet(autojump_clock) as world, running(world) as app:
        async with connected(app) as socket:
            token = await begun(socket, request=CHAT)
        await trio.sleep(5)
        assert world.receipt().settlement.outcome is None
        async with connected(app) as socket:
            socket.say(Resume("a", 0, token))
            (done,) = await until_ended(socket)
            assert done.response["output"]["choices"]


async def test_an_answer_too_large_to_be_kept_is_not(autojump_clock: MockClock) -> None:
    large = Script(content_type="application/json", before_s=1, parts=(Part(b'{"x":"' + b"y" * 5_000 + b'"}'),))
    async with (
        fleet(autojump_clock, ScriptedEngine(large, large)) as world,
        running(world, kept_bytes_max=4_000) as app,
    ):
        async with connected(app) as socket:
            token = await begun(socket, request=CHAT)
            (done,) = await until_ended(socket)
            assert len(done.response["output"]["x"]) == 5_000
        async with connected(app) as socket:
            socket.say(Resume("a", 0, token))
            (failed,) = await until_ended(socket)
            assert failed.error["code"] == "resume_gone"
            lost = await begun(socket, "b", request=CHAT)
        await trio.sleep(5)
        async with connected(app) as socket:
            socket.say(Resume("b", 0, lost))
            (failed,) = await until_ended(socket)
            assert failed.error["code"] == "resume_gone"
        assert len(world.receipts()) == 2
