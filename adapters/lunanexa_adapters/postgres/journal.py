"""The journal in PostgreSQL: one connection writes, a few read, and no transaction outlives its one statement.

An append is one statement that holds the fence in itself: the one head row moves only from the expected epoch, sequence
and hashes, and rows are inserted only where it moved. Whoever takes an epoch changes the same row, so PostgreSQL puts
the two one after the other: an append in flight is durable before the epoch is taken, or writes nothing.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final

import trio
from psycopg.types.numeric import Int8

from lunanexa_adapters.postgres.address import PostgresAddress
from lunanexa_adapters.postgres.connection import TrioConnection
from lunanexa_adapters.postgres.pool import Pool
from lunanexa_adapters.postgres.schema import JOURNAL_SCHEMA, prepare_schema
from lunanexa_core.journal import Chain, Head, Row, head_after
from lunanexa_core.journal_query import RowQuery
from lunanexa_ports.errors import PortFault
from lunanexa_ports.journal import Appended, Journal

READ_ROWS: Final = 256
"""Rows of one read, which is one statement: a reader that stands still holds nothing in the server."""

_COLUMNS: Final = "sequence, chain, epoch, wall_ms, action, target, record, previous, hash"
_HEAD: Final = "sequence, epoch, journal, ledger"
_APPEND: Final = f"""WITH moved AS (
    UPDATE lunanexa_head SET sequence = %b, journal = %b, ledger = %b
    WHERE epoch = %b AND sequence = %b AND journal = %b AND ledger = %b RETURNING one)
INSERT INTO lunanexa_row ({_COLUMNS})
SELECT added.* FROM moved CROSS JOIN unnest(
    %b::bigint[], %b::text[], %b::bigint[], %b::bigint[], %b::text[], %b::text[], %b::bytea[], %b::text[], %b::text[]
) AS added"""
_TAKE_EPOCH: Final = f"UPDATE lunanexa_head SET epoch = epoch + 1 RETURNING {_HEAD}"
_READ_HEAD: Final = f"SELECT {_HEAD} FROM lunanexa_head"
_BIGINT_MAX: Final = (1 << 63) - 1


class PostgresJournal(Journal):
    """Made by :func:`open_postgres_journal`."""

    def __init__(self, writer: Pool, readers: Pool) -> None:
        self._writer = writer
        self._readers = readers

    async def take_epoch(self) -> Head:
        # Tried again where it may have been done: the epoch that nobody heard of is then just never used.
        return await self._writer.repeat(partial(_one_head, _TAKE_EPOCH))

    async def append(self, epoch: int, expected: Head, rows: Sequence[Row]) -> Appended:
        work = partial(_append, epoch, expected, head_after(expected, epoch, rows), tuple(rows))
        # Bounded by the pool: connecting and the answer each have a deadline there.
        with trio.CancelScope(shield=True):
            return await self._writer.once(work)
        raise AssertionError("nobody cancels this scope")

    async def head(self) -> Head:
        return await self._readers.repeat(partial(_one_head, _READ_HEAD))

    async def read(self, after: int = 0, limit: int | None = None) -> AsyncGenerator[Row, None]:
        left = limit
        while left is None or left > 0:
            wanted = READ_ROWS if left is None else min(READ_ROWS, left)
            rows = await self.page(RowQuery(after=after, limit=wanted))
            for row in rows:
                yield row
            if len(rows) < wanted:
                return
            after = rows[-1].sequence
            left = None if left is None else left - len(rows)

    async def find(self, target: str, limit: int) -> Sequence[Row]:
        rows = await self.page(RowQuery(target=target, newest_first=True, limit=limit))
        return rows[::-1]

    async def page(self, query: RowQuery) -> Sequence[Row]:
        return await self._readers.repeat(partial(_page, query))

    async def aclose(self) -> None:
        await self._readers.aclose()
        await self._writer.aclose()


@asynccontextmanager
async def open_postgres_journal(address: PostgresAddress) -> AsyncIterator[PostgresJournal]:
    """The journal in the database at ``address``, made where there is none. Raises as the port does."""
    writer, readers = Pool(address, 1), Pool(address, address.readers_max)
    journal = PostgresJournal(writer, readers)
    try:
        await prepare_schema(address, JOURNAL_SCHEMA)
        await writer.repeat(_check)
        yield journal
    finally:
        await journal.aclose()


async def _check(connection: TrioConnection) -> None:
    head = await _one_head(_READ_HEAD, connection)
    last = await _page(RowQuery(newest_first=True, limit=1), connection)
    if not last and head.sequence != 0:
        raise PortFault(f"the journal's head is at {head.sequence} and it has no rows")
    for row in last:
        if row.sequence != head.sequence or row.hash != head.last(row.chain):
            raise PortFault(f"the journal's head at {head.sequence} is not its last row, {row.sequence}")


async def _append(
    epoch: int, expected: Head, after: Head, rows: tuple[Row, ...], connection: TrioConnection
) -> Appended:
    head = (
        *(Int8(after.sequence), after.journal, after.ledger),
        *(Int8(epoch), Int8(expected.sequence), expected.journal, expected.ledger),
    )
    columns = (
        [Int8(row.sequence) for row in rows],
        [row.chain.value for row in rows],
        [Int8(row.epoch) for row in rows],
        [Int8(row.wall_ms) for row in rows],
        [row.action for row in rows],
        [row.target for row in rows],
        [row.record for row in rows],
        [row.previous for row in rows],
        [row.hash for row in rows],
    )
    cursor = await connection.execute(_APPEND, (*head, *columns))
    if cursor.rowcount == 0:
        return Appended.FENCED
    assert cursor.rowcount == len(rows), (cursor.rowcount, len(rows))
    return Appended.DURABLE


async def _one_head(statement: str, connection: TrioConnection) -> Head:
    found = await (await connection.execute(statement)).fetchall()
    if len(found) != 1:
        raise PortFault(f"the journal has {len(found)} heads")
    sequence, epoch, journal, ledger = found[0]
    return Head(sequence=sequence, epoch=epoch, journal=journal, ledger=ledger)


async def _page(query: RowQuery, connection: TrioConnection) -> list[Row]:
    filters = {
        "sequence > %b": _bigint(query.after),
        "sequence < %b": None if query.before is None else _bigint(query.before),
        "chain = %b": None if query.chain is None else query.chain.value,
        "action = %b": query.action,
        "target = %b": query.target,
    }
    asked = {condition: value for condition, value in filters.items() if value is not None}
    if any(isinstance(value, str) and "\0" in value for value in asked.values()):
        return []  # PostgreSQL's text has no such character, so no row has.
    cursor = await connection.execute(
        f"SELECT {_COLUMNS} FROM lunanexa_row WHERE {' AND '.join(asked)}"
        f" ORDER BY sequence {'DESC' if query.newest_first else 'ASC'} LIMIT %b",
        (*asked.values(), _bigint(query.limit)),
        binary=True,
    )
    return [_row(columns) for columns in await cursor.fetchall()]


def _bigint(number: int) -> Int8:
    return Int8(min(number, _BIGINT_MAX))


def _row(columns: tuple[Any, ...]) -> Row:
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
