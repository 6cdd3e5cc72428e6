"""An agent that goes after one round: what it does, what it leaves, and what it says of both."""

import attrs
import pytest
import trio
from trio.testing import MockClock

from lunanexa_core.southbound.documents import DocumentRefusal
from lunanexa_core.southbound.heartbeat import ReplicaState
from lunanexa_ports.errors import PortUnavailable
from tests.apps.node_world import assignment, node_world


@pytest.fixture
def clock() -> MockClock:
    """Time passes only when every task waits."""
    return MockClock(autojump_threshold=0)


async def test_a_round_makes_the_document_true_and_the_next_one_finds_it_so(clock: MockClock) -> None:
    async with node_world(clock) as world:
        world.controller.desire(assignment())
        done = await world.round()
        assert done.well
        assert done.order == (1, 1)
        (report,) = done.replicas
        assert report.state is ReplicaState.READY
        assert world.controller.report() == attrs.evolve(report, readings=world.controller.report().readings)  # type: ignore[union-attr]  # it was told
        assert [one.start for one in world.host.living()] == [report.start]
        again = await world.round()
        assert again.well
        assert [one.start for one in again.replicas] == [report.start]
        world.controller.desire()
        assert (await world.round()).well
        assert not world.host.living()


async def test_an_engine_that_takes_longer_than_a_lease_is_waited_for(clock: MockClock) -> None:
    async with node_world(clock) as world:
        world.controller.desire(assignment())
        world.engine.health = 503
        async with trio.open_nursery() as nursery:
            rounds = []

            async def one() -> None:
                rounds.append(await world.round())

            nursery.start_soon(one)
            await trio.sleep(3 * world.controller.lease_ms / 1_000)
            assert not rounds
            world.engine.health = 200
        assert rounds[0].well


async def test_what_is_not_done_in_time_is_said(clock: MockClock) -> None:
    async with node_world(clock) as world:
        world.controller.desire(assignment())
        world.engine.health = 503
        done = await world.round(limit_s=20)
        assert not done.settled
        assert not done.well
        assert world.host.living()


async def test_a_failure_and_a_refusal_are_said(clock: MockClock) -> None:
    async with node_world(clock) as world:
        world.controller.desire(assignment(binary=None))
        done = await world.round()
        assert [one.state for one in done.replicas] == [ReplicaState.FAILED]
        assert (done.settled, done.well) == (True, False)
        world.controller.offer(world.stranger.sign(b"{}"))
        done = await world.round()
        assert done.document_refusal is DocumentRefusal.UNKNOWN_KEY
        assert not done.well


async def test_a_node_that_is_not_let_in_changes_nothing(clock: MockClock) -> None:
    async with node_world(clock) as world:
        world.controller.desire(assignment())
        assert (await world.round()).well
        world.controller.unknown = True
        world.controller.desire()
        done = await world.round()
        assert done.refusal is not None
        assert done.refusal.stranger
        assert not done.well
        assert len(world.host.living()) == 1
        world.network.close("controller", 8400)
        with pytest.raises(ExceptionGroup) as caught:
            await world.round()
        assert caught.group_contains(PortUnavailable)
        assert len(world.host.living()) == 1


async def test_what_only_an_agent_would_end_in_time_is_not_left_without_a_word(clock: MockClock) -> None:
    async with node_world(clock) as world:
        world.controller.desire(attrs.evolve(assignment(), cut_off_keep_ms=5_000))
        done = await world.round()
        assert (done.settled, done.unattended, done.well) == (True, True, False)


async def test_a_certificate_that_is_due_is_renewed_by_the_round(clock: MockClock) -> None:
    async with node_world(clock) as world:
        world.controller.valid_ms = 60_000
        await world.round()
        await trio.sleep(20)
        await world.round()
        assert not world.controller.renewals
        await trio.sleep(35)
        await world.round()
        await trio.sleep(90)
        assert (await world.round()).refusal is None
        assert [one.challenge is None for one in world.controller.renewals] == [True, False]
