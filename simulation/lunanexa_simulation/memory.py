"""The main memory of one simulated machine."""

from lunanexa_ports.memory import Memory, MemoryReading


class SimulatedMemory(Memory):
    """``used_mib`` may be set at any time; ``readable`` unset makes the reading unknown."""

    def __init__(self, total_mib: int, used_mib: int = 0) -> None:
        self.total_mib = total_mib
        self.used_mib = used_mib
        self.readable = True

    def read(self) -> MemoryReading | None:
        if not self.readable:
            return None
        return MemoryReading(self.total_mib, max(0, self.total_mib - self.used_mib))
