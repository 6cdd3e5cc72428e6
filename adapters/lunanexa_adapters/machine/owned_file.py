"""Files by which a machine's owner says what may be done there: nobody else may be able to write them."""

import os
import stat
from pathlib import Path
from typing import Final

from lunanexa_ports.errors import PortFault

BYTES_MAX: Final = 64 * 1024
_ROOT: Final = 0
_OTHERS_WRITE: Final = 0o022


def read_owned_file(path: Path, user: int) -> bytes | None:
    """What is in the file, which must be root's or ``user``'s; ``None``: there is none. Raises ``PortFault`` for one
    that can't be read, or that others could have written or put there."""
    try:
        # Not to wait for the writer of a named pipe.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _unreadable(path, error) from error
    try:
        _check(path, os.fstat(descriptor), user)
        _check_folder(path.parent, user)
        with open(descriptor, "rb", closefd=False) as file:
            data = file.read(BYTES_MAX + 1)
    except OSError as error:
        raise _unreadable(path, error) from error
    finally:
        os.close(descriptor)
    if len(data) > BYTES_MAX:
        raise PortFault(f"{path} is longer than {BYTES_MAX} bytes: shorten it")
    return data


def _check(path: Path, found: os.stat_result, user: int) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise PortFault(f"{path} is no regular file: put one there")
    _check_owner(path, found, user)
    if found.st_mode & _OTHERS_WRITE:
        raise PortFault(f"{path} may be written by others than its owner: run `chmod go-w {path}`")


def _check_folder(folder: Path, user: int) -> None:
    found = folder.stat()
    _check_owner(folder, found, user)
    # In a sticky folder nobody removes or renames what is another's.
    if found.st_mode & _OTHERS_WRITE and not found.st_mode & stat.S_ISVTX:
        raise PortFault(f"{folder} may be written by others than its owner: run `chmod go-w {folder}`")


def _check_owner(path: Path, found: os.stat_result, user: int) -> None:
    if found.st_uid not in (_ROOT, user):
        raise PortFault(f"{path} belongs to user {found.st_uid}: run `chown root {path}`")


def _unreadable(path: Path, error: OSError) -> PortFault:
    return PortFault(f"{path} can't be read ({error.strerror}): let the agent's user read it")
