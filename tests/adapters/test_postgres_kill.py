"""kill -9 of a writer, of the server process that works for it, and of the whole server, at any moment of an append.

What a writer was told is durable is there; of what it was not told there is all of its one append in hand or nothing,
decided once another holder has the lease; and the chains go on unbroken.
"""

import os
import signal
from contextlib import suppress
from typing import Final

import pytest
import trio

from lunanexa_adapters.postgres.address import parse_address
from lunanexa_adapters.postgres.journal import PostgresJournal, open_postgres_journal
from lunanexa_core.journal import Head, Row
from lunanexa_ports.conformance.journal import lead, read_all, verified
from lunanexa_ports.errors import PortUnavailable
from lunanexa_simulation.rng import Streams
from tests.adapters.postgres_writer import next_batch
from tests.adapters.writers import Writers, writers
from tests.postgres_server import PostgresServer

pytestmark = pytest.mark.slow

ROUNDS: Final = 200
SEED: Final = 37
LIMIT_S: Final = 60


def told_rows(known: Head, told: dict[str, list[int]], epoch: int) -> tuple[list[Row], list[Row]]:
    """The rows that a writer which found ``known`` was told are durable, and those that it appended then."""
    rows: list[Row] = []
    head = known
    for sequence in told["row"]:
        batch = next_batch(head, epoch)
        rows.extend(batch)
        for row in batch:
            head = head.after(row)
        assert head.sequence == sequence
    return rows, next_batch(head, epoch)


def kill_backend(postgres: PostgresServer) -> None:
    """Kills the server process that has written for the writer; the server then ends all others and recovers."""
    found = postgres.execute(
        "SELECT pid FROM pg_stat_activity WHERE application_name = 'writer'"
        " ORDER BY query LIKE '%INSERT INTO lunanexa_row%' DESC LIMIT 1"
    )
    for (pid,) in found:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


async def strike(kind: str, running: Writers, postgres: PostgresServer) -> None:
    if kind == "writer":
        running.kill()
    elif kind == "backend":
        kill_backend(postgres)
    else:
        await trio.to_thread.run_sync(postgres.stop, signal.SIGKILL)
        await trio.to_thread.run_sync(postgres.start)


async def taken_over(journal: PostgresJournal, known: Head) -> tuple[Head, list[Row]]:
    """The lease, as soon as the server gives it, and then the rows beyond ``known``."""
    with trio.fail_after(LIMIT_S):
        while True:
            with suppress(PortUnavailable):
                head = await lead(journal)
                return head, await read_all(journal, known.sequence)
            await trio.sleep(0.03)


async def test_what_was_durable_survives_kill_9_of_either_side(postgres: PostgresServer) -> None:
    schema = postgres.new_schema()
    moments = Streams(SEED).stream("kills")
    kinds = ["writer"] * 140 + ["backend"] * 50 + ["server"] * 10
    moments.shuffle(kinds)
    assert len(kinds) == ROUNDS
    head, in_hand = Head(), 0
    async with writers() as running, open_postgres_journal(parse_address(postgres.url(schema))) as journal:
        await journal.head()
        for turn, kind in enumerate(kinds):
            # The writer may die while it still connects; a server that dies then would keep it from writing at all.
            wanted = moments.randrange(0 if kind == "writer" else 1, 8)
            await running.start("postgres", postgres.url(schema, application_name="writer"))
            await running.until("row", wanted)
            await trio.sleep(moments.random() / 200)
            try:
                await strike(kind, running, postgres)
                told = await running.ended()
                assert told["ended"] == [-9 if kind == "writer" else 0]
                taken, new = await taken_over(journal, head)
                epoch = told["epoch"][0] if told["epoch"] else taken.epoch - 1
                durable, appended = told_rows(head, told, epoch)
                assert new in (durable, durable + appended)
                in_hand += new != durable
                for row in new:
                    head = head.after(row)
                assert (taken.sequence, taken.journal, taken.ledger) == (head.sequence, head.journal, head.ledger)
            except BaseException as error:
                error.add_note(f"round {turn} ({kind}) of seed {SEED}; the writer was told {dict(running.told)}")
                raise
        assert verified(await read_all(journal)) == head
    assert 0 < in_hand < ROUNDS
