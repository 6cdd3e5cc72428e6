"""kill -9 of a writing process: what it was told is durable is there, and the chain goes on unbroken.

This is the death of a process. That a commit also survives a power loss is SQLite's word: WAL, with
``synchronous=FULL``.
"""

import subprocess
import sys
from pathlib import Path

import pytest
import trio

from lunanexa_adapters.sqlite.journal import open_sqlite_journal
from lunanexa_adapters.sqlite.node_store import open_sqlite_node_store
from lunanexa_ports.conformance.journal import read_all, verified

ROOT = Path(__file__).parents[2]
ROUNDS = 20


async def killed_after(lines_wanted: int, directory: Path) -> dict[str, list[int]]:
    """What a writer said before it was killed, by kind; it is killed once it said ``lines_wanted`` lines."""
    process = await trio.lowlevel.open_process(
        [sys.executable, "-m", "tests.adapters.store_writer", str(directory)], stdout=subprocess.PIPE, cwd=ROOT
    )
    assert process.stdout is not None
    said = b""
    with trio.fail_after(60):
        async with process.stdout:
            async for chunk in process.stdout:
                said += chunk
                if said.count(b"\n") >= lines_wanted:
                    process.kill()
        await process.wait()
    assert process.returncode == -9
    told: dict[str, list[int]] = {"epoch": [], "row": [], "start": []}
    for line in said.decode().splitlines(keepends=True):
        if line.endswith("\n"):
            kind, _, number = line.partition(" ")
            told[kind].append(int(number))
    return told


@pytest.mark.slow
async def test_what_was_durable_survives_kill_9(tmp_path: Path) -> None:
    epochs: list[int] = []
    starts: list[int] = []
    for turn in range(ROUNDS):
        told = await killed_after(4 + turn * 13, tmp_path)
        epochs.extend(told["epoch"])
        starts.extend(told["start"])
        async with open_sqlite_journal(tmp_path / "store.sqlite3") as journal:
            head = verified(await read_all(journal))
            assert head.sequence >= told["row"][-1]
            stored = await journal.head()
            assert (stored.sequence, stored.journal, stored.ledger) == (head.sequence, head.journal, head.ledger)
            assert stored.epoch == epochs[-1]
        async with open_sqlite_node_store(tmp_path / "node.sqlite3") as node:
            starts.append(await node.next_start_number())
    assert epochs == list(range(1, ROUNDS + 1))
    assert starts == sorted(set(starts))
