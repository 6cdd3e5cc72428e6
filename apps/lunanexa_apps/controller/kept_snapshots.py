"""Which snapshot a replay may begin with. None that can't be used is an error: older ones are, or the rows."""

from typing import Final

import attrs
import structlog

from lunanexa_apps.controller.snapshot import Snapshot, Unusable, decode_snapshot, encode_snapshot
from lunanexa_core.journal import Head
from lunanexa_core.journal_query import RowQuery
from lunanexa_ports.errors import PortError
from lunanexa_ports.journal import JournalReader
from lunanexa_ports.snapshots import Snapshots

KEPT: Final = 2
"""Snapshots that are kept: the newest, and the one before it should that be unusable."""
_log = structlog.get_logger()


@attrs.frozen(kw_only=True)
class Found:
    """``rewound``: a place that the store has been at and does not hold any more. It was set back, or is another's."""

    snapshot: Snapshot | None
    rewound: Head | None = None


async def find_snapshot(journal: JournalReader, snapshots: Snapshots, *, until: int | None = None) -> Found:
    """The newest snapshot, of sequence ``until`` or lower, of a row that ``journal`` holds. Raises as the journal does.
    If the ledger was pruned beyond it, some of the rows after it are gone."""
    rewound: Head | None = None
    for sequence in _kept(snapshots):
        if until is not None and sequence > until:
            continue
        snapshot = _read(snapshots, sequence)
        if isinstance(snapshot, Unusable):
            _log.warning("snapshot_unused", sequence=sequence, reason=snapshot.reason)
            continue
        standing = await _stands(journal, snapshot.head)
        if standing:
            return Found(snapshot=snapshot, rewound=rewound)
        _log.warning("snapshot_unused", sequence=sequence, reason="the store does not hold its row")
        if standing is False:
            rewound = rewound or snapshot.head
    return Found(snapshot=None, rewound=rewound)


def keep_snapshot(snapshots: Snapshots, snapshot: Snapshot) -> None:
    """Keeps ``snapshot`` and the newest before it, and drops all others: those above it are of rows that the store
    does not hold, or of another version. Raises :class:`~lunanexa_ports.errors.PortUnavailable`."""
    sequence = snapshot.head.sequence
    snapshots.keep(sequence, encode_snapshot(snapshot))
    kept = [one for one in snapshots.kept() if one <= sequence][:KEPT]
    for other in snapshots.kept():
        if other not in kept:
            snapshots.drop(other)


def _kept(snapshots: Snapshots) -> tuple[int, ...]:
    try:
        return tuple(snapshots.kept())
    except PortError as error:
        _log.warning("snapshots_unread", reason=str(error))
        return ()


def _read(snapshots: Snapshots, sequence: int) -> Snapshot | Unusable:
    try:
        data = snapshots.read(sequence)
    except PortError as error:
        return Unusable(str(error))
    found = Unusable("it is gone") if data is None else decode_snapshot(data)
    if isinstance(found, Snapshot) and found.head.sequence != sequence:
        return Unusable("it is named after another row")
    return found


async def _stands(journal: JournalReader, head: Head) -> bool | None:
    """Whether the store holds the row that ``head`` is after; ``None``: it may have, the row was pruned."""
    rows = await journal.page(RowQuery(after=head.sequence - 1, before=head.sequence + 1, limit=1))
    if rows:
        return rows[0].hash == head.last(rows[0].chain)
    return False if (await journal.head()).sequence < head.sequence else None
