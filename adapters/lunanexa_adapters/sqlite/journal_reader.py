"""The reading side of the journal in an SQLite file: its schema, and its rows as they are asked for."""

import sqlite3
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

from lunanexa_adapters.sql_rows import COLUMNS, row_from
from lunanexa_adapters.sqlite.connection import ConnectionThread, damage
from lunanexa_adapters.sqlite.schema import Schema, open_unchanged
from lunanexa_core.journal import GENESIS, Head, Row
from lunanexa_core.journal_query import RowQuery
from lunanexa_ports.journal import JournalReader

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
        # The lease: nobody leads while the holder is NULL.
        (
            "ALTER TABLE head ADD COLUMN holder TEXT",
            "ALTER TABLE head ADD COLUMN address TEXT NOT NULL DEFAULT ''",
            "ALTER TABLE head ADD COLUMN changes INTEGER NOT NULL DEFAULT 0",
        ),
    ),
)

READ_ROWS: Final = 256
"""Rows of one read. Each is a transaction of its own, so that a long reading never keeps the WAL from
being written back."""

_TYPES: Final = (int, str, int, int, str, str, bytes, str, str)
_HEAD_TYPES: Final = (int, int, str, str)


class SqliteJournalReader(JournalReader):
    """Made by :func:`open_sqlite_journal_reader`; the writing journal is one too."""

    def __init__(self, reader: ConnectionThread) -> None:
        self._reader = reader

    async def head(self) -> Head:
        return await self._reader.submit(read_head)

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

    async def page(self, query: RowQuery) -> Sequence[Row]:
        return await self._reader.submit(partial(_page, query))

    async def aclose(self) -> None:
        """Lets the reading in hand end, then closes the file. Idempotent."""
        await self._reader.aclose()


@asynccontextmanager
async def open_sqlite_journal_reader(path: Path, *, live: bool = False) -> AsyncIterator[SqliteJournalReader]:
    """The journal in the file ``path``, in which nothing is changed. Nobody may be writing it but, with ``live``, the
    controller that has it open. Raises as the port does, also when there is no such file."""
    async with ConnectionThread("journal", partial(open_unchanged, path, JOURNAL_SCHEMA, live=live)) as reader:
        yield SqliteJournalReader(reader)


def read_head(connection: sqlite3.Connection) -> Head:
    """The one head."""
    found = connection.execute("SELECT sequence, epoch, journal, ledger FROM head").fetchall()
    if len(found) != 1:
        raise damage("journal", f"the journal has {len(found)} heads")
    if any(type(value) is not kind for value, kind in zip(found[0], _HEAD_TYPES, strict=True)):
        raise damage("journal", "the journal's head is damaged")
    sequence, epoch, journal, ledger = found[0]
    return Head(sequence=sequence, epoch=epoch, journal=journal, ledger=ledger)


def _read(after: int, limit: int, connection: sqlite3.Connection) -> list[Row]:
    found = connection.execute(
        f"SELECT {COLUMNS} FROM row WHERE sequence > ? ORDER BY sequence LIMIT ?", (after, limit)
    ).fetchall()
    return [row_of(columns) for columns in found]


def _page(query: RowQuery, connection: sqlite3.Connection) -> list[Row]:
    filters = {
        "sequence > ?": query.after,
        "sequence < ?": query.before,
        "chain = ?": None if query.chain is None else query.chain.value,
        "action = ?": query.action,
        "target = ?": query.target,
    }
    asked = {condition: value for condition, value in filters.items() if value is not None}
    found = connection.execute(
        f"SELECT {COLUMNS} FROM row WHERE {' AND '.join(asked)}"
        f" ORDER BY sequence {'DESC' if query.newest_first else 'ASC'} LIMIT ?",
        (*asked.values(), query.limit),
    ).fetchall()
    return [row_of(columns) for columns in found]


def row_of(columns: tuple[Any, ...]) -> Row:
    """The row of a record of :data:`~lunanexa_adapters.sql_rows.COLUMNS`."""
    # SQLite keeps any type in any column, so a damaged page may well be readable.
    if any(type(value) is not kind for value, kind in zip(columns, _TYPES, strict=True)):
        raise damage("journal", f"row {columns[0]} of the journal is damaged")
    row = row_from(columns)
    if row is None:
        raise damage("journal", f"row {columns[0]} of the journal is damaged")
    return row
