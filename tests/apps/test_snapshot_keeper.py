"""The keeper of snapshots: the running state is proven and kept, or an alert is raised."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import attrs
import trio
from trio.testing import MockClock

from lunanexa_apps.controller.kernel import Kernel
from lunanexa_apps.controller.snapshot import Snapshot, decode_snapshot
from lunanexa_apps.controller.snapshots import LOOK_S, RETRY_S, run_snapshots
from lunanexa_apps.controller.status import status_document
from lunanexa_core.commands import CreateKey
from lunanexa_core.ids import HolderId, KeyId
from lunanexa_core.leadership import Seat
from lunanexa_simulation.clock import SimulatedClock
from lunanexa_simulation.disk import SimulatedDisk
from lunanexa_simulation.journal import JournalState, SimulatedJournal
from lunanexa_simulation.replays import SimulatedReplays
from lunanexa_simulation.snapshots import SimulatedSnapshots, SnapshotFiles
from tests.core import builders
from tests.replayed import check_replay
from tests.simulation.small import BEGIN, Small, small_world

ROWS = 5
WITHIN_S = 100.0
LOOKED_S = LOOK_S + 1


@attrs.define
class Kept:
    """A kernel with a keeper beside it."""

    small: Small
    disk: SimulatedDisk

    @property
    def kernel(self) -> Kernel:
        return self.small.kernel

    @property
    def files(self) -> dict[int, bytes]:
        return self.disk.state(SnapshotFiles).files

    async def grow(self, rows: int) -> None:
        for _ in range(rows):
            number = self.kernel.head.sequence
            key = builders.api_key(key=KeyId(f"key_{number}"), digest=f"{number:064x}")
            await self.small.ask(CreateKey(key))

    def newest(self) -> Snapshot:
        snapshot = decode_snapshot(self.files[max(self.files)])
        assert isinstance(snapshot, Snapshot), snapshot
        return snapshot

    @property
    def shown(self) -> object:
        document = status_document(self.kernel, "0.1.0")
        assert isinstance(document, dict)
        return document["snapshot"], [alert["code"] for alert in document["alerts"]]


@asynccontextmanager
async def kept(clock: MockClock) -> AsyncIterator[Kept]:
    assert trio.current_time() == clock.current_time(), "a keeper waits for hours"
    disk = SimulatedDisk()
    async with small_world(disk) as small, trio.open_nursery() as nursery:
        replays = SimulatedReplays(disk.mount(), disk.mount())
        await nursery.start(partial(run_snapshots, small.kernel, replays, rows=ROWS, within_s=WITHIN_S))
        yield Kept(small, disk)
        nursery.cancel_scope.cancel("the test is over")
    check_replay(small.kernel, disk)


async def test_the_running_state_is_kept(autojump_clock: MockClock) -> None:
    async with kept(autojump_clock) as world:
        await trio.sleep(LOOKED_S)
        first = world.newest()
        assert (first.state, first.head) == (world.kernel.state, world.kernel.head)
        assert world.shown == (first.head.sequence, [])
        await world.grow(ROWS)
        await trio.sleep(LOOKED_S)
        assert world.newest().head.sequence == first.head.sequence + ROWS
        assert world.newest().state == world.kernel.state


async def test_few_rows_wait_for_their_time(autojump_clock: MockClock) -> None:
    async with kept(autojump_clock) as world:
        await trio.sleep(LOOKED_S)
        first = world.newest().head.sequence
        await world.grow(ROWS - 1)
        await trio.sleep(WITHIN_S - 2 * LOOK_S)
        assert max(world.files) == first
        await trio.sleep(3 * LOOK_S)
        assert max(world.files) == first + ROWS - 1
        await trio.sleep(2 * WITHIN_S)
        assert len(world.files) == 2, "nothing has come since"


async def test_a_state_that_is_not_what_the_rows_make_is_an_alert(autojump_clock: MockClock) -> None:
    async with kept(autojump_clock) as world:
        await trio.sleep(LOOKED_S)
        first = max(world.files)
        world.kernel.state.open_of_key[KeyId("key_nobody")] = 3
        await world.grow(ROWS)
        await trio.sleep(LOOKED_S)
        assert max(world.files) == first
        assert world.shown == (first, ["replay_differs"])
        # What was wrong once is told until somebody has looked.
        del world.kernel.state.open_of_key[KeyId("key_nobody")]
        await world.grow(ROWS)
        await trio.sleep(LOOKED_S)
        assert world.shown == (first + 2 * ROWS, ["replay_differs"])


async def test_a_full_disk_is_tried_again(autojump_clock: MockClock) -> None:
    async with kept(autojump_clock) as world:
        world.disk.faults.full = True
        await trio.sleep(LOOK_S + RETRY_S)
        assert world.files == {}
        world.disk.faults.full = False
        await trio.sleep(RETRY_S)
        assert world.newest().state == world.kernel.state


async def test_a_controller_that_follows_makes_its_own(autojump_clock: MockClock) -> None:
    own = SimulatedDisk()
    async with kept(autojump_clock) as world, trio.open_nursery() as nursery:
        store = SimulatedJournal(world.disk.mount())
        clock = SimulatedClock(mono_ms=builders.NOW.mono_ms, wall_ms=builders.NOW.wall_ms)
        standby = Kernel(store, store, clock, builders.POLICY, Seat(HolderId("holder_2"), "elsewhere:8400"))
        await nursery.start(standby.run, BEGIN)
        await nursery.start(
            partial(run_snapshots, standby, SimulatedReplays(world.disk.mount(), own.mount()), rows=ROWS)
        )
        await world.grow(300)
        await trio.sleep(2 * LOOKED_S)
        assert not standby.leading
        check_replay(standby, world.disk)
        assert decode_snapshot(own.state(SnapshotFiles).files[world.kernel.head.sequence]) == world.newest()
        nursery.cancel_scope.cancel("the test is over")


async def test_a_kernel_begins_with_the_snapshot_that_was_kept(autojump_clock: MockClock) -> None:
    """The rows before it are not looked at again: they are spoilt here."""
    async with kept(autojump_clock) as world:
        await trio.sleep(LOOKED_S)
        at, state = world.kernel.snapshot_at, world.kernel.state.copy()
        await world.grow(2)
    rows = world.disk.state(JournalState).rows
    rows[: at - 1] = [attrs.evolve(row, record=b"spoilt") for row in rows[: at - 1]]
    store = SimulatedJournal(world.disk.mount())
    clock = SimulatedClock(mono_ms=builders.NOW.mono_ms, wall_ms=builders.NOW.wall_ms)
    snapshots = SimulatedSnapshots(world.disk.mount())
    again = Kernel(store, store, clock, builders.POLICY, builders.SEAT, snapshots=snapshots)
    async with trio.open_nursery() as nursery:
        await nursery.start(again.run, BEGIN)
        assert again.leading
        assert (again.snapshot_at, again.state.receipts) == (at, state.receipts)
        assert len(again.state.keys) == len(state.keys) + 2
        nursery.cancel_scope.cancel("the test is over")
