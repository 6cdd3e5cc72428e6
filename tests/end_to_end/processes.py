"""What /proc tells of the processes of an installation."""

from pathlib import Path


def parent_of(pid: int) -> int | None:
    """The parent's pid; ``None`` when the process is gone."""
    return _stat(pid)[1]


def is_alive(pid: int) -> bool:
    """Whether the process runs: one that has ended and was not waited for yet does not."""
    return _stat(pid)[0] not in ("", "Z", "X")


def _stat(pid: int) -> tuple[str, int | None]:
    """State and parent, after proc(5); the name before them may hold anything."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return "", None
    return fields[0], int(fields[1])
