"""The journal in one SQLite file: WAL, a sync at each commit, one writing and one reading thread.

The kernel's batch is one transaction, and the fence is the condition of the update of the one head row
in it: whoever holds an older epoch or another head updates nothing and is told so.
"""

import sqlite3
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Final

import trio

from lunanexa_adapters.sql_rows import COLUMNS
from lunanexa_adapters.sqlite import journal_writes as writes
from lunanexa_adapters.sqlite.connection import ConnectionThread, damage
from lunanexa_adapters.sqlite.journal_reader import JOURNAL_SCHEMA, SqliteJournalReader, read_head, row_of
from lunanexa_adapters.sqlite.schema import BUSY_MS, open_reader, open_store
from lunanexa_core.ids import HolderId
from lunanexa_core.journal import Head, Row, head_after
from lunanexa_core.leadership import Lease
from lunanexa_ports.journal import Appended, Journal
from lunanexa_ports.journal_upkeep import JournalUpkeep
from lunanexa_ports.leadership import Leadership

FILL_ROWS: Final = 512
"""Rows that are handed to the filling thread at once."""


class SqliteJournal(SqliteJournalReader, Journal, Leadership, JournalUpkeep):
    """Made by :func:`open_sqlite_journal`.

    The lock of the data directory keeps every other process out for the life of this one: that is the lease, so that
    a renewal writes nothing, and nothing happens to the store that did not come through here.
    """

    def __init__(self, path: Path, writer: ConnectionThread, reader: ConnectionThread) -> None:
        super().__init__(reader)
        self._path = path
        self._writer = writer
        self._changed = trio.Event()

    async def append(self, epoch: int, expected: Head, rows: Sequence[Row]) -> Appended:
        after = head_after(expected, epoch, rows)
        outcome = await self._writer.submit(partial(writes.append, epoch, expected, after, tuple(rows)))
        self._changed.set()
        return outcome

    @property
    def lost_tail_accepted(self) -> bool:
        return False

    async def look(self) -> Lease:
        return await self._reader.submit(writes.look)

    async def claim(self, holder: HolderId, address: str, *, seen: Lease | None, above: int = 0) -> Head | None:
        claimed = await self._writer.submit(partial(writes.claim, holder, address, seen, above))
        self._changed.set()
        return claimed

    async def renew(self, holder: HolderId, epoch: int) -> bool:
        lease = await self._reader.submit(writes.look)
        return (lease.holder, lease.epoch) == (holder, epoch)

    async def release(self, holder: HolderId, epoch: int) -> None:
        await self._writer.submit(partial(writes.release, holder, epoch))
        self._changed.set()

    async def wait(self, within_ms: int) -> None:
        changed = self._changed
        with trio.move_on_after(within_ms / 1_000):
            await changed.wait()
        if changed.is_set() and changed is self._changed:
            self._changed = trio.Event()

    async def drop_ledger(self, until: int, limit: int, *, after: int = 0) -> int:
        return await self._writer.submit(partial(writes.drop_ledger, after, until, limit))

    async def fill(self, rows: AsyncIterator[Row]) -> Head | None:
        # A connection of its own: what others do meanwhile must not end up in this transaction.
        async with ConnectionThread("journal", partial(open_store, self._path, JOURNAL_SCHEMA)) as filling:
            head = await filling.submit(writes.begin_fill)
            if head is None:
                return None
            batch: list[Row] = []
            async for row in rows:
                head = head.after(row)
                batch.append(row)
                if len(batch) == FILL_ROWS:
                    await filling.submit(partial(writes.insert_rows, tuple(batch)))
                    batch.clear()
            await filling.submit(partial(writes.insert_rows, tuple(batch)))
            filled = await filling.submit(partial(writes.end_fill, head))
        self._changed.set()
        return filled

    async def aclose(self) -> None:
        # The writer last: the last connection to close writes the WAL back.
        await super().aclose()
        await self._writer.aclose()


@asynccontextmanager
async def open_sqlite_journal(path: Path, *, busy_ms: int = BUSY_MS) -> AsyncIterator[SqliteJournal]:
    """The journal in the file ``path``, made where there is none. Raises as the port does."""
    async with (
        ConnectionThread("journal", partial(_open, path, busy_ms)) as writer,
        ConnectionThread("journal", partial(open_reader, path, busy_ms=busy_ms)) as reader,
    ):
        journal = SqliteJournal(path, writer, reader)
        try:
            yield journal
        finally:
            await journal.aclose()


def _open(path: Path, busy_ms: int) -> sqlite3.Connection:
    connection = open_store(path, JOURNAL_SCHEMA, busy_ms=busy_ms)
    try:
        head = read_head(connection)
        last = connection.execute(f"SELECT {COLUMNS} FROM row ORDER BY sequence DESC LIMIT 1").fetchall()
        if not last and head.sequence != 0:
            raise damage("journal", f"the journal's head is at {head.sequence} and it has no rows")
        for row in map(row_of, last):
            if row.sequence != head.sequence or row.hash != head.last(row.chain) or row.epoch > head.epoch:
                raise damage("journal", f"the journal's head at {head.sequence} is not its last row, {row.sequence}")
    except BaseException:
        connection.close()
        raise
    return connection
