"""The journal in one SQLite file: WAL, a sync at each commit, one writing and one reading thread.

The kernel's batch is one transaction, and the fence is the condition of the update of the one head row
in it: whoever holds an older epoch or another head updates nothing and is told so.
"""

import sqlite3
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

from lunanexa_adapters.sqlite.connection import ConnectionThread, transaction
from lunanexa_adapters.sqlite.journal_reader import COLUMNS, JOURNAL_SCHEMA, SqliteJournalReader, read_head, row_of
from lunanexa_adapters.sqlite.schema import BUSY_MS, open_reader, open_store
from lunanexa_core.journal import Head, Row, head_after
from lunanexa_ports.errors import PortFault
from lunanexa_ports.journal import Appended, Journal


class SqliteJournal(SqliteJournalReader, Journal):
    """Made by :func:`open_sqlite_journal`."""

    def __init__(self, writer: ConnectionThread, reader: ConnectionThread) -> None:
        super().__init__(reader)
        self._writer = writer

    async def take_epoch(self) -> Head:
        return await self._writer.submit(_take_epoch)

    async def append(self, epoch: int, expected: Head, rows: Sequence[Row]) -> Appended:
        after = head_after(expected, epoch, rows)
        return await self._writer.submit(partial(_append, epoch, expected, after, tuple(rows)))

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
        journal = SqliteJournal(writer, reader)
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
            raise PortFault(f"the journal's head is at {head.sequence} and it has no rows")
        for row in map(row_of, last):
            if row.sequence != head.sequence or row.hash != head.last(row.chain):
                raise PortFault(f"the journal's head at {head.sequence} is not its last row, {row.sequence}")
    except BaseException:
        connection.close()
        raise
    return connection


def _take_epoch(connection: sqlite3.Connection) -> Head:
    with transaction(connection):
        connection.execute("UPDATE head SET epoch = epoch + 1")
        return read_head(connection)


def _append(epoch: int, expected: Head, after: Head, rows: tuple[Row, ...], connection: sqlite3.Connection) -> Appended:
    with transaction(connection):
        updated = connection.execute(
            "UPDATE head SET sequence = ?, journal = ?, ledger = ?"
            " WHERE epoch = ? AND sequence = ? AND journal = ? AND ledger = ?",
            (after.sequence, after.journal, after.ledger, epoch, expected.sequence, expected.journal, expected.ledger),
        ).rowcount
        if updated != 1:
            return Appended.FENCED
        connection.executemany(
            f"INSERT INTO row ({COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            [
                (
                    row.sequence,
                    row.chain.value,
                    row.epoch,
                    row.wall_ms,
                    row.action,
                    row.target,
                    row.record,
                    row.previous,
                    row.hash,
                )
                for row in rows
            ],
        )
    return Appended.DURABLE
