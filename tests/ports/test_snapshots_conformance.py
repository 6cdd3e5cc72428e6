"""Both stores of snapshots pass the one suite."""

from pathlib import Path

import pytest

from lunanexa_adapters.files.snapshots import LocalSnapshots
from lunanexa_ports.conformance import snapshots
from lunanexa_simulation.disk import DiskFaults, SimulatedDisk
from lunanexa_simulation.snapshots import SimulatedSnapshots


@pytest.fixture(params=["simulated", "local"])
def folders(request: pytest.FixtureRequest, tmp_path: Path) -> snapshots.Folders:
    if request.param == "simulated":
        empty, broken = SimulatedDisk(), SimulatedDisk()
        broken.faults = DiskFaults(unavailable=True)
        return snapshots.Folders(
            empty=lambda: SimulatedSnapshots(empty.mount()), broken=lambda: SimulatedSnapshots(broken.mount())
        )
    file = tmp_path / "file"
    file.touch()
    return snapshots.Folders(
        empty=lambda: LocalSnapshots(tmp_path / "snapshots"), broken=lambda: LocalSnapshots(file / "below")
    )


@pytest.mark.parametrize("check", snapshots.CHECKS, ids=lambda check: check.__name__)
def test_snapshots(check: snapshots.Check, folders: snapshots.Folders) -> None:
    check(folders)
