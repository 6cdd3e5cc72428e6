"""Driven port: the files that hold snapshots, each by the sequence of the row that it is of."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Protocol


class Snapshots(Protocol):
    """What the bytes mean is not known here. One process at a time keeps and drops; others may read meanwhile.

    Raises :class:`~lunanexa_ports.errors.PortUnavailable` (no room, no right) with a message that names the file or
    the folder; nothing has changed then. Each call blocks for as long as the disk takes."""

    @abstractmethod
    def kept(self) -> Sequence[int]:
        """The sequences of all that are there, the highest first."""

    @abstractmethod
    def read(self, sequence: int) -> bytes | None:
        """The bytes of one; ``None``: there is none."""

    @abstractmethod
    def keep(self, sequence: int, data: bytes) -> None:
        """Makes the file, or puts it in the place of the one that is there: whole, durable, for its owner only. A
        reader sees the old content or the new."""

    @abstractmethod
    def drop(self, sequence: int) -> None:
        """Removes the file, if it is there. Idempotent."""
