"""Replay: state from the rows of a journal, each verified in its chain before it is believed."""

from contextlib import aclosing

import attrs

from lunanexa_apps.codec import CodecError
from lunanexa_apps.controller.rows import from_row, place_of
from lunanexa_core.journal import Head, Row, check_row
from lunanexa_core.kernel.apply import apply
from lunanexa_core.state import State
from lunanexa_ports.errors import PortFault
from lunanexa_ports.journal import Journal


@attrs.define
class Replay:
    """State as far as rows were fed."""

    state: State = attrs.Factory(State)
    head: Head = attrs.Factory(Head)
    wall_ms: int = 0

    def feed(self, row: Row) -> None:
        """Takes the next row. Raises :class:`PortFault` when it does not belong there."""
        fault = check_row(self.head, row)
        if fault is not None:
            raise PortFault(f"the journal is damaged at sequence {row.sequence}: {fault.value}; restore a backup")
        try:
            event = from_row(row)
        except CodecError as error:
            raise PortFault(f"the journal can't be read at sequence {row.sequence}: {error}") from None
        apply(self.state, event, epoch=row.epoch, wall_ms=row.wall_ms, place=place_of(row))
        self.head = self.head.after(row)
        self.wall_ms = max(self.wall_ms, row.wall_ms)


async def replay(journal: Journal, *, until: int | None = None) -> Replay:
    """The state that the journal holds, up to sequence ``until``."""
    rebuilt = Replay()
    async with aclosing(journal.read()) as rows:
        async for row in rows:
            if until is not None and row.sequence > until:
                break
            rebuilt.feed(row)
    return rebuilt
