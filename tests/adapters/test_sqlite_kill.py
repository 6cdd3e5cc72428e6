"""kill -9 of a writing process, at any moment of its work.

What it was told is durable is there, of what it was not told there is all of its one append in hand or nothing, and the
chains go on unbroken.

This is the death of a process. That a commit also survives a power loss is SQLite's word: WAL, with
``synchronous=FULL``.
"""

from pathlib import Path
from typing import Final

import attrs
import pytest
import trio

from lunanexa_adapters.sqlite.journal import open_sqlite_journal
from lunanexa_adapters.sqlite.node_store import open_sqlite_node_store
from lunanexa_core.journal import Head, Row
from lunanexa_ports.conformance.journal import read_all, verified
from lunanexa_simulation.rng import Streams
from tests.adapters.store_writer import next_batch
from tests.adapters.writers import writers

ROUNDS: Final = 200
SEED: Final = 29
WHOLE_EACH: Final = 40
"""Rounds after which all rows are verified, and not only those that are new."""


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


@pytest.mark.slow
async def test_what_was_durable_survives_kill_9(tmp_path: Path) -> None:
    moments = Streams(SEED).stream("kills")
    head, starts, in_hand = Head(), list[int](), 0
    async with writers() as running:
        for turn in range(ROUNDS):
            await running.start("sqlite", tmp_path)
            await running.until("row", moments.randrange(12))
            await trio.sleep(moments.random() / 250)
            running.kill()
            told = await running.ended()
            try:
                assert told["ended"] == [-9]
                async with open_sqlite_journal(tmp_path / "store.sqlite3") as journal:
                    stored = await journal.head()
                    new = await read_all(journal, head.sequence)
                    durable, appended = told_rows(head, told, stored.epoch)
                    assert new in (durable, durable + appended)
                    in_hand += new != durable
                    for row in new:
                        head = head.after(row)
                    assert stored == attrs.evolve(head, epoch=stored.epoch)
                    assert [stored.epoch] == told["epoch"] or (stored.epoch >= head.epoch and not told["epoch"])
                    if turn % WHOLE_EACH == 0 or turn == ROUNDS - 1:
                        assert verified(await read_all(journal)) == head
                starts.extend(told["start"])
                async with open_sqlite_node_store(tmp_path / "node.sqlite3") as node:
                    starts.append(await node.next_start_number())
            except BaseException as error:
                error.add_note(f"round {turn} of seed {SEED}; the writer was told {dict(running.told)}")
                raise
    assert starts == sorted(set(starts))
    # Else the kills came too regularly to have met an append between its commit and its answer.
    assert 0 < in_hand < ROUNDS
