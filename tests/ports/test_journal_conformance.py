"""Both journals pass the one suite."""

from pathlib import Path

import pytest

from lunanexa_adapters.sqlite.journal import open_sqlite_journal
from lunanexa_ports.conformance import journal
from lunanexa_simulation.disk import SimulatedDisk
from lunanexa_simulation.journal import open_simulated_journal


@pytest.fixture(params=["simulated", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> journal.OpenJournal:
    if request.param == "simulated":
        disk = SimulatedDisk()
        return lambda: open_simulated_journal(disk)
    return lambda: open_sqlite_journal(tmp_path / "controller" / "store.sqlite3")


@pytest.mark.parametrize("check", journal.CHECKS, ids=lambda check: check.__name__)
async def test_journal(check: journal.Check, store: journal.OpenJournal) -> None:
    await check(store)
