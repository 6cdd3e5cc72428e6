"""The counter of a node without a network: a file beside its owner's policy, of lines of which the highest counts."""

import errno
import os
from pathlib import Path
from typing import Final

from lunanexa_adapters.files.atomic import sync_directory
from lunanexa_adapters.files.bundle_files import read_bounded
from lunanexa_adapters.files.owned_file import check_owned, word_of
from lunanexa_adapters.files.presence import is_there
from lunanexa_ports.errors import PortFault, PortUnavailable

_BYTES_MAX: Final = 1 << 20
_DIGITS_MAX: Final = 19
_FLAGS: Final = os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_MODE: Final = 0o600


class GenerationCounter:
    """Whoever can remove the file, or write in its folder, can set it back: so it, and its folder, must be root's or
    this user's, and nobody else's to write."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> int:
        """0 where there is no file. Raises ``PortFault``."""
        try:
            lines = read_bounded(self._path, _BYTES_MAX).split(b"\n")
        except FileNotFoundError:
            return 0
        except ValueError as error:
            raise PortFault(f"{error}, so it is no counter: move it away") from error
        except OSError as error:
            raise PortFault(self._unusable(error)) from error
        # Behind the last end of a line is what a power loss cut.
        return max((int(line) for line in lines[:-1] if line.isdigit() and len(line) <= _DIGITS_MAX), default=0)

    def raise_to(self, generation: int) -> None:
        """Durable when this returns; never lower. Makes the file where there is none. Raises ``PortFault``, also when
        nothing needs to be written and nothing could be, and ``PortUnavailable``."""
        descriptor = self._open(os.O_CREAT)
        try:
            check_owned(self._path, descriptor, word_of(os.geteuid()))
            if generation > self.read():
                # A line of its own, also behind one that a power loss cut, or a full disk.
                line = f"\n{generation}\n".encode()
                if os.write(descriptor, line) < len(line):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                os.fsync(descriptor)
                sync_directory(self._path.parent)
        except OSError as error:
            raise PortUnavailable(self._unusable(error)) from error
        finally:
            os.close(descriptor)

    def look(self) -> str:
        """What is there, for a person; nothing is changed. Raises ``PortFault`` where it could not be raised."""
        if not is_there(self._path) and os.access(self._path.parent, os.W_OK | os.X_OK):
            return f"{self._path} is made at the first start"
        descriptor = self._open(0)
        try:
            check_owned(self._path, descriptor, word_of(os.geteuid()))
        except OSError as error:
            raise PortFault(self._unusable(error)) from error
        finally:
            os.close(descriptor)
        highest = self.read()
        return f"{self._path}: " + (f"generation {highest} is the highest so far" if highest else "nothing yet")

    def _open(self, more: int) -> int:
        try:
            return os.open(self._path, _FLAGS | more, _MODE)
        except OSError as error:
            raise PortFault(self._unusable(error)) from error

    def _unusable(self, error: OSError) -> str:
        make = f"install -o $(id -un) -m 600 /dev/null {self._path}"
        return f"the counter {self._path} can't be used ({error.strerror}): as root, for this user: {make}"
