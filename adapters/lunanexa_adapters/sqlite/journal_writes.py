"""What is written to the journal in an SQLite file: each a function on the writing connection, one transaction long."""

import sqlite3
from collections.abc import Sequence
from typing import Final

from lunanexa_adapters.sql_rows import COLUMNS
from lunanexa_adapters.sqlite.connection import damage, transaction
from lunanexa_adapters.sqlite.journal_reader import read_head
from lunanexa_core.ids import HolderId
from lunanexa_core.journal import Chain, Head, Row
from lunanexa_core.leadership import Lease
from lunanexa_ports.journal import Appended

_CLAIM: Final = "UPDATE head SET epoch = max(epoch, ?) + 1, holder = ?, address = ?, changes = changes + 1"
# SQLite gives the pages of dropped rows to the rows that come next: the file stops growing, and does not shrink.
_DROP: Final = """DELETE FROM row WHERE sequence IN (
    SELECT sequence FROM row WHERE chain = ? AND sequence > ? AND sequence <= ?
    AND sequence < (SELECT max(sequence) FROM row) ORDER BY sequence LIMIT ?)"""


def append(epoch: int, expected: Head, after: Head, rows: Sequence[Row], connection: sqlite3.Connection) -> Appended:
    """Moves the head, if it is the expected one, and writes ``rows``."""
    with transaction(connection):
        updated = connection.execute(
            "UPDATE head SET sequence = ?, journal = ?, ledger = ?"
            " WHERE epoch = ? AND sequence = ? AND journal = ? AND ledger = ?",
            (after.sequence, after.journal, after.ledger, epoch, expected.sequence, expected.journal, expected.ledger),
        ).rowcount
        if updated != 1:
            return Appended.FENCED
        insert_rows(rows, connection)
    return Appended.DURABLE


def insert_rows(rows: Sequence[Row], connection: sqlite3.Connection) -> None:
    """Writes ``rows``, in the transaction of the caller."""
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


def look(connection: sqlite3.Connection) -> Lease:
    """The lease of the one head."""
    found = connection.execute("SELECT holder, address, epoch, changes FROM head").fetchall()
    if len(found) != 1:
        raise damage("journal", f"the journal has {len(found)} heads")
    holder, address, epoch, changes = found[0]
    return Lease(holder=holder, address=address, epoch=epoch, changes=changes)


def claim(
    holder: HolderId, address: str, seen: Lease | None, above: int, connection: sqlite3.Connection
) -> Head | None:
    """See :meth:`~lunanexa_ports.leadership.Leadership.claim`."""
    with transaction(connection):
        asked: tuple[object, ...] = (above, holder, address)
        if seen is None:
            claimed = connection.execute(f"{_CLAIM} WHERE holder = ?", (*asked, holder))
        else:
            claimed = connection.execute(
                f"{_CLAIM} WHERE holder IS ? AND address = ? AND epoch = ? AND changes = ?",
                (*asked, seen.holder, seen.address, seen.epoch, seen.changes),
            )
        return read_head(connection) if claimed.rowcount == 1 else None


def release(holder: HolderId, epoch: int, connection: sqlite3.Connection) -> None:
    """See :meth:`~lunanexa_ports.leadership.Leadership.release`."""
    with transaction(connection):
        connection.execute(
            "UPDATE head SET holder = NULL, address = '', changes = changes + 1 WHERE holder = ? AND epoch = ?",
            (holder, epoch),
        )


def drop_ledger(after: int, until: int, limit: int, connection: sqlite3.Connection) -> int:
    """See :meth:`~lunanexa_ports.journal_upkeep.JournalUpkeep.drop_ledger`."""
    with transaction(connection):
        return connection.execute(_DROP, (Chain.LEDGER.value, after, until, limit)).rowcount


def begin_fill(connection: sqlite3.Connection) -> Head | None:
    """Begins the transaction that fills the store, and returns the head; ``None``: the store is not empty. The caller
    ends the transaction by :func:`end_fill`, or by closing the connection, which takes everything back."""
    connection.execute("BEGIN IMMEDIATE")
    head = read_head(connection)
    empty = head.sequence == 0 and connection.execute("SELECT 1 FROM row LIMIT 1").fetchone() is None
    return head if empty else None


def end_fill(head: Head, connection: sqlite3.Connection) -> Head:
    """Sets the head after the last row, with nobody leading, and makes everything durable."""
    connection.execute(
        "UPDATE head SET sequence = ?, epoch = max(epoch, ?), journal = ?, ledger = ?,"
        " holder = NULL, address = '', changes = changes + 1",
        (head.sequence, head.epoch, head.journal, head.ledger),
    )
    stored = read_head(connection)
    connection.execute("COMMIT")
    return stored
