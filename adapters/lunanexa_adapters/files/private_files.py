"""Private files on a local disk."""

import os
import stat
from pathlib import Path, PurePosixPath
from typing import Final

from lunanexa_adapters.files.atomic import create_atomic, remove_durably, write_atomic
from lunanexa_adapters.files.lock import LockOutcome, hold_lock
from lunanexa_ports.errors import PortFault, PortUnavailable
from lunanexa_ports.private_files import FILE_BYTES_MAX, PrivateFiles

_OWNER_ONLY: Final = 0o600
_OTHERS: Final = 0o077


class LocalPrivateFiles(PrivateFiles):
    """The files below ``folder``, each 0600; folders that are made for them are 0700."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def read(self, name: str) -> bytes | None:
        path = self._path(name)
        try:
            # Not to wait for the writer of a named pipe.
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _unreadable(path, error) from error
        try:
            data = _read(descriptor, path)
        except OSError as error:
            raise _unreadable(path, error) from error
        finally:
            os.close(descriptor)
        if len(data) > FILE_BYTES_MAX:
            raise PortFault(f"{path} is longer than {FILE_BYTES_MAX} bytes, so it is another file: move it away")
        return data

    def create(self, name: str, data: bytes) -> bool:
        assert len(data) <= FILE_BYTES_MAX, name
        return create_atomic(self._path(name), data, _OWNER_ONLY)

    def replace(self, name: str, data: bytes) -> None:
        assert len(data) <= FILE_BYTES_MAX, name
        write_atomic(self._path(name), data, _OWNER_ONLY)

    def remove(self, name: str) -> None:
        remove_durably(self._path(name))

    def lock(self, name: str, holder: str) -> LockOutcome:
        return hold_lock(self._path(name), holder)

    def place(self, name: str) -> str:
        return str(self._path(name))

    def _path(self, name: str) -> Path:
        inside = PurePosixPath(name)
        assert inside.parts, "a file has a name"
        assert not inside.is_absolute(), name
        assert ".." not in inside.parts, name
        return self._folder / inside


def _read(descriptor: int, path: Path) -> bytes:
    """All of it, or one byte more than is allowed."""
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        raise PortFault(f"{path} is no regular file: move it away")
    if mode & _OTHERS:
        _tighten(descriptor, path)
    with open(descriptor, "rb", closefd=False) as file:
        return file.read(FILE_BYTES_MAX + 1)


def _tighten(descriptor: int, path: Path) -> None:
    try:
        os.fchmod(descriptor, _OWNER_ONLY)
    except OSError as error:
        raise PortFault(
            f"{path} may be read by others, and that can't be changed ({error.strerror}):"
            f" run `chmod 600 {path}` as its owner"
        ) from error


def _unreadable(path: Path, error: OSError) -> PortUnavailable:
    return PortUnavailable(f"{path} can't be read ({error.strerror}): see that it is a file of this user's")
