"""Both archives of the ledger pass the one suite."""

import stat
from pathlib import Path

import pytest

from lunanexa_adapters.files.ledger_archive import LocalLedgerArchive
from lunanexa_ports.conformance import ledger_archive
from lunanexa_simulation.disk import SimulatedDisk
from lunanexa_simulation.ledger_archive import ArchiveFolder, SimulatedLedgerArchive


@pytest.fixture(params=["simulated", "local"])
def archives(request: pytest.FixtureRequest, tmp_path: Path) -> ledger_archive.Archives:
    if request.param == "simulated":
        disk, broken = SimulatedDisk(), SimulatedDisk()
        broken.faults.full = True
        return ledger_archive.Archives(
            empty=lambda: SimulatedLedgerArchive(disk.mount()),
            files=lambda: disk.state(ArchiveFolder).files,
            broken=lambda: SimulatedLedgerArchive(broken.mount()),
        )
    file, folder = tmp_path / "file", tmp_path / "controller" / "archive"
    file.touch()
    return ledger_archive.Archives(
        empty=lambda: LocalLedgerArchive(folder),
        files=lambda: {path.name: path.read_bytes() for path in folder.iterdir()},
        broken=lambda: LocalLedgerArchive(file / "below"),
    )


@pytest.mark.parametrize("check", ledger_archive.CHECKS, ids=lambda check: check.__name__)
async def test_ledger_archive(check: ledger_archive.Check, archives: ledger_archive.Archives) -> None:
    await check(archives)


async def test_the_files_are_their_owners_alone(tmp_path: Path) -> None:
    folder = tmp_path / "archive"
    kept = await LocalLedgerArchive(folder).keep(1, 2, ledger_archive.lines(b"one\n"))
    assert stat.S_IMODE((folder / kept.name).stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
