"""An agent on a machine with little memory: starts that wait for room, and engines that hold too much."""

import pytest
import trio
from trio.testing import MockClock

from lunanexa_core.southbound.heartbeat import ExitReason, ReplicaReport, ReplicaState
from lunanexa_simulation.memory import SimulatedMemory
from tests.apps.node_world import NodeWorld, assignment, node_world

ENGINE_MIB = 600


@pytest.fixture
def clock() -> MockClock:
    """Time passes only when every task waits."""
    return MockClock(autojump_threshold=0)


def crowded(world: NodeWorld, used_mib: int = 200) -> None:
    """1,000 MiB, of which each engine holds 600."""
    world.host.faults.resident_mib = ENGINE_MIB
    world.memory = SimulatedMemory(1_000, used_mib, held_mib=world.host.held_mib)


async def test_the_next_engine_starts_when_the_last_ones_memory_is_back(clock: MockClock) -> None:
    async with node_world(clock) as world:
        crowded(world)
        world.host.faults.release_ms = 20_000
        await world.start()
        world.controller.desire(assignment(memory_mib=ENGINE_MIB))
        first = await world.controller.until_state(ReplicaState.READY)
        world.controller.desire(assignment(memory_mib=ENGINE_MIB, generation=2))
        waiting = await world.controller.until_state(ReplicaState.AWAITING_MEMORY, generation=2)
        assert waiting.start != first.start
        assert (waiting.pid, waiting.restarts, waiting.exit) == (None, 0, None)
        assert world.host.living() == []
        gone_s = trio.current_time()
        ready = await world.controller.until_state(ReplicaState.READY, generation=2)
        assert ready.start == waiting.start
        assert 18 < trio.current_time() - gone_s < 25


async def test_a_start_without_room_fails_with_both_figures(clock: MockClock) -> None:
    async with node_world(clock) as world:
        crowded(world, used_mib=700)
        await world.start()
        world.controller.desire(assignment(memory_mib=ENGINE_MIB, memory_wait_ms=5_000, restart_budget=1))
        report = await world.controller.until_state(ReplicaState.FAILED)
        detail = "needs 600 MiB, 300 MiB were available after 5 s"
        assert (report.restarts, report.exit) == (2, ExitReason(kind="no_memory", detail=detail))
        assert world.engine.started == []
        # Its place in line is free: a change that fits is followed.
        world.controller.desire(assignment(memory_mib=300, generation=2))
        await world.controller.until_state(ReplicaState.READY, generation=2)


async def test_a_start_that_waits_is_stopped_at_once(clock: MockClock) -> None:
    async with node_world(clock) as world:
        crowded(world, used_mib=700)
        await world.start()
        world.controller.desire(assignment(memory_mib=ENGINE_MIB))
        await world.controller.until_state(ReplicaState.AWAITING_MEMORY)
        began_s = trio.current_time()
        world.newest.shutdown.ask()
        await world.newest.ended.wait()
        assert trio.current_time() - began_s < 2
        assert world.engine.started == []


async def test_memory_that_nobody_can_read_holds_nothing_up(clock: MockClock) -> None:
    async with node_world(clock) as world:
        crowded(world, used_mib=700)
        world.memory.readable = False
        await world.start()
        world.controller.desire(assignment(memory_mib=ENGINE_MIB))
        await world.controller.until_state(ReplicaState.READY)


async def test_two_starts_never_take_the_same_room(clock: MockClock) -> None:
    """The first is let in and loads: what it does not hold yet is not there for the second."""
    async with node_world(clock) as world:
        world.host.faults.resident_mib = 0
        world.engine.health = 503
        await world.start()
        world.controller.desire(
            assignment("as_1", memory_mib=ENGINE_MIB), assignment("as_2", memory_mib=ENGINE_MIB, served_name="two")
        )

        def one_waits() -> bool:
            reports = map(world.controller.report, ("as_1", "as_2"))
            return any(report is not None and report.state is ReplicaState.AWAITING_MEMORY for report in reports)

        await world.controller.until(one_waits)
        assert len(world.engine.started) == 1
        world.engine.health = 200
        await world.controller.until_state(ReplicaState.READY, "as_1")
        await world.controller.until_state(ReplicaState.READY, "as_2")


async def test_an_engine_that_leaks_is_drained_and_started_again_until_its_budget_is_spent(clock: MockClock) -> None:
    async with node_world(clock) as world:
        await world.start()
        world.controller.desire(assignment(memory_limit_mib=100, restart_budget=1))
        first = await world.controller.until_state(ReplicaState.READY)
        world.engine.running = 1
        world.host.living()[0].leaked_mib = lambda: 40
        draining = await world.controller.until_state(ReplicaState.DRAINING)
        reason = ExitReason(kind="memory_limit", detail="holds 104 MiB, its limit is 100 MiB")
        assert (draining.start, draining.exit) == (first.start, reason)
        world.engine.running = 0

        def again() -> bool:
            report = world.controller.report()
            return report is not None and report.state is ReplicaState.READY and report.start != first.start

        await world.controller.until(again)
        report = _report(world)
        assert report.exit is not None
        assert (report.restarts, report.exit.kind, report.exit.detail) == (1, reason.kind, reason.detail)
        world.host.living()[0].leaked_mib = lambda: 400
        await world.controller.until_state(ReplicaState.FAILED)
        report = _report(world)
        assert report.exit is not None
        assert report.exit.detail == "holds 464 MiB, its limit is 100 MiB"
        assert world.host.living() == []


async def test_memory_of_an_engine_that_nobody_can_read_is_not_too_much(clock: MockClock) -> None:
    async with node_world(clock) as world:
        world.host.faults.resident_mib = None
        await world.start()
        world.controller.desire(assignment(memory_limit_mib=1))
        await world.controller.until_state(ReplicaState.READY)
        await trio.sleep(60)
        assert _report(world).state is ReplicaState.READY


def _report(world: NodeWorld) -> ReplicaReport:
    report = world.controller.report()
    assert report is not None
    return report
