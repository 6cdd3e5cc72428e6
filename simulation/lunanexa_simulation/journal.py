"""The journal on a simulated disk."""

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager

import attrs
import trio

from lunanexa_core.journal import Head, Row, head_after
from lunanexa_core.journal_query import RowQuery
from lunanexa_ports.errors import PortUnavailable
from lunanexa_ports.journal import Appended, Journal
from lunanexa_simulation.disk import Mount, SimulatedDisk

READ_ROWS = 256


@attrs.define
class JournalState:
    """What is on the disk. ``head.epoch`` is the newest taken epoch."""

    head: Head = attrs.Factory(Head)
    rows: list[Row] = attrs.Factory(list)


class SimulatedJournal(Journal):
    """One process's opening of the journal on a disk."""

    def __init__(self, mount: Mount) -> None:
        self._mount = mount
        self._closed = False

    @property
    def _state(self) -> JournalState:
        return self._mount.disk.state(JournalState)

    async def take_epoch(self) -> Head:
        def take() -> Head:
            state = self._state
            state.head = attrs.evolve(state.head, epoch=state.head.epoch + 1)
            return state.head

        self._check()
        return await self._mount.write(take)

    async def append(self, epoch: int, expected: Head, rows: Sequence[Row]) -> Appended:
        after = head_after(expected, epoch, rows)
        expected = attrs.evolve(expected, epoch=epoch)
        batch = tuple(rows)

        def append() -> Appended:
            state = self._state
            if state.head != expected:
                return Appended.FENCED
            state.rows.extend(batch)
            state.head = after
            return Appended.DURABLE

        self._check()
        return await self._mount.write(append)

    async def head(self) -> Head:
        await trio.lowlevel.checkpoint()
        self._check()
        return self._state.head

    async def read(self, after: int = 0, limit: int | None = None) -> AsyncGenerator[Row, None]:
        left = limit
        while left is None or left > 0:
            await trio.lowlevel.checkpoint()
            self._check()
            wanted = READ_ROWS if left is None else min(READ_ROWS, left)
            # Sequences start at 1 and have no gaps.
            rows = self._state.rows[after : after + wanted]
            for row in rows:
                yield row
            if len(rows) < wanted:
                return
            after += wanted
            left = None if left is None else left - wanted

    async def find(self, target: str, limit: int) -> Sequence[Row]:
        await trio.lowlevel.checkpoint()
        self._check()
        found: list[Row] = []
        for row in reversed(self._state.rows):
            if len(found) >= limit:
                break
            if row.target == target:
                found.append(row)
        return found[::-1]

    async def page(self, query: RowQuery) -> Sequence[Row]:
        await trio.lowlevel.checkpoint()
        self._check()
        last = None if query.before is None else max(query.before - 1, 0)
        stretch = self._state.rows[query.after : last]
        return [row for row in (reversed(stretch) if query.newest_first else stretch) if query.takes(row)][
            : query.limit
        ]

    async def aclose(self) -> None:
        self._closed = True
        await trio.lowlevel.checkpoint()

    def _check(self) -> None:
        if self._closed:
            raise PortUnavailable("the simulated journal is closed")
        self._mount.check()


@asynccontextmanager
async def open_simulated_journal(disk: SimulatedDisk) -> AsyncIterator[SimulatedJournal]:
    """The journal on ``disk``, on a mount of its own. Raises as the port does."""
    mount = disk.mount()
    mount.check()
    journal = SimulatedJournal(mount)
    try:
        yield journal
    finally:
        with trio.CancelScope(shield=True):
            await journal.aclose()
