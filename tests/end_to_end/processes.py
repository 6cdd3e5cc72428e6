"""What /proc tells of the processes of an installation."""

import contextlib
import os
from pathlib import Path


def parent_of(pid: int) -> int | None:
    """The parent's pid; ``None`` when the process is gone."""
    return _stat(pid)[1]


def is_alive(pid: int) -> bool:
    """Whether the process runs: one that has ended and was not waited for yet does not."""
    return _stat(pid)[0] not in ("", "Z", "X")


def command_line(pid: int) -> list[str]:
    """The arguments; none when the process is gone."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")[:-1]
    return []


def processes_that_hold(folder: Path) -> dict[int, str]:
    """The running processes whose command line names ``folder``, or which have something in it open, with
    their command lines."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):  # gone meanwhile, or another user's
                line = " ".join(command_line(int(entry.name)))
                links = [entry / "cwd", *(entry / "fd").iterdir()]
                if str(folder) in line or any(_points_into(folder, link) for link in links):
                    found[int(entry.name)] = line
    return found


def _points_into(folder: Path, link: Path) -> bool:
    with contextlib.suppress(OSError):
        return os.readlink(link).startswith(str(folder))
    return False


def _stat(pid: int) -> tuple[str, int | None]:
    """State and parent, after proc(5); the name before them may hold anything."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return "", None
    return fields[0], int(fields[1])
