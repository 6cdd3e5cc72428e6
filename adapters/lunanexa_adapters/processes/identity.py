"""Which process is which: the fields of ``/proc/<pid>/stat`` that prove it.

A pid is reused; the pair of pid and start time (clock ticks after boot) within one boot is not.
Source: proc_pid_stat(5). The name of a program stands in parentheses and may hold spaces and parentheses
itself, so that the fields after it are counted from the *last* closing one.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import attrs

from lunanexa_core.ids import BootId

PROC: Final = Path("/proc")
_BOOT_ID: Final = PROC / "sys/kernel/random/boot_id"
_NEEDED_FIELDS: Final = 20


@attrs.frozen(kw_only=True)
class ProcessStat:
    """What is needed of one process. ``state`` is the kernel's letter; ``Z`` and ``X`` hold nothing any more."""

    pid: int
    name: str
    state: str
    group: int
    session: int
    start_ticks: int

    @property
    def ended(self) -> bool:
        return self.state in ("Z", "X", "x")


def boot_id() -> BootId:
    """The kernel's identifier of this boot."""
    return BootId(_BOOT_ID.read_text().strip())


def parse_stat(line: bytes) -> ProcessStat | None:
    """The content of ``/proc/<pid>/stat``; ``None`` when it is none."""
    head, opened, rest = line.partition(b"(")
    name, closed, tail = rest.rpartition(b")")
    fields = tail.split()
    if not opened or not closed or len(fields) < _NEEDED_FIELDS:
        return None
    try:
        return ProcessStat(
            pid=int(head),
            name=name.decode(errors="replace"),
            state=fields[0].decode("ascii"),
            group=int(fields[2]),
            session=int(fields[3]),
            start_ticks=int(fields[19]),
        )
    except ValueError:
        return None


def read_stat(pid: int) -> ProcessStat | None:
    """The process that has ``pid`` at this moment, ``None`` when there is none."""
    try:
        return parse_stat((PROC / str(pid) / "stat").read_bytes())
    except OSError:
        return None


def all_stats() -> Iterator[ProcessStat]:
    """Every process that can be seen. It is no snapshot: what starts meanwhile may be missed."""
    for entry in PROC.iterdir():
        if entry.name.isdigit():
            stat = read_stat(int(entry.name))
            if stat is not None:
                yield stat
