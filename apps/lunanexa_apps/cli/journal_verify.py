"""Verifies rows one after the other, wherever they come from, and counts them."""

from collections import Counter
from collections.abc import Mapping
from contextlib import aclosing
from functools import partial
from typing import Any, Final

import attrs
import click

from lunanexa_apps.cli.journal_source import Source, by_pruning, rows_until
from lunanexa_apps.codec import CodecError
from lunanexa_apps.controller.rows import Pruning, from_record
from lunanexa_core.canonical import JsonValue
from lunanexa_core.events import LedgerPruned, UnknownEvent
from lunanexa_core.journal import Chain, ChainFault, Head, PrunePoint, Row, head_with, read_ledger_row, read_row
from lunanexa_ports.errors import PortFault

PROGRESS_ROWS: Final = 20_000
"""So often a line of progress: more than half a second's work."""


@attrs.define
class Verifier:
    """What was found so far; with a ``problem`` nothing more is looked at. ``point``: up to where the ledger may be
    missing. ``after``: what a stretch of the ledger alone goes on from; ``None``: it is a whole journal."""

    head: Head = attrs.Factory(Head)
    rows: Counter[Chain] = attrs.Factory(Counter)
    epochs: int = 0
    first_wall_ms: int | None = None
    last_wall_ms: int | None = None
    problem: str | None = None
    point: PrunePoint | None = None
    after: Head | None = None
    pruning: LedgerPruned | None = None
    """What the row says that tells of ``point``, once it was fed."""

    def feed(self, row: Row, total: int | None = None) -> bool:
        """Whether the row stands in its place. ``total`` is told in the progress."""
        alone = self.after is not None
        record = read_ledger_row(self.head, row) if alone else read_row(self.head, row, self.point)
        if isinstance(record, ChainFault):
            place = f", after {self.head.sequence}" if row.sequence != self.head.sequence + 1 else ""
            self.problem = f"row {row.sequence}{place}: {record.value}"
            return False
        if self.point is not None and row.sequence == self.point.sequence:
            self.pruning = _pruning(record)
        self.epochs += row.epoch > self.head.epoch
        self.rows[row.chain] += 1
        self.first_wall_ms = row.wall_ms if self.first_wall_ms is None else self.first_wall_ms
        self.last_wall_ms = row.wall_ms
        self.head = head_with(self.head, row, self.point)
        if row.sequence % PROGRESS_ROWS == 0:
            click.echo(f"{row.sequence:,} rows{'' if total is None else f' of {total:,}'}", err=True)
        return True

    def end(self, told: Head) -> None:
        """Compares the last row with the head that is told of."""
        if self.problem is not None:
            return
        if self.head.sequence != told.sequence:
            self.problem = f"the rows end at {self.head.sequence}, the head stands at {told.sequence}"
        elif (self.head.journal, self.head.ledger) != (told.journal, told.ledger):
            self.problem = f"the head at {told.sequence} bears other hashes than the rows"
        elif self.point is not None and told.sequence < self.point.sequence:
            self.problem = (
                f"the rows end at {told.sequence}; only row {self.point.sequence} says that the ledger is pruned "
                f"up to {self.point.until}"
            )

    def document(self) -> dict[str, JsonValue]:
        """All of it, for programs."""
        after = self.after
        return {
            "ok": self.problem is None,
            "problem": self.problem,
            "sequence": self.head.sequence,
            "epoch": self.head.epoch,
            "epochs": self.epochs,
            "rows": {chain.value: self.rows[chain] for chain in Chain},
            "heads": {chain.value: self.head.last(chain) for chain in Chain},
            "pruned": self._pruned(),
            "after": None if after is None else {"sequence": after.sequence, "ledger": after.ledger},
            "first_wall_ms": self.first_wall_ms,
            "last_wall_ms": self.last_wall_ms,
        }

    def _pruned(self) -> JsonValue:
        point, pruning = self.point, self.pruning
        if point is None:
            return None
        file = None if pruning is None else pruning.archive
        return {
            "until": point.until,
            "ledger": point.ledger,
            "sequence": point.sequence,
            "rows": None if pruning is None else pruning.count,
            "archive": None if file is None else {"name": file.name, "sha256": file.sha256},
        }


def _pruning(record: Mapping[str, Any]) -> LedgerPruned | None:
    try:
        event = from_record(record)
    except (UnknownEvent, CodecError):  # Of a newer version: verified it can be all the same.
        return None
    return event if isinstance(event, LedgerPruned) else None


async def verify_source(source: Source) -> Verifier:
    """Walks all rows up to the head as it is now."""
    return await by_pruning(source, partial(_verify, source), lambda verifier: verifier.problem is not None)


async def _verify(source: Source, pruning: Pruning | None) -> Verifier:
    told = await source.head()
    verifier = Verifier(point=None if pruning is None else pruning.point)
    try:
        async with aclosing(rows_until(source, told.sequence)) as rows:
            async for row in rows:
                if not verifier.feed(row, told.sequence):
                    return verifier
    except PortFault as error:
        # A row that can't even be read is what was looked for.
        verifier.problem = str(error)
    verifier.end(told)
    return verifier
