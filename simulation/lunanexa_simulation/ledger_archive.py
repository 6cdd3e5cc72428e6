"""The ledger's archive on a simulated disk."""

import gzip
import hashlib
from collections.abc import AsyncIterator

import attrs

from lunanexa_core.events import LedgerFile
from lunanexa_ports.ledger_archive import LedgerArchive
from lunanexa_simulation.disk import Mount


@attrs.define
class ArchiveFolder:
    """What is on the disk: compressed files by name."""

    files: dict[str, bytes] = attrs.Factory(dict)


class SimulatedLedgerArchive(LedgerArchive):
    """One process's way to the archive on a disk."""

    def __init__(self, mount: Mount) -> None:
        self._mount = mount

    async def keep(self, first: int, last: int, lines: AsyncIterator[bytes]) -> LedgerFile:
        self._mount.check()
        packed = gzip.compress(b"".join([line async for line in lines]), mtime=0)
        name = f"ledger-{first:012}-{last:012}.jsonl.gz"

        def keep() -> None:
            files = self._mount.disk.state(ArchiveFolder).files
            for other in [other for other in files if other.startswith(f"ledger-{first:012}-")]:
                del files[other]
            files[name] = packed

        await self._mount.write(keep)
        return LedgerFile(name=name, sha256=hashlib.sha256(packed).hexdigest())

    def place(self, name: str) -> str:
        return f"/simulated/archive/{name}"
