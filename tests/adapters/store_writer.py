"""A process to be killed: it writes to both SQLite stores and says on stdout what it was told is durable.

Usage: python -m tests.adapters.writers, then ``sqlite DIRECTORY`` on its stdin.
"""

from pathlib import Path

from lunanexa_adapters.sqlite.journal import open_sqlite_journal
from lunanexa_adapters.sqlite.node_store import open_sqlite_node_store
from lunanexa_core.journal import Head, Row
from lunanexa_ports.conformance.journal import lead, rows_after
from lunanexa_ports.journal import Appended


def next_batch(head: Head, epoch: int) -> list[Row]:
    """What a writer appends after ``head``: from one small row to some that fill many pages."""
    return rows_after(head, epoch, 1 + head.sequence % 7, text="x" * (head.sequence * 7_919 % 6_000))


async def write(directory: Path) -> None:
    async with (
        open_sqlite_journal(directory / "store.sqlite3") as journal,
        open_sqlite_node_store(directory / "node.sqlite3") as node,
    ):
        head = await lead(journal)
        print("epoch", head.epoch, flush=True)
        while True:
            rows = next_batch(head, head.epoch)
            assert await journal.append(head.epoch, head, rows) is Appended.DURABLE
            for row in rows:
                head = head.after(row)
            print("row", head.sequence, flush=True)
            print("start", await node.next_start_number(), flush=True)
