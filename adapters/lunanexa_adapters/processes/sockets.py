"""Who holds a listening TCP socket, by the kernel's own tables.

Source: proc_net(5): the local address in hexadecimal, state 0A (listening), the socket's inode; and the links
``socket:[inode]`` in ``/proc/<pid>/fd``, which only the same user (or root) may read.
"""

import os
import socket
from collections import deque
from typing import Final

from lunanexa_adapters.processes.identity import PROC, boot_id, read_stat
from lunanexa_ports.processes import ProcessIdentity

_LISTENING: Final = "0A"
_LOOPBACK: Final = frozenset({
    "0100007F", "00000000",                                                  # 127.0.0.1, 0.0.0.0
    "00000000000000000000000000000000",                                      # ::
    "0000000000000000FFFF00000100007F",                                      # ::ffff:127.0.0.1
})  # fmt: skip
_REMEMBERED_PORTS: Final = 256


def listening_inodes(table: str, port: int) -> set[str]:
    """Inodes of the sockets in one table (``tcp`` or ``tcp6``) that take connections to ``127.0.0.1:port``."""
    inodes = set()
    for line in table.splitlines()[1:]:
        fields = line.split()
        if len(fields) < 10 or fields[3] != _LISTENING:
            continue
        address, _, number = fields[1].partition(":")
        if address in _LOOPBACK and number == f"{port:04X}":
            inodes.add(fields[9])
    return inodes


def owner_of_listener(port: int) -> ProcessIdentity | None:
    """The process that holds the socket: the oldest where several share it. ``None`` where it can't be told,
    also when several sockets with different owners listen there."""
    inodes: set[str] = set()
    for name in ("tcp", "tcp6"):
        try:
            inodes |= listening_inodes((PROC / "net" / name).read_text(), port)
        except OSError:
            continue
    owners = [_oldest_holder(f"socket:[{inode}]") for inode in sorted(inodes)]
    return owners[0] if owners and all(owner == owners[0] for owner in owners) else None


def _oldest_holder(link: str) -> ProcessIdentity | None:
    holders = [stat for entry in PROC.iterdir() if entry.name.isdigit() and _holds(entry.name, link)
               and (stat := read_stat(int(entry.name))) is not None]  # fmt: skip
    if not holders:
        return None
    oldest = min(holders, key=lambda stat: (stat.start_ticks, stat.pid))
    return ProcessIdentity(boot=boot_id(), pid=oldest.pid, start_ticks=oldest.start_ticks)


def _holds(pid: str, link: str) -> bool:
    directory = PROC / pid / "fd"
    try:
        names = os.listdir(directory)
    except OSError:
        return False
    for name in names:
        try:
            if os.readlink(directory / name) == link:
                return True
        except OSError:
            continue
    return False


class FreePorts:
    """Ports that were free a moment ago; one is not given out again soon, as its engine may not listen yet."""

    def __init__(self) -> None:
        self._lately: deque[int] = deque(maxlen=_REMEMBERED_PORTS)

    def take(self) -> int:
        while True:
            with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
                probe.bind(("127.0.0.1", 0))
                port: int = probe.getsockname()[1]
            if port not in self._lately:
                self._lately.append(port)
                return port
