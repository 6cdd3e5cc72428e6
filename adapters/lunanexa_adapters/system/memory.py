"""Main memory by Linux's /proc/meminfo (proc(5))."""

import re
from pathlib import Path
from typing import Final

from lunanexa_ports.memory import Memory, MemoryReading

MEMINFO: Final = Path("/proc/meminfo")
_LINE: Final = re.compile(r"^(MemTotal|MemAvailable):\s+(\d+) kB$", re.MULTILINE)


class SystemMemory(Memory):
    """Reads ``path`` anew each time."""

    def __init__(self, path: Path = MEMINFO) -> None:
        self._path = path

    def read(self) -> MemoryReading | None:
        try:
            text = self._path.read_text("ascii", "replace")
        except OSError:
            return None
        return parse_meminfo(text)


def parse_meminfo(text: str) -> MemoryReading | None:
    """The reading in ``text``, or ``None`` when one of both values is missing or they contradict."""
    found = {name: int(kib) // 1024 for name, kib in _LINE.findall(text)}
    total_mib, available_mib = found.get("MemTotal"), found.get("MemAvailable")
    if total_mib is None or available_mib is None or not 0 <= available_mib <= total_mib or total_mib == 0:
        return None
    return MemoryReading(total_mib, available_mib)
