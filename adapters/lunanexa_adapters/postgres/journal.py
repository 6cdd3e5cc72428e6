"""The journal in PostgreSQL: one connection writes, a few read, and no transaction outlives its one statement.

An append is one statement that holds the fence in itself: the one head row moves only from the expected epoch, sequence
and hashes, and rows are inserted only where it moved. Whoever claims the lease changes the same row, so PostgreSQL puts
the two one after the other: an append in flight is durable before the epoch is taken, or writes nothing.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Final

import trio
from psycopg.types.numeric import Int8

from lunanexa_adapters.postgres import leadership, upkeep
from lunanexa_adapters.postgres.address import PostgresAddress
from lunanexa_adapters.postgres.connection import TrioConnection
from lunanexa_adapters.postgres.listening import NOTIFY, Listener
from lunanexa_adapters.postgres.pool import Pool
from lunanexa_adapters.postgres.readiness import Readiness
from lunanexa_adapters.postgres.rows import ADDED, check_head, columns_of, read_head, read_page
from lunanexa_adapters.postgres.schema import JOURNAL_SCHEMA, prepare_schema
from lunanexa_adapters.sql_rows import COLUMNS
from lunanexa_core.ids import HolderId
from lunanexa_core.journal import Head, Row, head_after
from lunanexa_core.journal_query import RowQuery
from lunanexa_core.leadership import Lease
from lunanexa_ports.journal import Appended, Journal
from lunanexa_ports.journal_upkeep import JournalUpkeep
from lunanexa_ports.leadership import Leadership

READ_ROWS: Final = 256
"""Rows of one read, which is one statement: a reader that stands still holds nothing in the server."""

_APPEND: Final = f"""WITH moved AS (
    UPDATE lunanexa_head SET sequence = %b, journal = %b, ledger = %b
    WHERE epoch = %b AND sequence = %b AND journal = %b AND ledger = %b RETURNING {NOTIFY})
INSERT INTO lunanexa_row ({COLUMNS})
SELECT added.* FROM moved CROSS JOIN {ADDED}"""


class PostgresJournal(Journal, Leadership, JournalUpkeep):
    """Made by :func:`open_postgres_journal`. The server is asked for at the first use, which makes or changes the
    schema and raises what it finds wrong: until then, and after it was away, the store is just not available."""

    def __init__(self, address: PostgresAddress, *, accept_lost_tail: bool = False) -> None:
        self._address = address
        self._accept_lost_tail = accept_lost_tail
        self._may_lose_tail = False
        self._writer = Pool(address, 1)
        # Of its own: a renewal must not wait for the answer to an append.
        self._lease = Pool(address, 1)
        self._readers = Pool(address, address.readers_max)
        self._listener = Listener(address)
        self._ready = Readiness(self._prepare)

    @property
    def lost_tail_accepted(self) -> bool:
        return self._may_lose_tail

    async def append(self, epoch: int, expected: Head, rows: Sequence[Row]) -> Appended:
        work = partial(_append, epoch, expected, head_after(expected, epoch, rows), tuple(rows))
        await self._ready()
        # Bounded by the pool: connecting and the answer each have a deadline there.
        with trio.CancelScope(shield=True):
            outcome = await self._writer.once(work)
        return outcome  # noqa: RET504  # from within the scope mypy takes it for one that may not return

    async def head(self) -> Head:
        await self._ready()
        return await self._readers.repeat(read_head)

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

    async def page(self, query: RowQuery) -> Sequence[Row]:
        await self._ready()
        return await self._readers.repeat(partial(read_page, query))

    async def look(self) -> Lease:
        await self._ready()
        return await self._readers.repeat(leadership.look)

    async def claim(self, holder: HolderId, address: str, *, seen: Lease | None, above: int = 0) -> Head | None:
        await self._ready()
        # Once: a second try would find the row changed by the first, and say that nothing was claimed.
        claimed = await self._lease.once(partial(leadership.claim, holder, address, seen, above))
        if claimed is not None:
            self._listener.pause()
        return claimed

    async def renew(self, holder: HolderId, epoch: int) -> bool:
        await self._ready()
        return await self._lease.repeat(partial(leadership.renew, holder, epoch))

    async def release(self, holder: HolderId, epoch: int) -> None:
        await self._ready()
        await self._lease.repeat(partial(leadership.release, holder, epoch))

    async def wait(self, within_ms: int) -> None:
        await self._listener.wait(within_ms / 1_000)

    async def drop_ledger(self, until: int, limit: int, *, after: int = 0) -> int:
        await self._ready()
        return await self._readers.repeat(partial(upkeep.drop_ledger, after, until, limit))

    async def fill(self, rows: AsyncIterator[Row]) -> Head | None:
        await self._ready()
        return await upkeep.fill(self._address, rows)

    async def aclose(self) -> None:
        self._listener.close()
        for pool in (self._readers, self._lease, self._writer):
            await pool.aclose()

    async def _prepare(self) -> None:
        self._may_lose_tail = await self._writer.repeat(partial(upkeep.may_lose_tail, self._accept_lost_tail))
        await prepare_schema(self._address, JOURNAL_SCHEMA)
        await self._writer.repeat(check_head)


@asynccontextmanager
async def open_postgres_journal(
    address: PostgresAddress, *, lease_ms: int | None = None, accept_lost_tail: bool = False
) -> AsyncIterator[PostgresJournal]:
    """The journal in the database at ``address``, made where there is none; nothing is asked of the server yet.
    ``lease_ms``: that of who may lead it; it bounds what the server and the network may take. Raises ``PortFault``
    when the address has longer limits."""
    if lease_ms is not None:
        address = address.within_lease(lease_ms)
    journal = PostgresJournal(address, accept_lost_tail=accept_lost_tail)
    try:
        yield journal
    finally:
        await journal.aclose()


async def _append(
    epoch: int, expected: Head, after: Head, rows: tuple[Row, ...], connection: TrioConnection
) -> Appended:
    head = (
        *(Int8(after.sequence), after.journal, after.ledger),
        *(Int8(epoch), Int8(expected.sequence), expected.journal, expected.ledger),
    )
    cursor = await connection.execute(_APPEND, (*head, *columns_of(rows)))
    if cursor.rowcount == 0:
        return Appended.FENCED
    assert cursor.rowcount == len(rows), (cursor.rowcount, len(rows))
    return Appended.DURABLE
