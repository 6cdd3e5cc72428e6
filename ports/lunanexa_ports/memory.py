"""Driven port: the memory of this machine."""

from abc import abstractmethod
from typing import Protocol

import attrs


@attrs.frozen
class MemoryReading:
    """Main memory in MiB. ``available`` is what could be had without swapping (Linux: MemAvailable)."""

    total_mib: int
    available_mib: int


class Memory(Protocol):
    """Reads the machine's memory."""

    @abstractmethod
    def read(self) -> MemoryReading | None:
        """A fresh reading, or ``None`` when it can't be had: unknown is neither zero nor full."""
