"""Private files on a local disk."""

from pathlib import Path, PurePosixPath
from typing import Final

from lunanexa_adapters.files.atomic import create_atomic, remove_durably, write_atomic
from lunanexa_adapters.files.lock import LockOutcome, hold_lock
from lunanexa_adapters.files.owned_file import SECRET, read_owned_file
from lunanexa_ports.private_files import FILE_BYTES_MAX, PrivateFiles

_OWNER_ONLY: Final = 0o600


class LocalPrivateFiles(PrivateFiles):
    """The files below ``folder``, each 0600; folders that are made for them are 0700."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def read(self, name: str) -> bytes | None:
        return read_owned_file(self._path(name), SECRET)

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
