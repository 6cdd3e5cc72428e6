"""A process to be killed: it writes to both SQLite stores and says on stdout what it was told is durable.

Usage: python -m tests.adapters.store_writer DIRECTORY
"""

import sys
from pathlib import Path

import trio

from lunanexa_adapters.sqlite.journal import open_sqlite_journal
from lunanexa_adapters.sqlite.node_store import open_sqlite_node_store
from lunanexa_ports.conformance.journal import rows_after
from lunanexa_ports.journal import Appended


async def write(directory: Path) -> None:
    async with (
        open_sqlite_journal(directory / "store.sqlite3") as journal,
        open_sqlite_node_store(directory / "node.sqlite3") as node,
    ):
        head = await journal.take_epoch()
        print("epoch", head.epoch, flush=True)
        while True:
            rows = rows_after(head, head.epoch, 1 + head.sequence % 7)
            assert await journal.append(head.epoch, head, rows) is Appended.DURABLE
            for row in rows:
                head = head.after(row)
            print("row", head.sequence, flush=True)
            print("start", await node.next_start_number(), flush=True)


if __name__ == "__main__":
    trio.run(write, Path(sys.argv[1]))
