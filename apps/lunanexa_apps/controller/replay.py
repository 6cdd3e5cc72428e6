"""Replay: state from the rows of a journal, each verified in its chain before it is believed."""

from contextlib import aclosing

import attrs
import structlog

from lunanexa_apps.codec import CodecError, decode
from lunanexa_apps.controller.kept_snapshots import find_snapshot
from lunanexa_apps.controller.rows import PRUNED_ACTION, Pruning, from_record, place_of, pruning_of
from lunanexa_core.events import LEDGER_TARGET, Event
from lunanexa_core.journal import ChainFault, Head, Row, head_with, read_row
from lunanexa_core.journal_query import RowQuery
from lunanexa_core.kernel.apply import apply
from lunanexa_core.ledger_carry import LedgerCarry, install_carry
from lunanexa_core.state import State
from lunanexa_ports.errors import PortFault
from lunanexa_ports.journal import JournalReader
from lunanexa_ports.snapshots import Snapshots

_log = structlog.get_logger()


class PrunedBeyond(PortFault):
    """Rows are missing that were not pruned when the replay began: the ledger may have been pruned meanwhile, and a
    replay from nothing goes on; if not, the journal is damaged."""


@attrs.define
class Replay:
    """State as far as rows were fed. ``pruning``: by which the ledger was pruned when it began; ``None``: by none, or
    before the state that it began with."""

    state: State = attrs.Factory(State)
    head: Head = attrs.Factory(Head)
    wall_ms: int = 0
    pruning: Pruning | None = None
    snapshot_at: int = 0
    """The sequence of the snapshot that it began with; 0: with none."""
    rewound: Head | None = None
    """A place that the store has been at and does not hold any more, as a snapshot tells; ``None``: none is known."""

    def feed(self, row: Row) -> Event:
        """Takes the next row; returns what happened. Raises :class:`PrunedBeyond` where rows are missing between the
        last one and this, :class:`PortFault` when it does not belong there for another reason."""
        point = None if self.pruning is None else self.pruning.point
        record = read_row(self.head, row, point)
        if isinstance(record, ChainFault):
            fault = PrunedBeyond if row.sequence > self.head.sequence + 1 else PortFault
            raise fault(f"the journal is damaged at sequence {row.sequence}: {record.value}; restore a backup")
        try:
            event = from_record(record)
        except CodecError as error:
            raise PortFault(f"the journal can't be read at sequence {row.sequence}: {error}") from None
        if self.pruning is not None and self.pruning.point.passed_by(self.head, row):
            self._install(self.pruning)
        if point is None or not point.skips(row):
            apply(self.state, event, epoch=row.epoch, wall_ms=row.wall_ms, place=place_of(row))
        self.head = head_with(self.head, row, point)
        self.wall_ms = max(self.wall_ms, row.wall_ms)
        return event

    def _install(self, pruning: Pruning) -> None:
        try:
            carry = decode(LedgerCarry, pruning.carry.encode())
        except CodecError as error:
            raise PortFault(f"the journal can't be read at sequence {pruning.point.sequence}: {error}") from None
        install_carry(self.state, carry)
        self.pruning = Pruning(pruning.point, "")  # It is long, and needed no more.


async def replay(journal: JournalReader, *, until: int | None = None) -> Replay:
    """The state that the journal holds, up to sequence ``until``, from nothing: all of the journal, and the ledger from
    where it was pruned last. Raises :class:`PortFault` for an ``until`` before that."""
    pruning = await newest_pruning(journal)
    while True:
        rebuilt = Replay(pruning=pruning)
        missed: PrunedBeyond | None = None
        try:
            await _feed_from(journal, rebuilt, until)
        except PrunedBeyond as error:
            missed = error
        if missed is None:
            _check_told(rebuilt, until)
            return rebuilt
        before, pruning = pruning, await newest_pruning(journal)
        if pruning == before:
            raise missed


async def rebuild(journal: JournalReader, snapshots: Snapshots | None = None, *, until: int | None = None) -> Replay:
    """As :func:`replay`, from the newest snapshot where there is one from which the rows go on."""
    rewound: Head | None = None
    if snapshots is not None:
        found = await find_snapshot(journal, snapshots, until=until)
        rewound = found.rewound
        if found.snapshot is not None:
            rebuilt = Replay(
                state=found.snapshot.state,
                head=found.snapshot.head,
                wall_ms=found.snapshot.wall_ms,
                snapshot_at=found.snapshot.head.sequence,
            )
            try:
                await _feed_from(journal, rebuilt, until)
            except PortFault as error:
                # The rows decide: if it is they that are damaged, a replay from nothing says so too.
                _log.warning("snapshot_unused", sequence=found.snapshot.head.sequence, reason=str(error))
            else:
                rebuilt.rewound = rewound
                return rebuilt
    rebuilt = await replay(journal, until=until)
    rebuilt.rewound = rewound
    return rebuilt


async def _feed_from(journal: JournalReader, rebuilt: Replay, until: int | None) -> None:
    """Feeds the rows after those that were fed already, up to ``until``."""
    async with aclosing(journal.read(rebuilt.head.sequence)) as rows:
        async for row in rows:
            if until is not None and row.sequence > until:
                break
            rebuilt.feed(row)


async def newest_pruning(journal: JournalReader) -> Pruning | None:
    """By which the ledger was pruned last; what it says counts once a replay has come to its row."""
    query = RowQuery(target=LEDGER_TARGET, action=PRUNED_ACTION, newest_first=True, limit=1)
    rows = await journal.page(query)
    return pruning_of(rows[0]) if rows else None


def _check_told(rebuilt: Replay, until: int | None) -> None:
    point = None if rebuilt.pruning is None else rebuilt.pruning.point
    if point is None or rebuilt.head.sequence >= point.sequence:
        return
    if until is None:
        raise PortFault(f"the journal is damaged: it ends before row {point.sequence}; restore a backup")
    if rebuilt.head.sequence <= point.until:
        raise PortFault(f"the ledger is pruned up to sequence {point.until}: what was before can't be replayed")
