"""Snapshots in one folder of a local disk."""

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from lunanexa_adapters.files.atomic import remove_durably, write_atomic
from lunanexa_ports.errors import PortUnavailable
from lunanexa_ports.snapshots import Snapshots

_SUFFIX: Final = ".snapshot"
# Only as this program writes numbers: another spelling would not be found again.
_NAME: Final = re.compile(rf"([1-9][0-9]{{0,18}}){re.escape(_SUFFIX)}")


class LocalSnapshots(Snapshots):
    """``<sequence>.snapshot`` in ``folder``, which is made when the first is kept. Other files there are left alone."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def kept(self) -> Sequence[int]:
        try:
            names = os.listdir(self._folder)
        except FileNotFoundError:
            return ()
        except OSError as error:
            raise _unavailable(self._folder, error) from error
        numbers = (match[1] for name in names if (match := _NAME.fullmatch(name)))
        return sorted(map(int, numbers), reverse=True)

    def read(self, sequence: int) -> bytes | None:
        path = self._path(sequence)
        try:
            return path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _unavailable(path, error) from error

    def keep(self, sequence: int, data: bytes) -> None:
        self._sweep()
        write_atomic(self._path(sequence), data)

    def drop(self, sequence: int) -> None:
        remove_durably(self._path(sequence))

    def _sweep(self) -> None:
        """A writer that was killed leaves its unfinished file, and nobody else would remove it."""
        try:
            for left in self._folder.glob(f".*{_SUFFIX}.*.tmp"):
                left.unlink(missing_ok=True)
        except OSError as error:
            raise _unavailable(self._folder, error) from error

    def _path(self, sequence: int) -> Path:
        return self._folder / f"{sequence}{_SUFFIX}"


def _unavailable(path: Path, error: OSError) -> PortUnavailable:
    return PortUnavailable(f"{path} can't be read ({error.strerror}): see that it belongs to this user")
