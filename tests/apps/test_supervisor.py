"""The supervisor of one child, over simulated children and a driven clock."""

from collections.abc import Awaitable, Callable

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from lunanexa_apps.up.supervisor import LONGEST_PAUSE_MS, STEADY_MS, ChildEnded, Supervised, pause_ms
from lunanexa_ports.children import ChildOrder
from lunanexa_ports.errors import PortFault
from lunanexa_simulation.children import SimulatedChild, SimulatedChildren, serve_until_terminated

ORDER = ChildOrder(name="node", argv=("node",), environment={})
Program = Callable[[SimulatedChild], Awaitable[int]]


@given(st.integers(1, 1000))
def test_pauses_grow_to_a_cap(crashes: int) -> None:
    assert 250 <= pause_ms(crashes) <= pause_ms(crashes + 1) <= LONGEST_PAUSE_MS == 10_000


def test_the_first_pauses() -> None:
    assert [pause_ms(n) for n in range(1, 9)] == [250, 500, 1000, 2000, 4000, 8000, 10_000, 10_000]


@pytest.fixture
def clock() -> MockClock:
    """Virtual time, which runs only while every task waits."""
    return MockClock(autojump_threshold=0)


class Stage:
    """A supervised child named ``node`` with a program, and everything that was reported."""

    def __init__(self, nursery: trio.Nursery, program: Program, clock: MockClock) -> None:
        self.clock = clock
        self.programs = {"node": program}
        self.children = SimulatedChildren(nursery, self.programs)
        self.ends: list[tuple[float, ChildEnded]] = []
        self.supervised = Supervised(ORDER, self.children, self._on_end)

    def _on_end(self, end: ChildEnded) -> None:
        self.ends.append((self.clock.current_time(), end))


async def until(condition: Callable[[], bool]) -> None:
    with trio.fail_after(3600):
        while not condition():
            await trio.sleep(0.01)


async def test_a_crashed_child_is_started_again_after_growing_pauses(nursery: trio.Nursery, clock: MockClock) -> None:
    async def crash(_: SimulatedChild) -> int:
        await trio.sleep(1)
        return 3

    stage = Stage(nursery, crash, clock)
    began = trio.current_time()
    await nursery.start(stage.supervised.run)
    await until(lambda: len(stage.ends) == 4)
    assert [round(at - began, 2) for at, _ in stage.ends] == [1.0, 2.25, 3.75, 5.75]
    assert [(end.status, end.in_a_row, end.pause_ms) for _, end in stage.ends] == [
        (3, 1, 250),
        (3, 2, 500),
        (3, 3, 1000),
        (3, 4, 2000),
    ]
    assert stage.supervised.pid != stage.children.started[3].pid
    await until(lambda: len(stage.children.started) == 5)
    assert stage.supervised.pid == stage.children.started[4].pid
    await stage.supervised.stop(patience_ms=1000)


async def test_a_steady_run_forgives_earlier_crashes(nursery: trio.Nursery, clock: MockClock) -> None:
    runs = iter([0.1, 0.1, STEADY_MS / 1000, 0.1])

    async def crash(_: SimulatedChild) -> int:
        await trio.sleep(next(runs, 10_000))
        return 1

    stage = Stage(nursery, crash, clock)
    await nursery.start(stage.supervised.run)
    await until(lambda: len(stage.ends) == 4)
    assert [end.in_a_row for _, end in stage.ends] == [1, 2, 1, 2]
    await stage.supervised.stop(patience_ms=1)


async def test_stop_asks_waits_and_is_not_reported(nursery: trio.Nursery, clock: MockClock) -> None:
    async def slow(child: SimulatedChild) -> int:
        await child.wait_terminated()
        await trio.sleep(5)
        return 0

    stage = Stage(nursery, slow, clock)
    await nursery.start(stage.supervised.run)
    began = trio.current_time()
    await stage.supervised.stop(patience_ms=10_000)
    assert trio.current_time() - began == pytest.approx(5)
    assert stage.ends == []
    assert stage.supervised.pid is None
    assert len(stage.children.started) == 1


async def test_stop_kills_what_does_not_end(nursery: trio.Nursery, clock: MockClock) -> None:
    async def stubborn(_: SimulatedChild) -> int:
        await trio.sleep_forever()
        raise AssertionError("not reached")

    stage = Stage(nursery, stubborn, clock)
    await nursery.start(stage.supervised.run)
    began = trio.current_time()
    await stage.supervised.stop(patience_ms=2_000)
    assert trio.current_time() - began == pytest.approx(2)
    assert await stage.children.started[0].wait() == -9


async def test_stop_during_a_pause_starts_nothing(nursery: trio.Nursery, clock: MockClock) -> None:
    async def crash(_: SimulatedChild) -> int:
        return 1

    stage = Stage(nursery, crash, clock)
    await nursery.start(stage.supervised.run)
    await until(lambda: len(stage.ends) == 3)
    began = trio.current_time()
    await stage.supervised.stop(patience_ms=60_000)
    assert trio.current_time() - began < 0.1
    await trio.sleep(100)
    assert len(stage.children.started) == 3


async def test_a_program_that_vanished_is_tried_again(nursery: trio.Nursery, clock: MockClock) -> None:
    async def crash(_: SimulatedChild) -> int:
        return 1

    stage = Stage(nursery, crash, clock)
    await nursery.start(stage.supervised.run)
    await until(lambda: len(stage.ends) == 1)
    del stage.programs["node"]
    await until(lambda: len(stage.ends) == 3)
    assert [end.status for _, end in stage.ends] == [1, None, None]
    stage.programs["node"] = serve_until_terminated
    await until(lambda: stage.supervised.pid is not None)
    await stage.supervised.stop(patience_ms=1000)


async def test_an_impossible_first_start_is_a_fault(nursery: trio.Nursery, clock: MockClock) -> None:
    stage = Stage(nursery, serve_until_terminated, clock)
    del stage.programs["node"]
    with pytest.raises(PortFault):
        await stage.supervised.run()
    assert not stage.supervised.started


async def test_told_to_stop_while_being_started_again(nursery: trio.Nursery, clock: MockClock) -> None:
    async def crash_once(child: SimulatedChild) -> int:
        if len(stage.children.started) == 1:
            return 1
        return await serve_until_terminated(child)

    class SlowChildren(SimulatedChildren):
        async def start(self, order: ChildOrder) -> SimulatedChild:
            await trio.sleep(5)
            child = await super().start(order)
            assert isinstance(child, SimulatedChild)
            return child

    stage = Stage(nursery, crash_once, clock)
    stage.children = SlowChildren(nursery, stage.programs)
    stage.supervised = Supervised(ORDER, stage.children, stage._on_end)
    await nursery.start(stage.supervised.run)
    await until(lambda: len(stage.ends) == 1)
    await trio.sleep(1)
    await stage.supervised.stop(patience_ms=60_000)
    assert [await child.wait() for child in stage.children.started] == [1, 0]


@pytest.mark.parametrize(
    ("status", "reason"),
    [(3, "ended with status 3"), (-9, "was ended by signal 9"), (None, "could not be started")],
)
def test_reasons(status: int | None, reason: str) -> None:
    assert ChildEnded(name="x", status=status, in_a_row=1, pause_ms=1).reason == reason
