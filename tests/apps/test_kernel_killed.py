"""kill -9 of the controller at any step of a kernel's batches: before and after each write of the journal, in the
middle of each write that the disk keeps or loses, and at each await between them. The next one goes on from what
is durable: what was acknowledged holds, what was admitted is run once at most and has one receipt, and nothing
is held at rest."""

import enum
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing, asynccontextmanager

import attrs
import pytest
import trio
from trio.testing import MockClock

from lunanexa_apps.controller.dispatch import KernelDispatch
from lunanexa_apps.controller.janitor import run_janitor, run_reconciliation
from lunanexa_apps.controller.kernel import Kernel
from lunanexa_apps.controller.replay import Replay
from lunanexa_apps.controller.rows import from_row
from lunanexa_core.commands import ApplyDeployment
from lunanexa_core.deployment import Deployment
from lunanexa_core.events import Event, WorkloadAdmitted, WorkloadSettled
from lunanexa_core.ids import HolderId, SessionId, StartId, WorkloadId
from lunanexa_core.journal import Head, Row
from lunanexa_core.journal_query import RowQuery
from lunanexa_core.keys import secret_digest
from lunanexa_core.leadership import Lease
from lunanexa_core.outcomes import Outcome, Refusal
from lunanexa_core.policy import Policy
from lunanexa_core.routing.pick import Denied, Granted
from lunanexa_core.workload import LedgerReceipt, Settlement, Usage
from lunanexa_ports.dispatch import Admitted, Grant, QueuePlace
from lunanexa_ports.errors import PortUnavailable
from lunanexa_ports.journal import Appended, Journal
from lunanexa_ports.leadership import Leadership
from lunanexa_simulation.clock import SimulatedClock
from lunanexa_simulation.disk import SimulatedDisk
from lunanexa_simulation.ids import SimulatedIds
from lunanexa_simulation.journal import JournalState, SimulatedJournal
from lunanexa_simulation.rng import Streams
from tests.core.builders import (
    DEPLOYMENT,
    NODE,
    SEAT,
    SECRET,
    api_key,
    begin,
    engine,
    heartbeat,
    joining,
    report,
    reported,
    request,
    spec,
)
from tests.replayed import check_replay

pytestmark = pytest.mark.thorough

POLICY = Policy(session_lease_ms=2_000, queue_requests_max=8)
SYNC_MS = 10
REQUESTS = 4
"""Two more than there are slots, so that places in the queue are a part of the life."""
BEGIN = begin(keys=(api_key(concurrency=REQUESTS),))


class Moment(enum.Enum):
    """When, within a step, the controller dies."""

    AT_ONCE = "as it is reached"
    LOST = "in a write that is lost"
    KEPT = "in a write that is kept"


class Steps:
    """Counts the steps of the first controller, and kills it at the last one."""

    def __init__(self, last: int | None = None, moment: Moment = Moment.AT_ONCE) -> None:
        self.names: list[str] = []
        self.writes: list[int] = []
        self._last = last
        self._moment = moment
        self.die: Callable[[bool], None] = lambda _: None

    def step(self, name: str) -> None:
        """A step of its own: the process may end here."""
        self.names.append(name)
        if self._moment is Moment.AT_ONCE and len(self.names) == self._last:
            self.die(False)

    def writing(self, name: str) -> None:
        """A write is under way, half a sync from durable."""
        self.names.append(name)
        self.writes.append(len(self.names))
        if self._moment is not Moment.AT_ONCE and len(self.names) == self._last:
            self.die(self._moment is Moment.KEPT)


class SteppedJournal(Journal, Leadership):
    """A journal whose every use is a step before it, one after it, and one in the middle of each write."""

    def __init__(self, inner: SimulatedJournal, steps: Steps) -> None:
        self._inner = inner
        self._steps = steps

    @property
    def lost_tail_accepted(self) -> bool:
        return self._inner.lost_tail_accepted

    async def look(self) -> Lease:
        return await self._inner.look()

    async def claim(self, holder: HolderId, address: str, *, seen: Lease | None, above: int = 0) -> Head | None:
        self._steps.step("before taking an epoch")
        async with self._written("taking an epoch"):
            taken = await self._inner.claim(holder, address, seen=seen, above=above)
        self._steps.step("after taking an epoch")
        await trio.lowlevel.checkpoint()
        return taken

    async def renew(self, holder: HolderId, epoch: int) -> bool:
        return await self._inner.renew(holder, epoch)

    async def release(self, holder: HolderId, epoch: int) -> None:
        await self._inner.release(holder, epoch)

    async def wait(self, within_ms: int) -> None:
        await self._inner.wait(within_ms)

    async def append(self, epoch: int, expected: Head, rows: Sequence[Row]) -> Appended:
        named = ", ".join(sorted({row.action for row in rows}))
        self._steps.step(f"before writing {named}")
        # What dies at its step never gets as far as the next line.
        await trio.lowlevel.checkpoint()
        async with self._written(f"writing {named}"):
            appended = await self._inner.append(epoch, expected, rows)
        self._steps.step(f"after writing {named}")
        await trio.lowlevel.checkpoint()
        return appended

    @asynccontextmanager
    async def _written(self, name: str) -> AsyncIterator[None]:
        async def half_way() -> None:
            await trio.sleep(SYNC_MS / 2_000)
            self._steps.writing(name)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(half_way)
            yield

    async def head(self) -> Head:
        return await self._inner.head()

    async def read(self, after: int = 0, limit: int | None = None) -> AsyncGenerator[Row, None]:
        self._steps.step("before reading")
        async with aclosing(self._inner.read(after, limit)) as rows:
            async for row in rows:
                yield row
        self._steps.step("after reading")
        await trio.lowlevel.checkpoint()

    async def page(self, query: RowQuery) -> Sequence[Row]:
        return await self._inner.page(query)

    async def aclose(self) -> None:
        await self._inner.aclose()


@attrs.define(eq=False)
class World:
    """What outlives a controller, and what clients and engines saw of it."""

    disk: SimulatedDisk
    ran: Counter[WorkloadId] = attrs.Factory(Counter)
    """How often an engine was asked to do a request."""
    acknowledged: set[WorkloadId] = attrs.Factory(set)
    receipts: dict[WorkloadId, LedgerReceipt] = attrs.Factory(dict)
    applied: int = 0
    """The newest generation of the deployment that an operator was told of."""


class Life:
    """One controller process, with the gateway and the reporters that live in it or talk to it."""

    def __init__(self, world: World, steps: Steps, number: int) -> None:
        self.world = world
        self.number = number
        self.session = SessionId(f"ses_{number}")
        self._mount = world.disk.mount()
        clock = SimulatedClock()
        store = SteppedJournal(SimulatedJournal(self._mount), steps)
        self.kernel = Kernel(store, store, clock, POLICY, SEAT)
        self.kernel.listeners.append(_Stepped(steps))
        self.dispatch = KernelDispatch(self.kernel, SECRET)
        self.ids = SimulatedIds(Streams(number).stream("ids"), clock)
        self.scope = trio.CancelScope()

    def kill(self, keep_unsynced: bool) -> None:
        """Nothing that this process still does reaches the disk or anybody outside."""
        self._mount.kill(keep_unsynced=keep_unsynced)
        self.scope.cancel("killed")

    def is_dead(self) -> bool:
        return not self._mount.alive

    async def run(self, script: Callable[["Life"], Awaitable[None]]) -> None:
        """``script`` among the services of a controller, to its end or to the death of the process."""
        with self.scope:
            async with trio.open_nursery() as around:
                await around.start(self.kernel.run, BEGIN)
                async with trio.open_nursery() as nursery:
                    await nursery.start(run_janitor, self.kernel)
                    await nursery.start(run_reconciliation, self.kernel, self.ids)
                    nursery.start_soon(self._report)
                    await script(self)
                    nursery.cancel_scope.cancel("the life is over")
                around.cancel_scope.cancel("the life is over")

    async def _report(self) -> None:
        """The agent of the one node: it enrols, and says what its engine is."""
        for command in joining(again=True):
            await self.kernel.ask(command, NODE)
        sequence = 100 * self.number
        while True:
            sequence += 1
            reports = [
                report(
                    assignment=assignment.assignment,
                    generation=assignment.generation,
                    start=StartId(f"st_{assignment.assignment}_{assignment.generation}"),
                )
                for assignment in self.kernel.state.assignments.values()
            ]
            await self.kernel.ask(reported(heartbeat(sequence, *reports)), NODE)
            await trio.sleep(0.5)

    async def serve(self, number: int) -> None:
        """A gateway's part in one request. Only a process that lives can ask an engine or tell a client."""
        asked = request(number, session=self.session)
        workload = asked.workload
        admitted = await self.dispatch.admit(asked)
        if self.is_dead():
            return
        assert isinstance(admitted, Admitted), admitted
        self.world.acknowledged.add(workload)
        async with self.dispatch.watch(workload) as watch:
            while not isinstance(event := await watch.next(), Grant):
                assert isinstance(event, QueuePlace), event
        if self.is_dead():
            return
        self.world.ran[workload] += 1
        await trio.sleep(0.05)
        receipt = await self.dispatch.settle(Settlement(workload=workload, outcome=None, usage=Usage(output_tokens=3)))
        if not self.is_dead():
            assert isinstance(receipt, LedgerReceipt)
            self.world.receipts[workload] = receipt


class _Stepped:
    """Between a durable batch and the answers to it the process may end too."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps

    def granted(self, granted: Granted) -> None:
        self._steps.step(f"granting {granted.workload}")

    def denied(self, denied: Denied) -> None:
        self._steps.step(f"denying {denied.workload}")

    def place(self, workload: WorkloadId, place: int) -> None:
        pass

    def voided(self, workload: WorkloadId, refusal: Refusal) -> None:
        self._steps.step(f"voiding {workload}")

    def events(self, events: Sequence[Event]) -> None:
        if events:
            self._steps.step("applied, not answered")


async def ready(life: Life) -> None:
    """The deployment is applied and one replica can be called."""
    answer = await life.kernel.ask(ApplyDeployment(spec=spec()), "operator")
    if life.is_dead():
        return
    assert isinstance(answer, Deployment), answer
    life.world.applied = answer.generation
    while not await life.dispatch.models(secret_digest(SECRET)):
        await trio.sleep(0.1)


async def scripted(life: Life) -> None:
    """Deploy, admit, grant, settle, then change the deployment."""
    await ready(life)
    await life.dispatch.open_session(life.session)
    async with trio.open_nursery() as nursery:
        for number in range(REQUESTS):
            nursery.start_soon(life.serve, number)
    changed = await life.kernel.ask(ApplyDeployment(spec=spec(engine=engine(slots=3))), "operator")
    if not life.is_dead():
        assert isinstance(changed, Deployment), changed
        life.world.applied = changed.generation


async def goes_on(life: Life) -> None:
    """What the next controller makes of what the first one left."""
    world, kernel = life.world, life.kernel
    check_replay(kernel, world.disk)
    check_what_was_told(world, kernel)
    left = set(kernel.state.open)
    await ready(life)
    while kernel.state.open:
        await trio.sleep(0.1)
    assert {name for name, receipt in kernel.state.receipts.items() if receipt.settlement.outcome} == left
    check_at_rest(kernel)
    check_receipts(world, kernel)
    await life.dispatch.open_session(life.session)
    # The whole quota and every slot are free: as many requests as the key may have in progress.
    async with trio.open_nursery() as nursery:
        for number in range(REQUESTS):
            nursery.start_soon(life.serve, REQUESTS + number)
    check_at_rest(kernel)
    check_receipts(world, kernel)
    assert len(world.receipts) >= REQUESTS


async def live(steps: Steps) -> None:
    """One life that dies at its last step, and the next one."""
    world = World(SimulatedDisk())
    world.disk.faults.delay_ms = SYNC_MS
    first = Life(world, steps, 1)
    steps.die = first.kill
    try:
        await first.run(scripted)
    except* PortUnavailable:
        assert first.is_dead()
    check_books(world)
    check_replay(first.kernel, world.disk)
    second = Life(world, Steps(), 2)
    await second.run(goes_on)
    check_books(world)
    check_replay(second.kernel, world.disk)


def check_books(world: World) -> None:
    """The chains verify, and no workload was admitted or settled twice."""
    replay = Replay()
    admitted: Counter[WorkloadId] = Counter()
    settled: Counter[WorkloadId] = Counter()
    for row in world.disk.state(JournalState).rows:
        replay.feed(row)
        match from_row(row):
            case WorkloadAdmitted(request=asked):
                admitted[asked.workload] += 1
            case WorkloadSettled(receipt=receipt):
                settled[receipt.workload] += 1
            case _:
                pass
    assert set(admitted.values()) <= {1}
    assert set(settled.values()) <= {1}
    assert settled.keys() <= admitted.keys()
    assert admitted.keys() - settled.keys() == replay.state.open.keys()
    assert sum(replay.state.open_of_key.values()) == len(replay.state.open)


def check_what_was_told(world: World, kernel: Kernel) -> None:
    """What a client or an operator was told before is there when the next controller begins."""
    known = kernel.state.open.keys() | kernel.state.receipts.keys()
    assert world.acknowledged <= known
    for name, told in world.receipts.items():
        assert LedgerReceipt(kernel.state.receipts[name], kernel.state.places[name]) == told
    if world.applied:
        assert kernel.state.deployments[DEPLOYMENT].generation >= world.applied
    # Nothing is granted a second time: what the new one holds is what it will settle.
    assert not kernel.observed.held
    assert not any(map(len, kernel.observed.queues.values()))


def check_at_rest(kernel: Kernel) -> None:
    """Nothing is held: no place, slot or share of a quota."""
    state, observed = kernel.state, kernel.observed
    assert not state.open
    assert not state.open_of_key
    assert not state.open_of_deployment
    assert not observed.held
    assert not observed.slots_held
    assert not observed.admitted_mono_ms
    assert not any(map(len, observed.queues.values()))


def check_receipts(world: World, kernel: Kernel) -> None:
    """Each request that was admitted ended once, as it truly did, and no engine was asked twice."""
    assert set(world.ran.values()) <= {1}
    for workload, receipt in kernel.state.receipts.items():
        if receipt.settlement.outcome is None:
            assert world.ran[workload] == 1
        else:
            assert receipt.settlement.outcome is Outcome.INTERNAL
            assert receipt.settlement.detail == "controller_restarted"
            assert workload not in world.receipts


def run(last: int | None = None, moment: Moment = Moment.AT_ONCE) -> Steps:
    steps = Steps(last, moment)
    trio.run(live, steps, clock=MockClock(autojump_threshold=0))
    return steps


def killed_at(steps: Sequence[int], names: Sequence[str], moment: Moment) -> None:
    for last in steps:
        try:
            run(last, moment)
        except BaseException as error:
            error.add_note(f"not recovered from a death {moment.value}: {last}, {names[last - 1]}")
            raise


@pytest.mark.slow
def test_a_controller_that_is_killed_between_two_steps_is_recovered_from() -> None:
    names = run().names
    assert len(names) > 40
    for part in ("before writing workload.admitted", "after writing workload.settled", "granting", "applied"):
        assert any(name.startswith(part) for name in names), part
    killed_at(range(1, len(names) + 1), names, Moment.AT_ONCE)


def test_a_controller_that_is_killed_within_a_write_is_recovered_from() -> None:
    whole = run()
    assert len(whole.writes) > 8
    for moment in (Moment.LOST, Moment.KEPT):
        killed_at(whole.writes, whole.names, moment)
