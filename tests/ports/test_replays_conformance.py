"""Every adapter of replays passes the one suite."""

import os
import sys
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import TypeAlias

import attrs
import pytest
import trio

from lunanexa_adapters.children.replays import ChildReplays
from lunanexa_adapters.files.snapshots import LocalSnapshots
from lunanexa_adapters.postgres.address import parse_address
from lunanexa_adapters.postgres.journal import open_postgres_journal
from lunanexa_adapters.sqlite.journal import open_sqlite_journal
from lunanexa_apps.codec import encode
from lunanexa_core.journal import Row
from lunanexa_core.ledger_carry import carry_of
from lunanexa_core.state_digest import state_digest
from lunanexa_ports.conformance import replays
from lunanexa_ports.journal_upkeep import JournalUpkeep
from lunanexa_ports.replays import Replays
from lunanexa_ports.snapshots import Snapshots
from lunanexa_simulation.disk import SimulatedDisk
from lunanexa_simulation.replays import SimulatedReplays
from lunanexa_simulation.snapshots import SimulatedSnapshots
from tests.apps.snapshot_rows import put, replayed, rows_of, served
from tests.postgres_server import PostgresServer

Parts: TypeAlias = tuple[Replays, Replays, Snapshots]
"""Of a good store, of a damaged one, and where both keep what they make."""

PROGRAM = (sys.executable, "-m", "lunanexa_apps.replayer.main")
ROWS = rows_of(served(40))
AS_OF = (30, len(ROWS))
DAMAGED = [attrs.evolve(row, record=row.record[:-1] + b" }") if row.sequence == 20 else row for row in ROWS]

# A process for each replay takes its time: of the two stores that it can open only what they may do otherwise.
OF_ANY_STORE = (replays.check_the_same_state_is_kept, replays.check_carries, replays.check_damaged_rows)
CASES = [
    *(("simulated", check) for check in replays.CHECKS),
    *(pytest.param("sqlite", check, marks=pytest.mark.slow) for check in replays.CHECKS),
    *(pytest.param("postgresql", check, marks=pytest.mark.slow) for check in OF_ANY_STORE),
]


@asynccontextmanager
async def filled(opening: AbstractAsyncContextManager[JournalUpkeep], rows: list[Row]) -> AsyncIterator[None]:
    """A store with ``rows``, open as its controller has it."""

    async def each() -> AsyncIterator[Row]:
        for row in rows:
            yield row

    async with opening as store:
        assert await store.fill(each()) is not None
        yield


def child(snapshots: Path, **store: str) -> ChildReplays:
    return ChildReplays(PROGRAM, {**store, "snapshots": str(snapshots)}, os.environ, niceness=0)


@asynccontextmanager
async def simulated() -> AsyncIterator[Parts]:
    disks = SimulatedDisk(), SimulatedDisk()
    for disk, rows in zip(disks, (ROWS, DAMAGED), strict=True):
        put(disk, rows)
    own = disks[0].mount()
    good, damaged = (SimulatedReplays(disk.mount(), own) for disk in disks)
    yield good, damaged, SimulatedSnapshots(own)


@asynccontextmanager
async def sqlite(tmp_path: Path) -> AsyncIterator[Parts]:
    stores, folder = (tmp_path / "good" / "store.sqlite3", tmp_path / "bad" / "store.sqlite3"), tmp_path / "snapshots"
    async with filled(open_sqlite_journal(stores[0]), ROWS), filled(open_sqlite_journal(stores[1]), DAMAGED):
        good, damaged = (child(folder, sqlite=str(store)) for store in stores)
        yield good, damaged, LocalSnapshots(folder)


@asynccontextmanager
async def postgresql(server: PostgresServer, tmp_path: Path) -> AsyncIterator[Parts]:
    urls, folder = [server.url(server.new_schema()) for _ in range(2)], tmp_path / "snapshots"
    addresses = [parse_address(url) for url in urls]
    async with (
        filled(open_postgres_journal(addresses[0]), ROWS),
        filled(open_postgres_journal(addresses[1]), DAMAGED),
    ):
        good, damaged = (child(folder, postgresql=url) for url in urls)
        yield good, damaged, LocalSnapshots(folder)


@pytest.fixture
async def known(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[replays.Known]:
    match request.param:
        case "simulated":
            parts = simulated()
        case "sqlite":
            parts = sqlite(tmp_path)
        case _:
            parts = postgresql(request.getfixturevalue("postgres"), tmp_path)
    states = {sequence: replayed(ROWS[:sequence]).state for sequence in AS_OF}
    async with parts as (good, damaged, snapshots):
        yield replays.Known(
            replays=good,
            damaged=damaged,
            snapshots=snapshots,
            digests={sequence: state_digest(state) for sequence, state in states.items()},
            carries={sequence: encode(carry_of(state)) for sequence, state in states.items()},
            last=len(ROWS),
        )


@pytest.mark.parametrize(
    ("known", "check"), CASES, ids=lambda value: getattr(value, "__name__", value), indirect=["known"]
)
async def test_replays(known: replays.Known, check: replays.Check) -> None:
    with trio.fail_after(replays.DEADLINE_S):
        await check(known)
