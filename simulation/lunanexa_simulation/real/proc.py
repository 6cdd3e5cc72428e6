"""What /proc tells of the processes of an installation, after proc(5)."""

import contextlib
import os
from pathlib import Path
from typing import Final

_PROGRAMS: Final = (
    "lunanexa_apps.controller.main",
    "lunanexa_apps.node.main",
    "lunanexa_apps.replayer.main",
    "lunanexa-engine",
    "launcher.py",
)


def command_line(pid: int) -> list[str]:
    """The arguments; none when the process is gone."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")[:-1]
    return []


def processes_that_hold(folder: Path) -> dict[int, str]:
    """The running processes whose command line names ``folder``, or which have something in it open, with
    their command lines."""
    found = {}
    for pid in _pids():
        with contextlib.suppress(OSError):  # gone meanwhile, or another user's
            line = " ".join(command_line(pid))
            entry = Path(f"/proc/{pid}")
            links = [entry / "cwd", *(entry / "fd").iterdir()]
            if str(folder) in line or any(_points_into(folder, link) for link in links):
                found[pid] = line
    return found


def ours_that_hold(folder: Path) -> dict[int, str]:
    """Of these the processes of our programs: somebody's shell may well be in there too."""
    found = processes_that_hold(folder)
    return {pid: line for pid, line in found.items() if pid != os.getpid() and any(one in line for one in _PROGRAMS)}


def engines_in(folder: Path) -> list[int]:
    """The reference engines whose node's folder this is. A launcher is none yet."""
    found = []
    for pid in _pids():
        line = command_line(pid)
        names = {os.path.basename(word) for word in line}
        if "lunanexa-engine" in names and "launcher.py" not in names and _points_into(folder, Path(f"/proc/{pid}/cwd")):
            found.append(pid)
    return found


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdecimal()]


def _points_into(folder: Path, link: Path) -> bool:
    with contextlib.suppress(OSError):
        return Path(os.readlink(link)).is_relative_to(folder)
    return False
