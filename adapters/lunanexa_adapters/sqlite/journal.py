"""The journal in one SQLite file: WAL, a sync at each commit, one writing and one reading thread.

The kernel's batch is one transaction, and the fence is the condition of the update of the one head row
in it: whoever holds an older epoch or another head updates nothing and is told so.
"""

import sqlite3
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

from lunanexa_adapters.sqlite.connection import ConnectionThread, transaction
from lunanexa_adapters.sqlite.schema import BUSY_MS, Schema, open_reader, open_store
from lunanexa_core.journal import GENESIS, Chain, Head, Row, head_after
from lunanexa_ports.errors import PortFault
from lunanexa_ports.journal import Appended, Journal

JOURNAL_SCHEMA: Final = Schema(
    "journal",
    (
        (
            """CREATE TABLE head (
                one INTEGER PRIMARY KEY CHECK (one = 1), sequence INTEGER NOT NULL, epoch INTEGER NOT NULL,
                journal TEXT NOT NULL, ledger TEXT NOT NULL)""",
            f"INSERT INTO head VALUES (1, 0, 0, '{GENESIS}', '{GENESIS}')",
            """CREATE TABLE row (
                sequence INTEGER PRIMARY KEY, chain TEXT NOT NULL, epoch INTEGER NOT NULL,
                wall_ms INTEGER NOT NULL, action TEXT NOT NULL, target TEXT NOT NULL, record BLOB NOT NULL,
                previous TEXT NOT NULL, hash TEXT NOT NULL)""",
            "CREATE INDEX row_target ON row (target, sequence)",
        ),
    ),
)

READ_ROWS: Final = 256
"""Rows of one read. Each is a transaction of its own, so that a long reading never keeps the WAL from
being written back."""

_COLUMNS: Final = "sequence, chain, epoch, wall_ms, action, target, record, previous, hash"
_TYPES: Final = (int, str, int, int, str, str, bytes, str, str)


class SqliteJournal(Journal):
    """Made by :func:`open_sqlite_journal`."""

    def __init__(self, writer: ConnectionThread, reader: ConnectionThread) -> None:
        self._writer = writer
        self._reader = reader

    async def take_epoch(self) -> Head:
        return await self._writer.submit(_take_epoch)

    async def append(self, epoch: int, expected: Head, rows: Sequence[Row]) -> Appended:
        after = head_after(expected, epoch, rows)
        return await self._writer.submit(partial(_append, epoch, expected, after, tuple(rows)))

    async def head(self) -> Head:
        return await self._reader.submit(_head)

    async def read(self, after: int = 0, limit: int | None = None) -> AsyncGenerator[Row, None]:
        left = limit
        while left is None or left > 0:
            wanted = READ_ROWS if left is None else min(READ_ROWS, left)
            rows = await self._reader.submit(partial(_read, after, wanted))
            for row in rows:
                yield row
            if len(rows) < wanted:
                return
            after = rows[-1].sequence
            left = None if left is None else left - len(rows)

    async def find(self, target: str, limit: int) -> Sequence[Row]:
        return await self._reader.submit(partial(_find, target, limit))

    async def aclose(self) -> None:
        # The writer last: the last connection to close writes the WAL back.
        await self._reader.aclose()
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
        head = _head(connection)
        last = connection.execute(f"SELECT {_COLUMNS} FROM row ORDER BY sequence DESC LIMIT 1").fetchall()
        if not last and head.sequence != 0:
            raise PortFault(f"the journal's head is at {head.sequence} and it has no rows")
        for row in map(_row, last):
            if row.sequence != head.sequence or row.hash != head.last(row.chain):
                raise PortFault(f"the journal's head at {head.sequence} is not its last row, {row.sequence}")
    except BaseException:
        connection.close()
        raise
    return connection


def _take_epoch(connection: sqlite3.Connection) -> Head:
    with transaction(connection):
        connection.execute("UPDATE head SET epoch = epoch + 1")
        return _head(connection)


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
            f"INSERT INTO row ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
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


def _head(connection: sqlite3.Connection) -> Head:
    found = connection.execute("SELECT sequence, epoch, journal, ledger FROM head").fetchall()
    if len(found) != 1:
        raise PortFault(f"the journal has {len(found)} heads")
    sequence, epoch, journal, ledger = found[0]
    return Head(sequence=sequence, epoch=epoch, journal=journal, ledger=ledger)


def _read(after: int, limit: int, connection: sqlite3.Connection) -> list[Row]:
    found = connection.execute(
        f"SELECT {_COLUMNS} FROM row WHERE sequence > ? ORDER BY sequence LIMIT ?", (after, limit)
    ).fetchall()
    return [_row(columns) for columns in found]


def _find(target: str, limit: int, connection: sqlite3.Connection) -> list[Row]:
    found = connection.execute(
        f"SELECT {_COLUMNS} FROM row WHERE target = ? ORDER BY sequence DESC LIMIT ?", (target, limit)
    ).fetchall()
    return [_row(columns) for columns in reversed(found)]


def _row(columns: tuple[Any, ...]) -> Row:
    # SQLite keeps any type in any column, so a damaged page may well be readable.
    if any(type(value) is not kind for value, kind in zip(columns, _TYPES, strict=True)):
        raise PortFault(f"row {columns[0]} of the journal is damaged")
    sequence, chain, epoch, wall_ms, action, target, record, previous, hash_ = columns
    if chain not in (Chain.JOURNAL.value, Chain.LEDGER.value):
        raise PortFault(f"row {sequence} of the journal is damaged")
    return Row(
        sequence=sequence,
        chain=Chain(chain),
        epoch=epoch,
        wall_ms=wall_ms,
        action=action,
        target=target,
        record=record,
        previous=previous,
        hash=hash_,
    )
