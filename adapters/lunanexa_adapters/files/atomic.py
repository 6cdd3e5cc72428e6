"""Small files that are there wholly or not at all, also after a power loss.

A new content is written beside the file, synced, and moved over it; then the directory is synced, since
the new name is the directory's content.
"""

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from lunanexa_ports.errors import PortUnavailable


def write_atomic(path: Path, data: bytes, mode: int = 0o600) -> None:
    """Puts ``data`` into ``path`` and makes its directory where there is none. Raises ``PortUnavailable``
    with the file as it was. Blocks for as long as the disk takes to sync twice."""
    with _port_errors(path), _written(path, data, mode) as temporary:
        os.replace(temporary, path)
        sync_directory(path.parent)


def create_atomic(path: Path, data: bytes, mode: int = 0o600) -> bool:
    """As :func:`write_atomic`, but leaves a file alone that is there already and returns ``False``: of
    several programs that create one file, all go on with the first one's."""
    with _port_errors(path), _written(path, data, mode) as temporary:
        try:
            os.link(temporary, path)
        except FileExistsError:
            return False
        sync_directory(path.parent)
    return True


def remove_durably(path: Path) -> None:
    """Removes ``path``, if it is there, so that it stays removed. Raises ``PortUnavailable``."""
    with _port_errors(path):
        try:
            path.unlink()
        except FileNotFoundError:
            return
        sync_directory(path.parent)


def make_directory(directory: Path) -> None:
    """Makes ``directory`` and what is missing above it, for this user only, so that it stays made. Raises
    ``OSError``. The mode of what is there already is somebody's choice."""
    if directory.is_dir():
        return
    if not directory.parent.is_dir():
        make_directory(directory.parent)
    directory.mkdir(mode=0o700, exist_ok=True)
    sync_directory(directory.parent)


def sync_directory(directory: Path) -> None:
    """Makes the names in ``directory`` durable. Raises ``OSError``."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _port_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise PortUnavailable(
            f"{path} can't be changed ({error.strerror}): see that this user may write in {path.parent},"
            " and that the disk has room"
        ) from error


@contextlib.contextmanager
def _written(path: Path, data: bytes, mode: int) -> Iterator[str]:
    """A synced temporary file beside ``path`` with ``data``; it is gone after the block."""
    make_directory(path.parent)
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    try:
        with open(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
        yield temporary
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
