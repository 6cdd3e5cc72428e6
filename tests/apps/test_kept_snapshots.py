"""Which snapshot a start goes on from; what can't be used is never used and stops nothing."""

import attrs
import pytest

from lunanexa_apps.controller.kept_snapshots import find_snapshot, keep_snapshot
from lunanexa_apps.controller.replay import rebuild, replay
from lunanexa_apps.controller.snapshot import Snapshot
from lunanexa_core.journal import Chain, Row
from lunanexa_ports.errors import PortUnavailable
from lunanexa_simulation.disk import SimulatedDisk
from lunanexa_simulation.journal import JournalState, SimulatedJournal
from lunanexa_simulation.snapshots import SimulatedSnapshots, SnapshotFiles
from tests.apps.snapshot_rows import put, replayed, rows_of, served


@attrs.define
class Store:
    """A journal of :func:`served`, with snapshots as of some of its rows."""

    disk: SimulatedDisk = attrs.Factory(SimulatedDisk)
    rows: list[Row] = attrs.Factory(lambda: rows_of(served(12)))

    def __attrs_post_init__(self) -> None:
        put(self.disk, self.rows)

    @property
    def journal(self) -> SimulatedJournal:
        return SimulatedJournal(self.disk.mount())

    @property
    def snapshots(self) -> SimulatedSnapshots:
        return SimulatedSnapshots(self.disk.mount())

    @property
    def files(self) -> dict[int, bytes]:
        return self.disk.state(SnapshotFiles).files

    def keep(self, *sequences: int) -> None:
        for sequence in sequences:
            part = replayed(self.rows[:sequence])
            keep_snapshot(self.snapshots, Snapshot(head=part.head, wall_ms=part.wall_ms, state=part.state))

    async def used(self) -> int | None:
        """As of which row the snapshot is that a start goes on from; the state is right in any case."""
        found = await find_snapshot(self.journal, self.snapshots)
        rebuilt, whole = await rebuild(self.journal, self.snapshots), await replay(self.journal)
        assert (rebuilt.state, rebuilt.head, rebuilt.wall_ms) == (whole.state, whole.head, whole.wall_ms)
        assert rebuilt.rewound == found.rewound
        return None if found.snapshot is None else found.snapshot.head.sequence


async def test_the_newest_is_used() -> None:
    store = Store()
    assert await store.used() is None
    store.keep(5, 20)
    assert await store.used() == 20
    store.keep(len(store.rows))
    assert await store.used() == len(store.rows)


async def test_one_up_to_a_row_is_used_for_a_replay_up_to_there() -> None:
    store = Store()
    store.keep(5, 20)
    for until in (4, 5, 19, 20, 23):
        rebuilt = await rebuild(store.journal, store.snapshots, until=until)
        assert (rebuilt.state, rebuilt.head.sequence) == (replayed(store.rows[:until]).state, until)


async def test_only_rows_after_it_are_read() -> None:
    """That is what it is for. The rows before it are spoilt here, which nobody else would let pass."""
    store = Store()
    store.keep(20)
    whole = await replay(store.journal)
    rows = store.disk.state(JournalState).rows
    rows[:19] = [attrs.evolve(row, record=b"spoilt") for row in rows[:19]]
    assert (await rebuild(store.journal, store.snapshots)).state == whole.state


@pytest.mark.parametrize("spoilt", [b"", b"foreign", None])
async def test_the_one_before_it_is_used_when_it_is_spoilt(spoilt: bytes | None) -> None:
    store = Store()
    store.keep(5, 20)
    store.files[20] = store.files[20][:-40] if spoilt is None else spoilt
    assert await store.used() == 5
    store.files[5] = b""
    assert await store.used() is None


async def test_one_under_another_name_is_not_used() -> None:
    store = Store()
    store.keep(5, 20)
    store.files[19] = store.files.pop(20)
    assert await store.used() == 5


async def test_a_folder_that_can_not_be_read_is_none() -> None:
    store, broken = Store(), SimulatedDisk()
    broken.faults.unavailable = True
    rebuilt = await rebuild(store.journal, SimulatedSnapshots(broken.mount()))
    assert rebuilt.state == replayed(store.rows).state


async def test_a_store_that_was_set_back_is_told() -> None:
    """It is shorter than it has been: copied back from before, or a replica that had not all."""
    store = Store()
    store.keep(5, 20)
    put(store.disk, store.rows[:15])
    assert await store.used() == 5
    assert (await rebuild(store.journal, store.snapshots)).rewound == replayed(store.rows[:20]).head


async def test_a_store_that_went_another_way_is_told() -> None:
    store = Store()
    store.keep(5, 20)
    other = rows_of(served(14), ms=8)
    put(store.disk, [*store.rows[:15], *rows_of(served(14)[15:], replayed(store.rows[:15]).head, ms=9)])
    assert await store.used() == 5
    put(store.disk, other)
    assert await store.used() is None
    assert (await rebuild(store.journal, store.snapshots)).rewound == replayed(store.rows[:20]).head


async def test_rows_that_were_pruned_tell_of_nothing() -> None:
    """A snapshot of a row that has left the ledger can't be held to the store, and is left."""
    store = Store()
    store.keep(5, 20)
    rows = store.disk.state(JournalState).rows
    assert rows[19].chain is Chain.LEDGER
    del rows[19]
    found = await find_snapshot(store.journal, store.snapshots)
    assert found.snapshot is not None
    assert (found.snapshot.head.sequence, found.rewound) == (5, None)


async def test_damage_after_it_is_found() -> None:
    store = Store()
    store.keep(5, 20)
    rows = store.disk.state(JournalState).rows
    rows[24] = attrs.evolve(rows[24], record=b"spoilt")
    with pytest.raises(Exception, match="damaged at sequence 25"):
        await rebuild(store.journal, store.snapshots)


def test_two_are_kept_and_none_above() -> None:
    """Of a store that was set back the higher ones would stay the newest for ever."""
    store = Store()
    for sequence, kept in ((5, [5]), (20, [20, 5]), (23, [23, 20]), (21, [21, 20])):
        store.keep(sequence)
        assert sorted(store.files, reverse=True) == kept


def test_a_full_disk_leaves_what_is_kept() -> None:
    store = Store()
    store.keep(5, 20)
    store.disk.faults.full = True
    with pytest.raises(PortUnavailable):
        store.keep(23)
    assert sorted(store.files) == [5, 20]
