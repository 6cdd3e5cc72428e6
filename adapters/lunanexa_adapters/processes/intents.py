"""One small file a start: intended, then either taken by the process that became the engine, or revoked and
removed.

Whoever looks or writes holds the file's kernel lock, so that a launcher that was slow and an agent that has
given it up can never both be right.
"""

import fcntl
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from lunanexa_adapters.files.atomic import create_atomic, make_directory, remove_durably
from lunanexa_adapters.processes.launcher import PENDING
from lunanexa_core.ids import BootId, StartId, is_identifier
from lunanexa_ports.errors import PortUnavailable
from lunanexa_ports.processes import ProcessIdentity

_REVOKED: Final = b'{"revoked":true}\n'
_SUFFIX: Final = ".json"
_MAX_BYTES: Final = 4_096


class Intents:
    """The directory of all starts that are not forgotten yet."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        make_directory(directory)

    def path(self, start: StartId) -> Path:
        assert is_identifier(start), start
        return self._directory / f"{start}{_SUFFIX}"

    def create(self, start: StartId) -> bool:
        """Intends a start, durably. ``False`` when its file is there already."""
        return create_atomic(self.path(start), PENDING)

    def identity(self, start: StartId) -> ProcessIdentity | None:
        """Who took the intent. ``None`` when nobody did, and then nobody ever will: the file is gone, and a
        launcher that has opened it already reads that the start was revoked."""
        try:
            with locked(self.path(start)) as descriptor:
                data = os.pread(descriptor, _MAX_BYTES, 0)
                if data == PENDING:
                    os.pwrite(descriptor, _REVOKED, 0)
                    os.ftruncate(descriptor, len(_REVOKED))
                    os.fsync(descriptor)
                    remove_durably(self.path(start))
                    return None
        except FileNotFoundError:
            return None
        except OSError as error:
            raise PortUnavailable(f"the record of {start} can't be read: {error.strerror}") from error
        return _parse(data, start)

    def recorded(self) -> Sequence[StartId]:
        """All starts with a file, in order."""
        try:
            names = sorted(os.listdir(self._directory))
        except OSError as error:
            raise PortUnavailable(f"{self._directory} can't be read: {error.strerror}") from error
        stems = (name.removesuffix(_SUFFIX) for name in names if name.endswith(_SUFFIX))
        return [StartId(stem) for stem in stems if is_identifier(stem) and not stem.startswith(".")]

    def remove(self, start: StartId) -> None:
        remove_durably(self.path(start))


@contextmanager
def locked(path: Path) -> Iterator[int]:
    """A descriptor of a record that nobody else reads or writes during the block. Raises ``OSError``."""
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        # A launcher holds the lock for one write and its sync: waiting for it is waiting for the disk.
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield descriptor
    finally:
        os.close(descriptor)


def _parse(data: bytes, start: StartId) -> ProcessIdentity | None:
    """``None`` for a revoked start, and for a torn record: its launcher died before it became anything."""
    try:
        members = json.loads(data)
    except ValueError:
        return None
    match members:
        case {"boot": str() as boot, "pid": int() as pid, "start": str() as named, "start_ticks": int() as ticks}:
            return ProcessIdentity(boot=BootId(boot), pid=pid, start_ticks=ticks) if named == start else None
        case _:
            return None
