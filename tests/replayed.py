"""After a test that had a journal: what its rows make is what the controllers that lived on it said or had."""

from collections.abc import Collection, Iterable
from contextlib import aclosing

import attrs

from lunanexa_apps.controller.kernel import Kernel
from lunanexa_apps.controller.replay import Replay, newest_pruning, rebuild
from lunanexa_core.state_digest import state_digest
from lunanexa_ports.journal import JournalReader
from lunanexa_ports.snapshots import Snapshots
from lunanexa_simulation.disk import SimulatedDisk
from lunanexa_simulation.invariants.store import replay_equals_live
from lunanexa_simulation.journal import JournalState


@attrs.frozen
class Told:
    """What a controller said of its state while it lived: its digest, and after which row."""

    sequence: int
    digest: str


def check_replay(kernel: Kernel, disk: SimulatedDisk) -> None:
    """Replays the rows of ``disk`` from nothing, up to where ``kernel`` stands."""
    rows = [row for row in disk.state(JournalState).rows if row.sequence <= kernel.head.sequence]
    problem = replay_equals_live(rows, kernel.state)
    assert problem is None, problem


async def check_store(journal: JournalReader, told: Collection[Told] = (), snapshots: Iterable[Snapshots] = ()) -> None:
    """Replays a store that nobody writes: each row stands in its chain, the last one is where the head is, and the
    state passes through all that was ``told``. A start from ``snapshots``, as after a kill, comes to the same."""
    head, pruning = await journal.head(), await newest_pruning(journal)
    least = 0 if pruning is None else pruning.point.sequence
    due = {one for one in told if one.sequence >= least}
    replay = Replay(pruning=pruning)
    async with aclosing(journal.read()) as rows:
        async for row in rows:
            replay.feed(row)
            here = {one for one in due if one.sequence == row.sequence}
            if here:
                assert here == {Told(row.sequence, state_digest(replay.state))}, "replay and a live state differ"
                due -= here
    assert not due, f"a controller had rows that the store, which ends at {head.sequence}, does not hold: {due}"
    assert attrs.evolve(replay.head, epoch=head.epoch) == head
    digest = state_digest(replay.state)
    for folder in snapshots:
        if not folder.kept():
            continue
        started = await rebuild(journal, folder)
        assert (started.head, state_digest(started.state)) == (replay.head, digest), started.snapshot_at
