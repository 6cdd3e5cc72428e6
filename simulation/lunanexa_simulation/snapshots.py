"""Snapshots on a simulated disk."""

from collections.abc import Sequence

import attrs

from lunanexa_ports.errors import PortUnavailable
from lunanexa_ports.snapshots import Snapshots
from lunanexa_simulation.disk import Mount


@attrs.define
class SnapshotFiles:
    """What is on the disk, by sequence."""

    files: dict[int, bytes] = attrs.Factory(dict)


class SimulatedSnapshots(Snapshots):
    """One process's opening of the snapshots on a disk. A file is there at once, or not at all."""

    def __init__(self, mount: Mount) -> None:
        self._mount = mount

    def kept(self) -> Sequence[int]:
        return sorted(self._files(), reverse=True)

    def read(self, sequence: int) -> bytes | None:
        return self._files().get(sequence)

    def keep(self, sequence: int, data: bytes) -> None:
        files = self._files()
        if self._mount.disk.faults.full:
            raise PortUnavailable("the simulated disk is full")
        files[sequence] = data

    def drop(self, sequence: int) -> None:
        self._files().pop(sequence, None)

    def _files(self) -> dict[int, bytes]:
        self._mount.check()
        return self._mount.disk.state(SnapshotFiles).files
