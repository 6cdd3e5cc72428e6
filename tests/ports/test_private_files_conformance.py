"""Both stores of private files pass the one suite."""

from pathlib import Path

import pytest

from lunanexa_adapters.files.private_files import LocalPrivateFiles
from lunanexa_ports.conformance import private_files
from lunanexa_simulation.private_files import PrivateFolder, SimulatedPrivateFiles


@pytest.fixture(params=["simulated", "local"])
def folders(request: pytest.FixtureRequest, tmp_path: Path) -> private_files.Folders:
    if request.param == "simulated":
        empty, broken = PrivateFolder(), PrivateFolder(unavailable=True)
        return private_files.Folders(
            empty=lambda: SimulatedPrivateFiles(empty), broken=lambda: SimulatedPrivateFiles(broken)
        )
    file = tmp_path / "file"
    file.touch()
    return private_files.Folders(
        empty=lambda: LocalPrivateFiles(tmp_path / "data"), broken=lambda: LocalPrivateFiles(file / "below")
    )


@pytest.mark.parametrize("check", private_files.CHECKS, ids=lambda check: check.__name__)
def test_private_files(check: private_files.Check, folders: private_files.Folders) -> None:
    check(folders)
