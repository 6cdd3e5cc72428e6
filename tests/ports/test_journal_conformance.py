"""Every journal passes the suites of the three ports that its store is behind."""

from pathlib import Path

import pytest

from lunanexa_adapters.postgres.address import parse_address
from lunanexa_adapters.postgres.journal import open_postgres_journal
from lunanexa_adapters.sqlite.journal import open_sqlite_journal
from lunanexa_ports.conformance import journal, journal_upkeep, leadership
from lunanexa_simulation.disk import SimulatedDisk
from lunanexa_simulation.journal import open_simulated_journal
from tests.postgres_server import PostgresServer


@pytest.fixture(params=["simulated", "sqlite", pytest.param("postgres", marks=pytest.mark.slow)])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> journal.OpenJournal:
    if request.param == "simulated":
        disk = SimulatedDisk()
        return lambda: open_simulated_journal(disk)
    if request.param == "postgres":
        server: PostgresServer = request.getfixturevalue("postgres")
        address = parse_address(server.url(server.new_schema()))
        return lambda: open_postgres_journal(address)
    return lambda: open_sqlite_journal(tmp_path / "controller" / "store.sqlite3")


@pytest.mark.parametrize("check", journal.CHECKS, ids=lambda check: check.__name__)
async def test_journal(check: journal.Check, store: journal.OpenJournal) -> None:
    await check(store)


@pytest.mark.parametrize("check", leadership.CHECKS, ids=lambda check: check.__name__)
async def test_leadership(check: journal.Check, store: journal.OpenJournal) -> None:
    await check(store)


@pytest.mark.parametrize("store", ["simulated", pytest.param("postgres", marks=pytest.mark.slow)], indirect=True)
@pytest.mark.parametrize("check", leadership.SHARED_CHECKS, ids=lambda check: check.__name__)
async def test_leadership_of_several(check: journal.Check, store: journal.OpenJournal) -> None:
    await check(store)


@pytest.mark.parametrize("check", journal_upkeep.CHECKS, ids=lambda check: check.__name__)
async def test_upkeep(check: journal.Check, store: journal.OpenJournal) -> None:
    await check(store)
