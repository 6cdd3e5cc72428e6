"""The journal on a simulated disk, with its lease: what a database is that several processes reach."""

from bisect import bisect_right
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from operator import attrgetter
from typing import Final, TypeVar

import attrs
import trio

from lunanexa_core.ids import HolderId
from lunanexa_core.journal import Chain, Head, Row, head_after
from lunanexa_core.journal_query import RowQuery
from lunanexa_core.leadership import Lease
from lunanexa_ports.errors import PortUnavailable
from lunanexa_ports.journal import Appended, Journal
from lunanexa_ports.journal_upkeep import JournalUpkeep
from lunanexa_ports.leadership import Leadership
from lunanexa_simulation.disk import Mount, SimulatedDisk

T = TypeVar("T")

READ_ROWS: Final = 256
_SEQUENCE: Final = attrgetter("sequence")


@attrs.define
class JournalState:
    """What is on the disk. ``head.epoch`` is the newest taken epoch. ``rows`` stays the same list for ever."""

    head: Head = attrs.Factory(Head)
    rows: list[Row] = attrs.Factory(list)
    holder: HolderId | None = None
    address: str = ""
    changes: int = 0
    told: int = 0
    """How often everybody who waits was woken."""
    bell: trio.Event = attrs.Factory(trio.Event)

    @property
    def lease(self) -> Lease:
        return Lease(holder=self.holder, address=self.address, epoch=self.head.epoch, changes=self.changes)

    def hold(self, holder: HolderId | None, address: str) -> None:
        """The lease as it is after a claim, a renewal or a release."""
        self.holder, self.address, self.changes = holder, address, self.changes + 1
        self.tell()

    def tell(self) -> None:
        """Wakes who waits for a change."""
        self.told += 1
        self.bell.set()
        self.bell = trio.Event()


class SimulatedJournal(Journal, Leadership, JournalUpkeep):
    """One process's opening of the journal on a disk."""

    def __init__(self, mount: Mount) -> None:
        self._mount = mount
        self._closed = False
        self._heard = self._state.told

    @property
    def _state(self) -> JournalState:
        return self._mount.disk.state(JournalState)

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
            state.tell()
            return Appended.DURABLE

        return await self._write(append)

    async def head(self) -> Head:
        await self._read()
        return self._state.head

    async def read(self, after: int = 0, limit: int | None = None) -> AsyncGenerator[Row, None]:
        left = limit
        while left is None or left > 0:
            await self._read()
            wanted = READ_ROWS if left is None else min(READ_ROWS, left)
            rows = self._stretch(after, None)[:wanted]
            for row in rows:
                yield row
            if len(rows) < wanted:
                return
            after = rows[-1].sequence
            left = None if left is None else left - wanted

    async def page(self, query: RowQuery) -> Sequence[Row]:
        await self._read()
        stretch = self._stretch(query.after, query.before)
        return [row for row in (reversed(stretch) if query.newest_first else stretch) if query.takes(row)][
            : query.limit
        ]

    @property
    def lost_tail_accepted(self) -> bool:
        return False

    async def look(self) -> Lease:
        await self._read()
        return self._state.lease

    async def claim(self, holder: HolderId, address: str, *, seen: Lease | None, above: int = 0) -> Head | None:
        def claim() -> Head | None:
            state = self._state
            if state.holder != holder if seen is None else state.lease != seen:
                return None
            state.head = attrs.evolve(state.head, epoch=max(state.head.epoch, above) + 1)
            state.hold(holder, address)
            return state.head

        return await self._write(claim)

    async def renew(self, holder: HolderId, epoch: int) -> bool:
        def renew() -> bool:
            state = self._state
            if (state.holder, state.head.epoch) != (holder, epoch):
                return False
            state.hold(holder, state.address)
            return True

        return await self._write(renew)

    async def release(self, holder: HolderId, epoch: int) -> None:
        def release() -> None:
            state = self._state
            if (state.holder, state.head.epoch) == (holder, epoch):
                state.hold(None, "")

        await self._write(release)

    async def wait(self, within_ms: int) -> None:
        bell = self._state.bell
        with trio.move_on_after(within_ms / 1_000):
            if self._heard == self._state.told:
                await bell.wait()
        await self._read()
        self._heard = self._state.told

    async def drop_ledger(self, until: int, limit: int, *, after: int = 0) -> int:
        def drop() -> int:
            rows = self._state.rows
            stretch = [row for row in self._stretch(after, until + 1) if row is not rows[-1]]
            droppable = [row.sequence for row in stretch if row.chain is Chain.LEDGER]
            dropped = frozenset(droppable[:limit])
            rows[:] = [row for row in rows if row.sequence not in dropped]
            return len(dropped)

        return await self._write(drop)

    async def fill(self, rows: AsyncIterator[Row]) -> Head | None:
        await self._read()
        if self._state.rows:
            return None
        batch = [row async for row in rows]
        head = Head()
        for row in batch:
            head = head.after(row)

        def fill() -> Head | None:
            state = self._state
            if state.rows:
                return None
            state.rows.extend(batch)
            state.head = attrs.evolve(head, epoch=max(head.epoch, state.head.epoch))
            state.hold(None, "")
            return state.head

        return await self._write(fill)

    async def aclose(self) -> None:
        self._closed = True
        await trio.lowlevel.checkpoint()

    def _stretch(self, after: int, before: int | None) -> list[Row]:
        """Rows beyond ``after`` and below ``before``; where the ledger was pruned there are gaps."""
        rows = self._state.rows
        first = bisect_right(rows, after, key=_SEQUENCE)
        return rows[first : None if before is None else max(first, bisect_right(rows, before - 1, key=_SEQUENCE))]

    async def _write(self, change: Callable[[], T]) -> T:
        self._check()
        return await self._mount.write(change)

    async def _read(self) -> None:
        await trio.lowlevel.checkpoint()
        self._check()

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
