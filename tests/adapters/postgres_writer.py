"""A process to be stopped: it appends to a PostgreSQL journal and says on stdout what it was told.

Usage: python -m tests.adapters.postgres_writer URL
"""

import sys

import trio

from lunanexa_adapters.postgres.address import parse_address
from lunanexa_adapters.postgres.journal import open_postgres_journal
from lunanexa_core.journal import Head, Row
from lunanexa_ports.conformance.journal import lead, rows_after
from lunanexa_ports.errors import PortUnavailable
from lunanexa_ports.journal import Appended


def next_batch(head: Head, epoch: int) -> list[Row]:
    """What a writer appends after ``head``."""
    return rows_after(head, epoch, 1 + head.sequence % 60)


async def write(url: str) -> None:
    async with open_postgres_journal(parse_address(url)) as journal:
        head = await lead(journal)
        print("epoch", head.epoch, flush=True)
        while True:
            rows = next_batch(head, head.epoch)
            try:
                outcome = await journal.append(head.epoch, head, rows)
            except PortUnavailable:
                print("unknown", head.sequence, flush=True)
                return
            if outcome is Appended.FENCED:
                print("fenced", head.sequence, flush=True)
                return
            for row in rows:
                head = head.after(row)
            print("row", head.sequence, flush=True)


if __name__ == "__main__":
    trio.run(write, sys.argv[1])
