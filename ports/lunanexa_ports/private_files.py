"""Driven port: the small files of one folder that only their owner may read: secrets, and what a process
tells others that run for the same user."""

from abc import abstractmethod
from types import TracebackType
from typing import Final, Protocol

import attrs

FILE_BYTES_MAX: Final = 64 << 10
"""Longest file that is read or written."""


@attrs.frozen
class LockHeld:
    """Another process holds the lock; ``holder`` is what it says of itself."""

    holder: str


class HeldLock(Protocol):
    """A lock that this process holds, until the block or the process ends."""

    @abstractmethod
    def release(self) -> None:
        """Lets the lock go. Idempotent."""

    @abstractmethod
    def __enter__(self) -> object:
        """Begins a block that ends with :meth:`release`."""

    @abstractmethod
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Releases."""


class PrivateFiles(Protocol):
    """Files by names like ``controller/secrets/api_key``: parts without ``..``, from the folder, which is made,
    as those between are, when something is written.

    Raises ``PortUnavailable`` (no room, no right) and ``PortFault`` (not what it must be), with a message that
    names the file and what mends it, and never what the file holds; nothing has changed then, or the change is
    whole. Each call blocks for as long as the disk takes: for a start, and for what changes rarely."""

    @abstractmethod
    def read(self, name: str) -> bytes | None:
        """What the file holds, or ``None`` when there is none. A file that others may read becomes its owner's
        alone first. Raises ``PortFault`` for one that is longer than :data:`FILE_BYTES_MAX`, is no regular
        file, or is open to others and somebody else's."""

    @abstractmethod
    def create(self, name: str, data: bytes) -> bool:
        """Makes the file, whole, durable and for its owner only. ``False``: it was there, and is left alone; of
        several processes that create one file, all go on with the first one's."""

    @abstractmethod
    def replace(self, name: str, data: bytes) -> None:
        """As :meth:`create`, but in the place of what was there; a reader sees the old content or the new."""

    @abstractmethod
    def remove(self, name: str) -> None:
        """Removes the file, if it is there, so that it stays removed. Idempotent."""

    @abstractmethod
    def lock(self, name: str, holder: str) -> HeldLock | LockHeld:
        """Takes the lock of that name at once, or says who has it in the words of its ``holder``. It ends with the
        process, however that ends; the file that bears it stays. Raises ``PortFault`` where locks are not safe."""

    @abstractmethod
    def place(self, name: str) -> str:
        """What to tell a person who looks for the file. Never raises; also for a file that is not there."""
