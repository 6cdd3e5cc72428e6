"""Rows and the head of the journal in PostgreSQL: how they are asked for, and how they are given to a statement."""

from collections.abc import Sequence
from typing import Any, Final

from psycopg.types.numeric import Int8

from lunanexa_adapters.postgres.connection import MEND, TrioConnection
from lunanexa_adapters.sql_rows import COLUMNS, row_from
from lunanexa_core.journal import Chain, Head, Row
from lunanexa_core.journal_query import RowQuery
from lunanexa_ports.errors import PortFault

HEAD: Final = "sequence, epoch, journal, ledger"
ADDED: Final = """unnest(
    %b::bigint[], %b::text[], %b::bigint[], %b::bigint[], %b::text[], %b::text[], %b::bytea[], %b::text[], %b::text[]
) AS added"""
"""A table of what :func:`columns_of` gives, in the order of
:data:`~lunanexa_adapters.sql_rows.COLUMNS`."""
# One statement, and so one moment of a store that another may be writing.
_HEAD_AND_LAST: Final = """SELECT head.sequence, head.epoch, head.journal, head.ledger,
    last.sequence, last.chain, last.epoch, last.hash
    FROM lunanexa_head AS head LEFT JOIN LATERAL (
        SELECT sequence, chain, epoch, hash FROM lunanexa_row ORDER BY sequence DESC LIMIT 1) AS last ON true"""
_BIGINT_MAX: Final = (1 << 63) - 1


def columns_of(rows: Sequence[Row]) -> tuple[object, ...]:
    """The parameters of :data:`ADDED`."""
    return (
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


def bigint(number: int) -> Int8:
    """``number``, or the highest there is."""
    return Int8(min(number, _BIGINT_MAX))


async def read_head(connection: TrioConnection, *, lock: bool = False) -> Head:
    """The one head; ``lock``: nobody else changes it until the transaction ends."""
    statement = f"SELECT {HEAD} FROM lunanexa_head{' FOR UPDATE' if lock else ''}"
    found = await (await connection.execute(statement)).fetchall()
    if len(found) != 1:
        raise PortFault(f"the journal has {len(found)} heads")
    return head_of(found[0])


def head_of(columns: Sequence[Any]) -> Head:
    """The head of a record that begins as :data:`HEAD`."""
    sequence, epoch, journal, ledger = columns[:4]
    return Head(sequence=sequence, epoch=epoch, journal=journal, ledger=ledger)


async def read_page(query: RowQuery, connection: TrioConnection) -> list[Row]:
    """See :meth:`~lunanexa_ports.journal.JournalReader.page`."""
    filters = {
        "sequence > %b": bigint(query.after),
        "sequence < %b": None if query.before is None else bigint(query.before),
        "chain = %b": None if query.chain is None else query.chain.value,
        "action = %b": query.action,
        "target = %b": query.target,
    }
    asked = {condition: value for condition, value in filters.items() if value is not None}
    if any(isinstance(value, str) and "\0" in value for value in asked.values()):
        return []  # PostgreSQL's text has no such character, so no row has.
    cursor = await connection.execute(
        f"SELECT {COLUMNS} FROM lunanexa_row WHERE {' AND '.join(asked)}"
        f" ORDER BY sequence {'DESC' if query.newest_first else 'ASC'} LIMIT %b",
        (*asked.values(), bigint(query.limit)),
        binary=True,
    )
    return [_row(columns) for columns in await cursor.fetchall()]


async def check_head(connection: TrioConnection) -> None:
    """Raises ``PortFault`` when the head is not after the newest row."""
    found = await (await connection.execute(_HEAD_AND_LAST)).fetchall()
    if len(found) != 1:
        raise PortFault(f"the journal has {len(found)} heads: {MEND}")
    head = head_of(found[0])
    sequence, chain, epoch, hash_ = found[0][4:]
    if sequence is None and head.sequence != 0:
        raise PortFault(f"the journal's head is at {head.sequence} and it has no rows: {MEND}")
    if sequence is None:
        return
    if sequence != head.sequence or hash_ != head.last(Chain(chain)) or epoch > head.epoch:
        raise PortFault(f"the journal's head at {head.sequence} is not its last row, {sequence}: {MEND}")


def _row(columns: tuple[Any, ...]) -> Row:
    row = row_from(columns)
    if row is None:
        raise PortFault(f"row {columns[0]} of the journal is damaged: {MEND}")
    return row
