"""Composition root of the replayer, which :class:`~lunanexa_adapters.children.replays.ChildReplays` starts.

Standard input brings one order, a line of JSON (it may hold a password, which an argument would show), and stays
open for as long as whoever ordered it lives. Standard output takes the answer: a line of JSON, then the carry if one
was ordered.
"""

import os
import sys
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import attrs
import trio

from lunanexa_adapters.children.replays import CARRIED, DIFFERS, FAULT, KEPT, ORDER_BYTES_MAX, UNAVAILABLE
from lunanexa_adapters.files.snapshots import LocalSnapshots
from lunanexa_adapters.postgres.address import parse_address
from lunanexa_adapters.postgres.journal import open_postgres_journal
from lunanexa_adapters.sqlite.journal_reader import open_sqlite_journal_reader
from lunanexa_apps.codec import decode
from lunanexa_apps.daemon import leaves, start_logging
from lunanexa_apps.replayer.work import make_carry, make_snapshot
from lunanexa_core.canonical import canonical_json
from lunanexa_core.events import UnknownEvent
from lunanexa_ports.errors import PortFault, PortUnavailable
from lunanexa_ports.journal import JournalReader


@attrs.frozen(kw_only=True)
class Order:
    """One replay. Of ``sqlite`` (a path) and ``postgresql`` (a URL) one is given; without a digest a carry is made."""

    sqlite: str | None = None
    postgresql: str | None = None
    snapshots: str
    log_format: str = "auto"
    until: int
    digest: str | None = None


def main() -> int:
    order = decode(Order, sys.stdin.buffer.readline(ORDER_BYTES_MAX))
    start_logging(order.log_format, verbose=False)
    try:
        said, carry = trio.run(_run, order)
        text = ""
    except* (PortUnavailable, PortFault, UnknownEvent) as group:
        first = leaves(group)[0]
        said, text, carry = UNAVAILABLE if isinstance(first, PortUnavailable) else FAULT, str(first), b""
    sys.stdout.buffer.write(canonical_json({"said": said, "text": text}) + b"\n" + carry)
    sys.stdout.buffer.flush()
    return 0


async def _run(order: Order) -> tuple[str, bytes]:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_end_with_orderer)
        found = await _replay(order)
        nursery.cancel_scope.cancel("the answer is there")
    return found


async def _replay(order: Order) -> tuple[str, bytes]:
    snapshots = LocalSnapshots(Path(order.snapshots))
    async with _open_journal(order) as journal:
        if order.digest is None:
            return CARRIED, await make_carry(journal, snapshots, order.until)
        same = await make_snapshot(journal, snapshots, order.until, order.digest)
        return KEPT if same else DIFFERS, b""


def _open_journal(order: Order) -> AbstractAsyncContextManager[JournalReader]:
    if order.postgresql is not None:
        # What the controller has accepted or refused is not asked anew: nothing is written here.
        return open_postgres_journal(parse_address(order.postgresql), accept_lost_tail=True)
    assert order.sqlite is not None, "an order names a store"
    return open_sqlite_journal_reader(Path(order.sqlite), live=True)


async def _end_with_orderer() -> None:
    """Ends the process when nobody waits for it any more; what it writes is whole or not there."""
    async with trio.lowlevel.FdStream(os.dup(sys.stdin.fileno())) as stream:
        while await stream.receive_some(64):
            pass
        os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
