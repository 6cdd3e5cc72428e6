"""Faults of the reference engine's process under a node agent, on virtual time: what the agent reports of it."""

from typing import Any

import pytest
import trio
from trio.testing import MockClock

from lunanexa_core.southbound.heartbeat import ExitReason, IdentityGrade, ReplicaState
from lunanexa_simulation.engine_program import engine_program
from tests.apps.node_world import BINARY, NodeWorld, assignment, node_world


@pytest.fixture
def clock() -> MockClock:
    """Time passes only when every task waits."""
    return MockClock(autojump_threshold=0)


async def start(world: NodeWorld, fault: str, **changes: Any) -> None:
    world.host.programs[BINARY] = engine_program(world.network, world.clock)
    await world.start()
    world.controller.desire(assignment(arguments=("--fault", fault), **changes))


def states(world: NodeWorld) -> list[ReplicaState]:
    """What was reported, one after another."""
    told = [one.state for beat in world.controller.heartbeats for one in beat.replicas]
    return [state for at, state in enumerate(told) if at == 0 or told[at - 1] is not state]


def reason(world: NodeWorld) -> ExitReason:
    report = world.controller.report()
    assert report is not None
    assert report.exit is not None
    return report.exit


async def test_an_engine_that_is_unwell_for_a_while_is_not_offered_and_comes_back(clock: MockClock) -> None:
    async with node_world(clock) as world:
        await start(world, "unhealthy,after=3,count=5")
        await world.controller.until_state(ReplicaState.READY)
        (process,) = world.host.living()
        report = await world.controller.until_state(ReplicaState.STARTING)
        assert report.identity is IdentityGrade.NONE
        report = await world.controller.until_state(ReplicaState.READY)
        assert (report.restarts, report.pid) == (0, process.identity.pid)


async def test_an_engine_that_stays_unwell_is_killed_and_given_up_within_its_budget(clock: MockClock) -> None:
    async with node_world(clock) as world:
        await start(world, "unhealthy,after=3", restart_budget=1)
        await world.controller.until_state(ReplicaState.FAILED)
        assert (reason(world).kind, reason(world).signal) == ("unhealthy", 9)
        assert states(world).count(ReplicaState.READY) == 2
        assert not world.host.living()


@pytest.mark.parametrize("fault", ["wrong-start", "wrong-model"])
async def test_an_engine_that_is_another_is_never_reported_ready(fault: str, clock: MockClock) -> None:
    async with node_world(clock) as world:
        await start(world, fault, restart_budget=2)
        await world.controller.until_state(ReplicaState.FAILED)
        assert reason(world).kind == "wrong_identity"
        assert ReplicaState.READY not in states(world)


async def test_an_engine_that_becomes_another_is_ended_at_once(clock: MockClock) -> None:
    async with node_world(clock) as world:
        await start(world, "wrong-start,after=2", restart_budget=0)
        await world.controller.until_state(ReplicaState.READY)
        await world.controller.until_state(ReplicaState.FAILED)
        assert reason(world).kind == "wrong_identity"


async def test_an_engine_that_exits_at_each_start_is_given_up_with_its_last_words(clock: MockClock) -> None:
    async with node_world(clock) as world:
        await start(world, "exit-at-start=3", restart_budget=2)
        report = await world.controller.until_state(ReplicaState.FAILED)
        assert report.restarts == 3
        assert (reason(world).kind, reason(world).code) == ("exited", 3)
        assert reason(world).last_lines[-1] == "told to exit at the start"


@pytest.mark.parametrize(("deaf_ms", "killed"), [(4_000, False), (60_000, True)])
async def test_a_slow_stop_is_waited_for_and_then_killed(deaf_ms: int, killed: bool, clock: MockClock) -> None:
    async with node_world(clock) as world:
        await start(world, f"slow-stop={deaf_ms}", stop_timeout_ms=10_000)
        await world.controller.until_state(ReplicaState.READY)
        (process,) = world.host.living()
        began_s = trio.current_time()
        world.newest.shutdown.asked.set()
        await world.newest.ended.wait()
        assert process.exit is not None
        assert (process.exit.signal == 9) == killed
        assert min(deaf_ms, 10_000) <= (trio.current_time() - began_s) * 1_000 < 12_000
        assert not world.host.living()
