"""kill -9 of the agent between any two of its steps on the world: the next agent goes on, and at no time does
one assignment have two engines (the engines of the tests look for that themselves)."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import pytest
import trio
from trio.testing import MockClock

from lunanexa_core.ids import AssignmentId, StartId
from lunanexa_core.southbound.heartbeat import ReplicaState
from lunanexa_ports.node_store import NodeStore
from lunanexa_ports.processes import LaunchOrder, ManagedProcess, Processes, ProcessExit, ProcessIdentity
from tests.apps.node_world import NodeWorld, assignment, node_world


class Steps:
    """Counts the agent's steps: each use of store or processes is one before it, and one after it."""

    def __init__(self, last: int | None) -> None:
        self.count = 0
        self.last = last
        self.die: Callable[[], None] = lambda: None

    def step(self) -> None:
        self.count += 1
        if self.count == self.last:
            self.die()


class SteppedStore(NodeStore):
    def __init__(self, inner: NodeStore, steps: Steps) -> None:
        self._inner = inner
        self._steps = steps

    async def next_start_number(self) -> int:
        self._steps.step()
        number = await self._inner.next_start_number()
        self._steps.step()
        return number

    async def put(self, name: str, value: bytes) -> None:
        self._steps.step()
        await self._inner.put(name, value)
        self._steps.step()

    async def get(self, name: str) -> bytes | None:
        return await self._inner.get(name)

    async def put_replica(self, assignment: AssignmentId, value: bytes | None) -> None:
        self._steps.step()
        await self._inner.put_replica(assignment, value)
        self._steps.step()

    async def replicas(self) -> Mapping[AssignmentId, bytes]:
        return await self._inner.replicas()

    async def aclose(self) -> None:
        await self._inner.aclose()


class SteppedProcess(ManagedProcess):
    def __init__(self, inner: ManagedProcess, steps: Steps) -> None:
        self._inner = inner
        self._steps = steps

    @property
    def identity(self) -> ProcessIdentity:
        return self._inner.identity

    async def wait(self) -> ProcessExit:
        return await self._inner.wait()

    def terminate(self) -> None:
        self._steps.step()
        self._inner.terminate()
        self._steps.step()

    def kill(self) -> None:
        self._steps.step()
        self._inner.kill()
        self._steps.step()

    async def wait_group_gone(self) -> None:
        await self._inner.wait_group_gone()
        self._steps.step()

    def resident_mib(self) -> int | None:
        return self._inner.resident_mib()


class SteppedProcesses(Processes):
    def __init__(self, inner: Processes, steps: Steps) -> None:
        self._inner = inner
        self._steps = steps

    async def start(self, order: LaunchOrder) -> ManagedProcess:
        self._steps.step()
        process = await self._inner.start(order)
        self._steps.step()
        return SteppedProcess(process, self._steps)

    def adopt(self, start: StartId) -> ManagedProcess | None:
        process = self._inner.adopt(start)
        return None if process is None else SteppedProcess(process, self._steps)

    def recorded(self) -> Sequence[StartId]:
        return self._inner.recorded()

    def forget(self, start: StartId) -> None:
        self._steps.step()
        self._inner.forget(start)
        self._steps.step()

    def last_lines(self, log_name: str, limit: int) -> tuple[str, ...]:
        return self._inner.last_lines(log_name, limit)

    def owner_of_listener(self, port: int) -> ProcessIdentity | None:
        return self._inner.owner_of_listener(port)

    def free_port(self) -> int:
        return self._inner.free_port()


async def a_life_with_one_death(clock: MockClock, steps: Steps) -> None:
    """Start, crash, replacement and removal of one replica, under an agent that dies at its last step."""
    async with node_world(clock) as world, trio.open_nursery() as nursery:
        steps.die = lambda: world.newest.kill()
        first = await world.start(partial(SteppedStore, steps=steps), partial(SteppedProcesses, steps=steps))

        async def start_again() -> None:
            await first.ended.wait()
            await world.start()

        nursery.start_soon(start_again)
        await lead_through_a_life(world)
        assert world.host.living() == []
        while world.host.intents:
            await trio.sleep(0.1)
        nursery.cancel_scope.cancel()


async def lead_through_a_life(world: NodeWorld) -> None:
    controller = world.controller
    controller.desire(assignment())
    report = await controller.until_state(ReplicaState.READY)
    engine = world.host.main_process(report.start)
    if engine is not None:
        engine.crash(code=1)
    await controller.until(lambda: (now := controller.report()) is not None and now.start != report.start)
    controller.desire(assignment(generation=2))
    await controller.until_state(ReplicaState.READY, generation=2)
    controller.desire()
    await controller.until(lambda: controller.heartbeats[-1].generation == 3)
    await controller.until(
        lambda: (now := controller.report()) is None or now.state is ReplicaState.ABSENT,
    )
    while world.host.living():
        await trio.sleep(0.1)


def live(last: int | None) -> int:
    steps = Steps(last)
    clock = MockClock(autojump_threshold=0)
    trio.run(a_life_with_one_death, clock, steps, clock=clock)
    return steps.count


@pytest.mark.slow
def test_an_agent_that_is_killed_at_any_step_is_recovered_from() -> None:
    total = live(None)
    assert total > 40
    for last in range(1, total + 1):
        try:
            live(last)
        except BaseException as error:
            error.add_note(f"not recovered from a death at step {last} of {total}")
            raise


def test_an_agent_that_is_killed_while_a_launcher_works_starts_no_second_engine() -> None:
    async def scenario(clock: MockClock) -> None:
        async with node_world(clock) as world:
            world.host.faults.spawn_ms = 1_000
            await world.start()
            world.controller.desire(assignment())
            while not world.host.intents:
                await trio.sleep(0.1)
            world.newest.kill()
            await world.newest.ended.wait()
            (late,) = world.host.intents
            await world.start()
            report = await world.controller.until_state(ReplicaState.READY)
            assert report.start != late
            assert report.restarts == 0
            assert [one.start for one in world.engine.started] == [report.start]

    clock = MockClock(autojump_threshold=0)
    trio.run(scenario, clock, clock=clock)


def test_both_machine_and_agent_die_and_everything_comes_back() -> None:
    async def scenario(clock: MockClock) -> None:
        async with node_world(clock) as world:
            await world.start()
            world.controller.desire(assignment("as_1"), assignment("as_2"))
            for name in ("as_1", "as_2"):
                await world.controller.until_state(ReplicaState.READY, name)
            starts = {one.start for one in world.host.living()}
            world.newest.kill()
            world.host.reboot()
            await world.start()
            for name in ("as_1", "as_2"):
                await world.controller.until(
                    lambda name=name: (  # type: ignore[misc]  # bound at once
                        (now := world.controller.report(name)) is not None
                        and now.state is ReplicaState.READY
                        and now.start not in starts
                    )
                )
            assert len(world.host.living()) == 2

    clock = MockClock(autojump_threshold=0)
    trio.run(scenario, clock, clock=clock)
