"""Verifies rows one after the other, wherever they come from, and counts them."""

from collections import Counter
from contextlib import aclosing

import attrs
import click

from lunanexa_apps.cli.journal_source import Source, rows_until
from lunanexa_core.canonical import JsonValue
from lunanexa_core.journal import Chain, Head, Row, check_row
from lunanexa_ports.errors import PortFault

PROGRESS_ROWS = 20_000
"""So often a line of progress: more than half a second's work."""


@attrs.define
class Verifier:
    """What was found so far; with a ``problem`` nothing more is looked at."""

    head: Head = attrs.Factory(Head)
    rows: Counter[Chain] = attrs.Factory(Counter)
    epochs: int = 0
    first_wall_ms: int | None = None
    last_wall_ms: int | None = None
    problem: str | None = None

    def feed(self, row: Row, total: int | None = None) -> bool:
        """Whether the row stands in its place. ``total`` is told in the progress."""
        fault = check_row(self.head, row)
        if fault is not None:
            place = f", after {self.head.sequence}" if row.sequence != self.head.sequence + 1 else ""
            self.problem = f"row {row.sequence}{place}: {fault.value}"
            return False
        self.epochs += row.epoch > self.head.epoch
        self.rows[row.chain] += 1
        self.first_wall_ms = row.wall_ms if self.first_wall_ms is None else self.first_wall_ms
        self.last_wall_ms = row.wall_ms
        self.head = self.head.after(row)
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

    def document(self) -> dict[str, JsonValue]:
        """All of it, for programs."""
        return {
            "ok": self.problem is None,
            "problem": self.problem,
            "sequence": self.head.sequence,
            "epoch": self.head.epoch,
            "epochs": self.epochs,
            "rows": {chain.value: self.rows[chain] for chain in Chain},
            "heads": {chain.value: self.head.last(chain) for chain in Chain},
            "first_wall_ms": self.first_wall_ms,
            "last_wall_ms": self.last_wall_ms,
        }


async def verify_source(source: Source) -> Verifier:
    """Walks all rows up to the head as it is now."""
    told, verifier = await source.head(), Verifier()
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
