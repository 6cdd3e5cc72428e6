"""Whether an address is free to listen on, before anything is started; and if not, who has it.

The owner of a socket is found as proc(5) tells: its inode in ``/proc/net/tcp``, and the process with that
socket among its open files, where this user may look.
"""

import contextlib
import errno
import os
from collections.abc import Iterator
from typing import Final

import attrs
import trio

from lunanexa_apps.setting_kinds import HostPort

_LISTENING: Final = "0A"


@attrs.frozen(kw_only=True)
class CanNotListen:
    """Why not, and what to do."""

    message: str
    hint: str


async def check_listen(listen: HostPort, *, flag: str = "--listen") -> HostPort | CanNotListen:
    """The address to use: the same one, with a port of the system's choice in place of 0. ``flag`` is the option that
    chooses another."""
    try:
        listeners = await trio.open_tcp_listeners(listen.port, host=listen.host)
    except OSError as error:
        return _refusal(listen, error, flag)
    port: int = listeners[0].socket.getsockname()[1]
    for listener in listeners:
        await listener.aclose()
    return HostPort(listen.host, port)


def _refusal(listen: HostPort, error: OSError, flag: str) -> CanNotListen:
    match error.errno:
        case errno.EADDRINUSE:
            holder = holder_of(listen.port)
            who = f"{holder} listens there already" if holder else "something listens there already"
            return CanNotListen(
                message=f"{listen} is in use: {who}",
                hint=f"stop it, or choose another address: {flag} {HostPort(listen.host, _other(listen.port))}",
            )
        case errno.EACCES:
            return CanNotListen(
                message=f"{listen}: this user may not listen there", hint=f"choose a port above 1023: {flag} HOST:PORT"
            )
        case _:
            return CanNotListen(
                message=f"{listen}: not an address of this machine ({error.strerror or error})",
                hint=f"choose one with {flag}, for example {flag} 127.0.0.1:{listen.port or 8400}",
            )


def _other(port: int) -> int:
    return port + 1 if port < 65_535 else port - 1


def holder_of(port: int) -> str | None:
    """``process PID (NAME)``; ``None`` when it can't be seen, for instance another user's."""
    inodes = set(_listening_inodes(port))
    if not inodes:
        return None
    wanted = {f"socket:[{inode}]" for inode in inodes}
    for pid in (name for name in os.listdir("/proc") if name.isdigit()):
        with contextlib.suppress(OSError):  # not ours, or gone meanwhile
            if any(os.readlink(f"/proc/{pid}/fd/{fd}") in wanted for fd in os.listdir(f"/proc/{pid}/fd")):
                return f"process {pid} ({_name(pid)})"
    return None


def _listening_inodes(port: int) -> Iterator[str]:
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(OSError), open(table, encoding="ascii") as file:
            for line in file.readlines()[1:]:
                fields = line.split()
                if fields[3] == _LISTENING and int(fields[1].rpartition(":")[2], 16) == port:
                    yield fields[9]


def _name(pid: str) -> str:
    with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as file:
        return file.read().strip()
