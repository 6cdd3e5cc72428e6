"""The main memory of one simulated machine."""

from collections.abc import Callable

from lunanexa_ports.memory import Memory, MemoryReading


class SimulatedMemory(Memory):
    """``used_mib`` may be set at any time, and ``held_mib`` is what processes hold beside it; ``readable`` unset
    makes the reading unknown."""

    def __init__(self, total_mib: int, used_mib: int = 0, held_mib: Callable[[], int] = lambda: 0) -> None:
        self.total_mib = total_mib
        self.used_mib = used_mib
        self.readable = True
        self._held_mib = held_mib

    def read(self) -> MemoryReading | None:
        if not self.readable:
            return None
        return MemoryReading(self.total_mib, max(0, self.total_mib - self.used_mib - self._held_mib()))
