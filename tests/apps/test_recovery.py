"""A controller whose store lost its newest rows notices, changes nothing, and goes on above all that was given when an
operator says go."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import attrs
import pytest
import trio
import trio.testing
from trio.testing import MockClock

from lunanexa_apps.controller.dispatch import KernelDispatch
from lunanexa_apps.controller.high_water import HighWater, encode_known_head, read_known_head
from lunanexa_apps.controller.kernel import Kernel
from lunanexa_apps.controller.recovery import KernelRecovery, run_high_water
from lunanexa_apps.controller.replay import replay
from lunanexa_apps.controller.rows import to_row
from lunanexa_apps.installation import KNOWN_HEAD
from lunanexa_core.canonical import JsonValue
from lunanexa_core.commands import (
    ApplyDeployment,
    Command,
    OpenSession,
    Reconcile,
    ShowDocument,
)
from lunanexa_core.events import RecoveryBegan
from lunanexa_core.ids import HolderId, KeyId, NodeId
from lunanexa_core.journal import Head
from lunanexa_core.keys import Role, secret_digest
from lunanexa_core.leadership import Seat
from lunanexa_core.outcomes import Outcome, Refusal
from lunanexa_core.recovery import DOCUMENT_WANTED, RECOVERING
from lunanexa_core.recovery_reasons import RecoveryCause, RecoveryReason
from lunanexa_core.workload import Settlement
from lunanexa_ports.dispatch import Admitted
from lunanexa_ports.errors import PortFault
from lunanexa_simulation.clock import SimulatedClock
from lunanexa_simulation.disk import Mount, SimulatedDisk
from lunanexa_simulation.journal import JournalState, SimulatedJournal
from lunanexa_simulation.private_files import PrivateFolder, SimulatedPrivateFiles
from tests.core.builders import (
    ASSIGNMENT,
    POLICY,
    SEAT,
    SECRET,
    SESSION,
    api_key,
    begin,
    heartbeat,
    joining,
    report,
    reported,
    request,
    spec,
)
from tests.replayed import check_replay

pytestmark = pytest.mark.usefixtures("mock_clock")

TOKEN = "an-operators-token"
OTHER = Seat(HolderId("holder_2"), "two:8400")
BEGIN = begin(
    keys=(
        api_key(),
        api_key(key=KeyId("key_operator"), digest=secret_digest(TOKEN), roles=frozenset({Role.OPERATOR})),
    ),
)
MINT, ENROL = joining()


@asynccontextmanager
async def kernel_on(
    disk: SimulatedDisk, folder: PrivateFolder | None = None, seat: Seat = SEAT, mount: Mount | None = None
) -> AsyncIterator[Kernel]:
    store = SimulatedJournal(mount or disk.mount())
    water = HighWater(None if folder is None else SimulatedPrivateFiles(folder))
    kernel = Kernel(store, store, SimulatedClock(), POLICY, seat, water)
    async with trio.open_nursery() as nursery:
        await nursery.start(kernel.run, BEGIN)
        await nursery.start(run_high_water, kernel)
        yield kernel
        nursery.cancel_scope.cancel("the test is over")
    check_replay(kernel, disk)


class Copy:
    """What a store was, for setting it back."""

    def __init__(self, disk: SimulatedDisk) -> None:
        self._state = disk.state(JournalState)
        self._rows, self._head = list(self._state.rows), self._state.head

    def put_back(self) -> None:
        self._state.rows[:] = self._rows
        self._state.head = self._head
        self._state.tell()


def mark_restored(disk: SimulatedDisk, reason: RecoveryReason) -> None:
    """Adds the row with which a restore ends."""
    state = disk.state(JournalState)
    wall_ms = state.rows[-1].wall_ms
    row = to_row(state.head, RecoveryBegan((reason,)), epoch=state.head.epoch, wall_ms=wall_ms, actor="restore")
    state.rows.append(row)
    state.head = state.head.after(row)


async def until(condition: Callable[[], bool], clock: MockClock) -> None:
    with trio.fail_after(60):
        while not condition():
            clock.jump(0.1)
            await trio.testing.wait_all_tasks_blocked()


async def say_go(kernel: Kernel) -> object:
    plane = KernelRecovery(kernel)
    found = await plane.recovery(TOKEN)
    assert isinstance(found, dict)
    assert isinstance(found["plan"], dict), found
    return await plane.rebase(TOKEN, {"plan": found["plan"]["digest"]})


def causes(kernel: Kernel) -> list[RecoveryCause]:
    return [reason.cause for reason in kernel.state.recovery or ()]


async def test_after_a_restore_nothing_is_decided_before_the_go() -> None:
    disk, folder = SimulatedDisk(), PrivateFolder()
    async with kernel_on(disk, folder):
        pass
    restored = RecoveryReason(cause=RecoveryCause.RESTORED, sequence=4, epoch=8)
    mark_restored(disk, restored)
    async with kernel_on(disk, folder) as kernel:
        assert kernel.state.recovery == (restored,)
        assert await kernel.ask(ApplyDeployment(spec=spec()), "test") == RECOVERING
        dispatch = KernelDispatch(kernel, SECRET)
        assert await dispatch.admit(request()) == RECOVERING
        assert await dispatch.authenticate("nobody's") == RECOVERING, "a key that was lost is nobody's fault"
        assert await dispatch.models("nobody's") == RECOVERING
    async with kernel_on(disk, folder) as kernel:
        assert kernel.state.recovery == (restored,), "also after another start"
        told = await say_go(kernel)
        assert isinstance(told, dict), told
        assert told["epoch"] == kernel.epoch == kernel.state.epoch == 9, "above the backup's"
        assert not isinstance(await kernel.ask(ApplyDeployment(spec=spec()), "test"), Refusal)
        refused = await KernelRecovery(kernel).rebase(TOKEN, {"plan": ""})
        assert isinstance(refused, Refusal)
        assert refused.outcome is Outcome.STALE_GENERATION
    async with kernel_on(disk, folder) as kernel:
        assert kernel.state.recovery is None
        assert (await replay(kernel.reader)).state == kernel.state


@pytest.mark.parametrize("taken", [False, True])
async def test_a_go_that_the_store_did_not_answer_costs_no_lease(mock_clock: MockClock, taken: bool) -> None:
    """Nothing is written while it recovers, and yet it goes on leading, whether its epoch was taken or not."""
    disk = SimulatedDisk()
    async with kernel_on(disk):
        pass
    mark_restored(disk, RecoveryReason(cause=RecoveryCause.RESTORED, sequence=4, epoch=8))
    way = disk.mount()
    async with kernel_on(disk, mount=way) as kernel, kernel_on(disk, seat=OTHER) as other:
        disk.faults.unknown_outcomes, way.cut = int(taken), not taken
        refused = await say_go(kernel)
        assert isinstance(refused, Refusal)
        assert refused.outcome is Outcome.STORE_UNAVAILABLE
        way.cut = False
        rows = len(disk.state(JournalState).rows)
        for _ in range(20 * POLICY.lease_ms // 1_000):
            mock_clock.jump(0.1)
            await trio.testing.wait_all_tasks_blocked()
        assert (kernel.may_write, kernel.store_ok, other.leading) == (True, True, False)
        assert len(disk.state(JournalState).rows) == rows
        told = await say_go(kernel)
        assert isinstance(told, dict), told
        assert kernel.epoch == kernel.state.epoch > 8


async def test_a_store_without_the_known_row_was_set_back() -> None:
    disk, folder = SimulatedDisk(), PrivateFolder()
    async with kernel_on(disk, folder) as kernel:
        copy = Copy(disk)
        await kernel.ask(ApplyDeployment(spec=spec()), "test")
        head = kernel.head
    assert read_known_head(SimulatedPrivateFiles(folder)) == head
    copy.put_back()
    async with kernel_on(disk, folder) as kernel:
        assert causes(kernel) == [RecoveryCause.ROWS_MISSING]
        assert not kernel.state.deployments
        await say_go(kernel)
    async with kernel_on(disk, folder) as kernel:
        assert kernel.state.recovery is None, "what was given up is not asked for again"


async def test_other_rows_in_the_place_of_the_known_one() -> None:
    disk, folder = SimulatedDisk(), PrivateFolder()
    async with kernel_on(disk, folder) as kernel:
        copy = Copy(disk)
        await kernel.ask(ApplyDeployment(spec=spec()), "test")
    copy.put_back()
    async with kernel_on(disk) as kernel:
        for replicas in (2, 3, 4):
            await kernel.ask(ApplyDeployment(spec=spec(replicas=replicas)), "another timeline")
    async with kernel_on(disk, folder) as kernel:
        assert causes(kernel) == [RecoveryCause.ROWS_MISSING]


async def test_a_lost_store_is_not_taken_for_a_new_one() -> None:
    folder = PrivateFolder()
    async with kernel_on(SimulatedDisk(), folder) as kernel:
        await kernel.ask(ApplyDeployment(spec=spec()), "test")
    async with kernel_on(SimulatedDisk(), folder) as kernel:
        assert causes(kernel) == [RecoveryCause.ROWS_MISSING]


@pytest.mark.parametrize("idle", [False, True])
async def test_a_store_that_is_set_back_under_its_leader(mock_clock: MockClock, idle: bool) -> None:
    """As when a replica that was behind takes the place of the database."""
    disk, folder = SimulatedDisk(), PrivateFolder()
    async with kernel_on(disk, folder) as kernel:
        copy = Copy(disk)
        await kernel.ask(ApplyDeployment(spec=spec()), "test")
        assert kernel.state.deployments
        copy.put_back()
        if not idle:
            await kernel.ask(ApplyDeployment(spec=spec(replicas=2)), "test")
        await until(lambda: kernel.leading and kernel.state.recovery is not None, mock_clock)
        assert causes(kernel) == [RecoveryCause.ROWS_MISSING]
        assert not kernel.state.deployments, "it goes by what the store holds"
        assert (await replay(kernel.reader)).state == kernel.state


async def test_a_store_that_is_set_back_under_one_that_follows(mock_clock: MockClock) -> None:
    disk = SimulatedDisk()
    async with kernel_on(disk) as first:
        copy = Copy(disk)
        await first.ask(ApplyDeployment(spec=spec()), "test")
        async with kernel_on(disk, seat=OTHER) as second:
            await until(lambda: second.head == first.head, mock_clock)
            copy.put_back()
            await first.ask(ApplyDeployment(spec=spec(replicas=2)), "test")
            await until(lambda: first.state.recovery is not None, mock_clock)
            await until(lambda: second.head == first.head, mock_clock)
            leader = first if first.leading else second
            assert isinstance(await say_go(leader), dict)
            await until(lambda: second.head == first.head, mock_clock)
            assert first.state == second.state
            follower = second if leader is first else first
            disk.state(JournalState).hold(None, "")
            await until(lambda: follower.leading or leader.leading, mock_clock)
            assert follower.state.recovery is None, "the go covered what it had seen as well"


async def test_a_node_that_is_ahead_is_noticed_while_leading() -> None:
    async with kernel_on(SimulatedDisk()) as kernel:
        await kernel.ask(MINT, "operator")
        await kernel.ask(ENROL, "node")
        ahead = attrs.evolve(heartbeat(1, report()), epoch=7, generation=5)
        assert await kernel.ask(reported(ahead), "node") == DOCUMENT_WANTED
        assert kernel.state.recovery is None
        await kernel.ask(ShowDocument(node=NodeId("node-1"), epoch=7, generation=5), "node")
        assert not isinstance(await kernel.ask(reported(ahead), "node"), Refusal)
        assert causes(kernel) == [RecoveryCause.NODE_AHEAD]
        found = await KernelRecovery(kernel).recovery(TOKEN)
        assert isinstance(found, dict)
        assert found["plan"]["steps"] == [{"kind": "stop_orphan", "target": "asg_1", "node": "node-1"}]
        await say_go(kernel)
        assert kernel.epoch == kernel.state.epoch == 8
        assert kernel.state.nodes[NodeId("node-1")].generation == 6


async def test_who_waits_is_told_and_what_runs_is_settled() -> None:
    async with kernel_on(SimulatedDisk()) as kernel:
        dispatch = KernelDispatch(kernel, SECRET)
        fleet: tuple[Command, ...] = (
            MINT,
            ENROL,
            ApplyDeployment(spec=spec()),
            Reconcile((ASSIGNMENT,)),
            reported(heartbeat(1, report())),
            OpenSession(SESSION),
        )
        for command in fleet:
            assert not isinstance(await kernel.ask(command, "test"), Refusal)
        for number in (1, 2, 3):  # Two of them have the two slots.
            assert isinstance(await dispatch.admit(request(number)), Admitted)
        told: dict[int, Refusal] = {}
        async with dispatch.watch(request(1).workload) as runs, dispatch.watch(request(3).workload) as waits:
            runs.on_void(lambda refusal: told.update({1: refusal}))
            waits.on_void(lambda refusal: told.update({3: refusal}))
            await kernel.ask(ShowDocument(node=NodeId("node-1"), epoch=7, generation=1), "node")
            await kernel.ask(reported(attrs.evolve(heartbeat(2, report()), epoch=7)), "node")
            assert told == {3: RECOVERING}
            for number in (1, 2, 3):
                settlement = Settlement(workload=request(number).workload, outcome=None)
                assert await dispatch.settle(settlement) is not None
        assert not kernel.state.open


async def test_a_go_that_the_store_does_not_take_can_be_said_again() -> None:
    disk, folder = SimulatedDisk(), PrivateFolder()
    async with kernel_on(disk, folder):
        pass
    mark_restored(disk, RecoveryReason(cause=RecoveryCause.RESTORED, epoch=5))
    async with kernel_on(disk, folder) as kernel:
        disk.faults.full = True
        refused = await say_go(kernel)
        assert isinstance(refused, Refusal)
        assert refused.outcome is Outcome.STORE_UNAVAILABLE
        assert kernel.state.recovery is not None
        disk.faults.full = False
        assert isinstance(await say_go(kernel), dict)
        assert kernel.state.epoch > 5


async def test_who_may_look_and_who_may_say_go() -> None:
    async with kernel_on(SimulatedDisk()) as kernel:
        plane = KernelRecovery(kernel)
        for refused in (await plane.recovery(SECRET), await plane.rebase(SECRET, {}), await plane.recovery(None)):
            assert isinstance(refused, Refusal)
            assert refused.row.http_status in (401, 403)
        documents: tuple[JsonValue, ...] = ([], {}, {"plan": 1}, {"plan": "", "more": 1})
        for document in documents:
            wrong = await plane.rebase(TOKEN, document)
            assert isinstance(wrong, Refusal)
            assert wrong.outcome is Outcome.INVALID_REQUEST
        found = await plane.recovery(TOKEN)
        assert isinstance(found, dict)
        assert (found["recovering"], found["plan"]) == (False, None)


async def test_the_known_head_is_kept_every_few_seconds(mock_clock: MockClock) -> None:
    folder = PrivateFolder()
    async with kernel_on(SimulatedDisk(), folder) as kernel:
        await kernel.ask(ApplyDeployment(spec=spec()), "test")
        assert read_known_head(SimulatedPrivateFiles(folder)).sequence < kernel.head.sequence
        await until(lambda: read_known_head(SimulatedPrivateFiles(folder)) == kernel.head, mock_clock)


def test_a_file_that_can_not_be_read_is_named() -> None:
    folder = PrivateFolder(files={KNOWN_HEAD: b"{}"})
    with pytest.raises(PortFault, match=f"{KNOWN_HEAD}.*remove the file"):
        HighWater(SimulatedPrivateFiles(folder))


def test_the_known_head_is_read_as_it_was_written() -> None:
    head = Head(sequence=3, epoch=2, journal="ab" * 32, ledger="cd" * 32)
    folder = PrivateFolder(files={KNOWN_HEAD: encode_known_head(head)})
    assert read_known_head(SimulatedPrivateFiles(folder)) == head
