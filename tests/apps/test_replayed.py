"""The check after end-to-end tests sees what it is there for."""

import attrs
import pytest

from lunanexa_apps.controller.kept_snapshots import keep_snapshot
from lunanexa_apps.controller.snapshot import Snapshot
from lunanexa_core.state_digest import state_digest
from lunanexa_ports.errors import PortFault
from lunanexa_simulation.disk import SimulatedDisk
from lunanexa_simulation.journal import JournalState, SimulatedJournal
from lunanexa_simulation.snapshots import SimulatedSnapshots
from tests.apps.snapshot_rows import put, replayed, rows_of, served
from tests.replayed import Told, check_store

ROWS = rows_of(served(9))
EARLIER = Told(7, state_digest(replayed(ROWS[:7]).state))
LAST = Told(len(ROWS), state_digest(replayed(ROWS).state))


def disk_with_rows() -> SimulatedDisk:
    disk = SimulatedDisk()
    put(disk, ROWS)
    return disk


async def check(disk: SimulatedDisk, *told: Told) -> None:
    await check_store(SimulatedJournal(disk.mount()), told, [SimulatedSnapshots(disk.mount())])


async def test_what_was_told_is_found_again() -> None:
    await check(disk_with_rows(), EARLIER, LAST)


@pytest.mark.parametrize(
    "told", [attrs.evolve(EARLIER, sequence=8), attrs.evolve(LAST, digest="0"), attrs.evolve(LAST, sequence=99)]
)
async def test_another_state_and_a_lost_row_are_seen(told: Told) -> None:
    with pytest.raises(AssertionError):
        await check(disk_with_rows(), told, EARLIER)


async def test_a_damaged_row_and_another_head_are_seen() -> None:
    disk = disk_with_rows()
    journal = disk.state(JournalState)
    whole = journal.rows[4]
    journal.rows[4] = attrs.evolve(whole, record=whole.record.replace(b"kernel", b"nobody").replace(b"test", b"tost"))
    with pytest.raises(PortFault, match="damaged at sequence 5"):
        await check(disk)
    journal.rows[4] = whole
    journal.head = attrs.evolve(journal.head, sequence=journal.head.sequence + 1)
    with pytest.raises(AssertionError):
        await check(disk)


async def test_a_snapshot_of_another_state_is_seen() -> None:
    disk = disk_with_rows()
    begun = replayed(ROWS[:7])
    snapshots = SimulatedSnapshots(disk.mount())
    keep_snapshot(snapshots, Snapshot(head=begun.head, wall_ms=begun.wall_ms, state=begun.state))
    await check(disk, LAST)
    begun.state.keys.popitem()
    keep_snapshot(snapshots, Snapshot(head=begun.head, wall_ms=begun.wall_ms, state=begun.state))
    with pytest.raises(AssertionError):
        await check(disk, LAST)
