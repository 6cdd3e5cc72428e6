"""Archived ledger rows as compressed files of one folder. The disk's work is done beside the loop."""

import contextlib
import hashlib
import os
import tempfile
import zlib
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Final

import attrs
import trio

from lunanexa_adapters.files.atomic import make_directory, sync_directory
from lunanexa_core.events import LedgerFile
from lunanexa_ports.errors import PortUnavailable
from lunanexa_ports.ledger_archive import LedgerArchive

_GZIP: Final = 16 + zlib.MAX_WBITS
"""The form of compressed files; neither a name nor a time is in it, so that the same rows are the same file."""


class LocalLedgerArchive(LedgerArchive):
    """The files in ``folder``, each 0600."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def keep(self, first: int, last: int, lines: AsyncIterator[bytes]) -> LedgerFile:
        work = await trio.to_thread.run_sync(self._begin)
        try:
            async for line in lines:
                await trio.to_thread.run_sync(partial(self._write, work, line))
            return await trio.to_thread.run_sync(partial(self._end, work, first, last))
        finally:
            # The disk is not waited for: closing a file that was synced, or that nobody wants.
            with contextlib.suppress(OSError):
                work.close()

    def place(self, name: str) -> str:
        return str(self._folder / name)

    def _begin(self) -> "_Work":
        with self._port_errors():
            make_directory(self._folder)
            descriptor, temporary = tempfile.mkstemp(dir=self._folder, prefix=".ledger-", suffix=".tmp")
            file = os.fdopen(descriptor, "w+b")
            return _Work(Path(temporary), file, zlib.compressobj(wbits=_GZIP))

    def _write(self, work: "_Work", line: bytes) -> None:
        with self._port_errors():
            work.file.write(work.packer.compress(line))

    def _end(self, work: "_Work", first: int, last: int) -> LedgerFile:
        with self._port_errors():
            work.file.write(work.packer.flush())
            work.file.flush()
            os.fsync(work.file.fileno())
            with work.temporary.open("rb") as written:
                digest = hashlib.file_digest(written, "sha256").hexdigest()
            path = self._folder / f"ledger-{first:012}-{last:012}.jsonl.gz"
            os.replace(work.temporary, path)
            for other in self._folder.glob(f"ledger-{first:012}-*.jsonl.gz"):
                if other != path:
                    other.unlink()
            sync_directory(self._folder)
        return LedgerFile(name=path.name, sha256=digest)

    @contextlib.contextmanager
    def _port_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise PortUnavailable(
                f"the ledger can't be archived in {self._folder} ({error.strerror}): see that this user may write"
                " there, and that the disk has room"
            ) from error


@attrs.frozen
class _Work:
    """A file that is being written under a name that nobody looks for."""

    temporary: Path
    file: BinaryIO
    packer: Any
    """zlib names no type of it."""

    def close(self) -> None:
        self.file.close()
        with contextlib.suppress(FileNotFoundError):
            self.temporary.unlink()
