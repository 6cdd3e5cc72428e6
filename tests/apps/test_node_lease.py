"""An agent that is cut off from its controller: what goes on, what waits, what ends, and who is told."""

import attrs
import pytest
import trio
from trio.testing import MockClock

from lunanexa_apps.node.lease import LeaseKeeper
from lunanexa_core.ids import BootId
from lunanexa_core.southbound.documents import DesiredAssignment
from lunanexa_core.southbound.heartbeat import HeartbeatAnswer, ReplicaReport, ReplicaState, UnstartedReplica
from lunanexa_core.southbound.lease import cut_off_bound_ms
from lunanexa_core.time import Instant
from lunanexa_ports.asgi import AsgiApplication, Message, Receive, Scope, Send
from lunanexa_ports.node_store import NodeStore
from lunanexa_simulation.clock import SimulatedClock
from lunanexa_simulation.disk import SimulatedDisk
from lunanexa_simulation.node_store import SimulatedNodeStore
from tests.apps.node_world import NodeWorld, assignment, node_world

KEEP_MS = 5_000
STOP_MS = 2_000
LEASE_MS = 10_000


@pytest.fixture
def clock() -> MockClock:
    """Time passes only when every task waits."""
    return MockClock(autojump_threshold=0)


def bounded(generation: int = 1) -> DesiredAssignment:
    """What does not outlive the lease for long."""
    return attrs.evolve(assignment(generation=generation, stop_timeout_ms=STOP_MS), cut_off_keep_ms=KEEP_MS)


async def ready(world: NodeWorld, wanted: DesiredAssignment | None = None) -> ReplicaReport:
    await world.start()
    world.controller.desire(wanted or assignment())
    return await world.controller.until_state(ReplicaState.READY)


def cut(world: NodeWorld, *, on: bool = True) -> None:
    world.network.refuse("controller", 8400, on=on)
    if on:
        world.network.cut("controller", 8400)


def lease(world: NodeWorld) -> LeaseKeeper:
    return world.newest.agent.lease


async def another_start(world: NodeWorld, first: ReplicaReport) -> ReplicaReport:
    def serves() -> bool:
        report = world.controller.report()
        return report is not None and report.state is ReplicaState.READY and report.start != first.start

    await world.controller.until(serves)
    report = world.controller.report()
    assert report is not None
    return report


def own_report(world: NodeWorld) -> ReplicaReport:
    return next(iter(world.newest.agent.reports()))


async def until_own_state(world: NodeWorld, state: ReplicaState) -> None:
    while own_report(world).state is not state:
        await trio.sleep(0.05)


async def test_what_runs_goes_on_and_what_ends_is_not_restarted(clock: MockClock) -> None:
    async with node_world(clock) as world:
        first = await ready(world)
        cut(world)
        await lease(world).wait_lapsed()
        await trio.sleep(20)
        assert own_report(world).state is ReplicaState.READY
        (process,) = world.host.living()
        process.crash(code=1)
        await until_own_state(world, ReplicaState.AWAITING_LEASE)
        await trio.sleep(30)
        assert world.host.living() == []
        cut(world, on=False)
        await another_start(world, first)
        told = {one.state for beat in world.controller.heartbeats for one in beat.replicas}
        assert ReplicaState.AWAITING_LEASE in told


async def test_who_returns_starts_only_what_the_newest_document_says(clock: MockClock) -> None:
    async with node_world(clock) as world:
        await ready(world)
        cut(world)
        await lease(world).wait_lapsed()
        world.host.living()[0].crash(code=1)
        await until_own_state(world, ReplicaState.AWAITING_LEASE)
        world.controller.desire(assignment("as_2"))
        started = len(world.engine.started)
        cut(world, on=False)
        await world.controller.until_state(ReplicaState.READY, "as_2")
        assert [process.log_name for process in world.engine.started[started:]] == ["as_2.log"]


async def test_a_replica_that_was_never_started_is_told_of(clock: MockClock) -> None:
    async with node_world(clock) as world:
        world.controller.lease_ms = 0
        await world.start()
        world.controller.desire(assignment())
        waiting = UnstartedReplica(assignment().assignment, ReplicaState.AWAITING_LEASE)
        await world.controller.until(lambda: world.controller.heartbeats[-1:] and waiting in last(world))
        assert world.engine.started == []
        world.controller.lease_ms = LEASE_MS
        await world.controller.until_state(ReplicaState.READY)
        assert last(world) == ()


def last(world: NodeWorld) -> tuple[UnstartedReplica, ...]:
    return world.controller.heartbeats[-1].unstarted


async def test_what_may_not_outlive_the_lease_ends_in_its_time_and_not_before(clock: MockClock) -> None:
    async with node_world(clock) as world:
        first = await ready(world, bounded())
        cut(world)
        await lease(world).wait_lapsed()
        deadline_ms = lease(world).deadline_mono_ms
        assert deadline_ms is not None
        (process,) = world.host.living()
        await process.ended.wait()
        late_ms = world.clock.now().mono_ms - deadline_ms - KEEP_MS
        assert 0 <= late_ms <= 1_000
        await until_own_state(world, ReplicaState.AWAITING_LEASE)
        assert own_report(world).restarts == 0
        cut(world, on=False)
        again = await another_start(world, first)
        assert again.exit is not None
        assert again.exit.kind == "cut_off"


async def test_an_outage_within_the_lease_and_keep_ends_nothing(clock: MockClock) -> None:
    async with node_world(clock) as world:
        first = await ready(world, bounded())
        cut(world)
        await lease(world).wait_lapsed()
        await trio.sleep(KEEP_MS / 2_000)
        cut(world, on=False)
        await lease(world).wait_granted()
        await trio.sleep(20)
        assert own_report(world).start == first.start
        assert own_report(world).state is ReplicaState.READY


@pytest.mark.parametrize("disk_is_full", [False, True])
async def test_what_does_not_go_is_killed_in_time_whatever_else_stands_still(
    clock: MockClock, disk_is_full: bool
) -> None:
    async with node_world(clock) as world:
        await ready(world, bounded())
        world.host.faults.ignore_terminate = True
        (process,) = world.host.living()
        process.handles_terminate = False
        cut(world)
        await lease(world).wait_lapsed()
        world.disk.faults.full = disk_is_full
        deadline_ms = lease(world).deadline_mono_ms
        assert deadline_ms is not None
        await process.ended.wait()
        bound_ms = cut_off_bound_ms(KEEP_MS, STOP_MS)
        assert bound_ms is not None
        assert world.clock.now().mono_ms <= deadline_ms + bound_ms


async def test_a_launch_that_takes_too_long_ends_with_the_lease(clock: MockClock) -> None:
    async with node_world(clock) as world:
        await ready(world, bounded())
        world.host.faults.spawn_ms = 25_000
        world.host.living()[0].crash(code=1)
        await until_own_state(world, ReplicaState.STARTING)
        cut(world)
        await until_own_state(world, ReplicaState.AWAITING_LEASE)
        deadline_ms, bound_ms = lease(world).deadline_mono_ms, cut_off_bound_ms(KEEP_MS, STOP_MS)
        assert deadline_ms is not None
        assert bound_ms is not None
        await trio.sleep(max(0, deadline_ms + bound_ms - world.clock.now().mono_ms) / 1_000)
        assert world.host.living() == []
        await trio.sleep(20)
        assert world.host.living() == []


# --- answers that come late, or again ---


class Tampering(AsgiApplication):
    """Stands between the agent and its controller, and may hold answers to heartbeats back or give one again."""

    def __init__(self, inner: AsgiApplication) -> None:
        self._inner = inner
        self.delay_s = 0.0
        self.again = False
        self.heartbeats = 0
        self._first: list[Message] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send, /) -> None:
        if not scope["path"].endswith("/heartbeat"):
            await self._inner(scope, receive, send)
            return
        self.heartbeats += 1
        said: list[Message] = []

        async def keep(message: Message) -> None:
            said.append(message)

        await self._inner(scope, receive, keep)
        self._first = self._first or said
        await trio.sleep(self.delay_s)
        for message in self._first if self.again else said:
            await send(message)


def tampered(world: NodeWorld) -> Tampering:
    between = Tampering(world.controller)
    world.network.kill("controller", 8400)
    world.serve(world.controller, app=between)
    return between


async def test_a_delayed_answer_stretches_no_lease(clock: MockClock) -> None:
    async with node_world(clock) as world:
        between = tampered(world)
        between.delay_s = 8
        began_ms = world.clock.now().mono_ms
        await world.start()
        await lease(world).wait_granted()
        assert world.clock.now().mono_ms - began_ms >= 8_000
        assert lease(world).deadline_mono_ms == pytest.approx(began_ms + LEASE_MS, abs=100)


async def test_an_answer_that_is_given_again_grants_nothing(clock: MockClock) -> None:
    async with node_world(clock) as world:
        between = tampered(world)
        await world.start()
        await lease(world).wait_granted()
        between.again = True
        deadline_ms = lease(world).deadline_mono_ms
        heard = between.heartbeats
        await lease(world).wait_lapsed()
        assert between.heartbeats > heard
        assert lease(world).deadline_mono_ms == deadline_ms


# --- the next agent ---


async def test_the_next_agent_keeps_what_its_predecessors_lease_allows(clock: MockClock) -> None:
    async with node_world(clock) as world:
        first = await ready(world, bounded())
        await trio.sleep(5)
        deadline_ms = lease(world).deadline_mono_ms
        assert deadline_ms is not None
        world.newest.kill()
        cut(world)
        await world.start()
        assert not lease(world).live(world.clock.now())
        (process,) = world.host.living()
        await until_own_state(world, ReplicaState.READY)
        assert own_report(world).start == first.start
        await process.ended.wait()
        assert 0 <= world.clock.now().mono_ms - deadline_ms - KEEP_MS <= 1_000


async def test_an_agent_that_knows_of_no_lease_ends_what_may_not_outlive_one(clock: MockClock) -> None:
    async with node_world(clock) as world:
        await ready(world, bounded())
        world.newest.kill()
        cut(world)
        await SimulatedNodeStore(world.disk.mount()).put("lease", b"{}")
        began_s = trio.current_time()
        await world.start()
        (process,) = world.host.living()
        await process.ended.wait()
        assert trio.current_time() - began_s < 1


async def test_an_agent_that_restarts_in_touch_keeps_everything(clock: MockClock) -> None:
    async with node_world(clock) as world:
        first = await ready(world, bounded())
        await trio.sleep(5)
        world.newest.kill()
        await world.start()
        await lease(world).wait_granted()
        await trio.sleep(20)
        assert (own_report(world).start, own_report(world).state) == (first.start, ReplicaState.READY)


# --- clocks ---


async def test_skew_is_told_from_the_second_heartbeat_on(clock: MockClock) -> None:
    async with node_world(clock) as world:
        world.clock.jump_wall(-600_000)
        await world.start()
        await world.controller.until(lambda: len(world.controller.heartbeats) >= 2)
        first, second = world.controller.heartbeats[:2]
        assert (first.skew_ms, first.skew_error_ms) == (None, None)
        assert second.skew_ms is not None
        assert second.skew_error_ms is not None
        true_ms = world.controller.clock.now().wall_ms - world.clock.now().wall_ms
        assert abs(second.skew_ms - true_ms) <= second.skew_error_ms


# --- the keeper by itself ---


class Kept:
    """A keeper on a clock of its own, and how often a watcher was told."""

    def __init__(self, virtual: MockClock, store: NodeStore, clock: SimulatedClock | None = None) -> None:
        assert trio.current_time() == virtual.current_time(), "the test does not run on its clock"
        self.clock = clock or SimulatedClock(mono_ms=50_000)
        self.order = (1, 1)
        self.keeper = LeaseKeeper(self.clock, store, lambda: self.order)
        self.told: list[bool] = []
        self.unwatch = self.keeper.watch(lambda: self.told.append(self.keeper.live(self.clock.now())))

    def answer(self, sent: Instant | None = None, generation: int = 1) -> None:
        word = HeartbeatAnswer(boot=BootId("b"), sequence=1, epoch=1, generation=generation, lease_ms=LEASE_MS)
        self.keeper.answered(sent or self.clock.now(), word)


async def test_watchers_are_told_of_every_turn(clock: MockClock) -> None:
    kept = Kept(clock, SimulatedNodeStore(SimulatedDisk().mount()))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(kept.keeper.run, lambda: False)
        kept.answer()
        assert kept.told == [True]
        await trio.sleep(5)
        kept.answer()
        assert kept.told == [True]
        began_s = trio.current_time()
        await kept.keeper.wait_lapsed()
        assert trio.current_time() - began_s == pytest.approx(10, abs=0.01)
        assert kept.told == [True, False]
        kept.answer()
        kept.keeper.document_followed()
        assert kept.told == [True, False, True, True]
        kept.unwatch()
        kept.unwatch()
        kept.keeper.document_followed()
        assert len(kept.told) == 4
        nursery.cancel_scope.cancel()


async def test_a_lapse_that_nobody_saw_is_told_before_the_next_lease(clock: MockClock) -> None:
    kept = Kept(clock, SimulatedNodeStore(SimulatedDisk().mount()))
    kept.answer()
    await trio.sleep(11)
    kept.answer(generation=7)
    assert kept.told == [True, False, True]
    assert not kept.keeper.may_start()
    kept.order = (1, 7)
    assert kept.keeper.may_start()


async def test_a_clock_that_ran_on_while_timers_stood_still_is_noticed(clock: MockClock) -> None:
    """As a machine that was suspended."""
    kept = Kept(clock, SimulatedNodeStore(SimulatedDisk().mount()))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(kept.keeper.run, lambda: False)
        kept.answer()
        kept.clock.set_rate(20_000_000)
        began_s = trio.current_time()
        await kept.keeper.wait_lapsed()
        assert trio.current_time() - began_s <= 1.01
        nursery.cancel_scope.cancel()


async def test_what_is_remembered_is_of_no_use_without_an_engine(clock: MockClock) -> None:
    """After a reboot it would be of another clock."""
    store = SimulatedNodeStore(SimulatedDisk().mount())
    kept = Kept(clock, store)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(kept.keeper.run, lambda: True)
        kept.answer()
        await trio.sleep(1)
        nursery.cancel_scope.cancel()
    found, after_reboot, later = (Kept(clock, store, kept.clock) for _ in range(3))
    await found.keeper.load(engine_found=True)
    assert found.keeper.cut_off_in_ms(KEEP_MS) == kept.keeper.cut_off_in_ms(KEEP_MS) > LEASE_MS
    await after_reboot.keeper.load(engine_found=False)
    assert after_reboot.keeper.cut_off_in_ms(KEEP_MS) == 0
    await later.keeper.load(engine_found=True)
    assert later.keeper.cut_off_in_ms(KEEP_MS) == 0
