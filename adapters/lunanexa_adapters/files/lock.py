"""One process a data directory: a kernel lock for life, which no crash can leave behind.

``flock`` belongs to the open file: it ends with the process, however that ends. The file's text only
says who holds it, for the person who is refused; the file itself is never removed.
"""

import contextlib
import errno
import fcntl
import os
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Final, TypeAlias

from lunanexa_adapters.files.atomic import make_directory
from lunanexa_adapters.files.mounts import MOUNTINFO, network_type
from lunanexa_ports.errors import PortFault, PortUnavailable
from lunanexa_ports.private_files import HeldLock, LockHeld

_TEXT_BYTES: Final = 1_024
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


class FileLock(HeldLock):
    """An open file with the lock on it."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor: int | None = descriptor

    def release(self) -> None:
        if self._descriptor is not None:
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, 0)
            os.close(self._descriptor)
            self._descriptor = None

    def __enter__(self) -> "FileLock":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


LOCKS: Final = Path("/proc/locks")


def holder_of(path: Path, *, locks: Path = LOCKS) -> str | None:
    """Who holds the lock ``path``, without touching it: by the kernel's table (proc(5)). ``None``: nobody, as far as
    this process can see."""
    try:
        inode = path.stat().st_ino
        held = any(_is_held(line.split(), inode) for line in locks.read_text("ascii", "replace").splitlines())
        return (path.read_text("utf-8", "replace").strip() or "a process") if held else None
    except OSError:
        return None


def _is_held(words: list[str], inode: int) -> bool:
    """Of ``1: FLOCK  ADVISORY  WRITE 4242 08:01:131 0 EOF``, for example; who waits has an arrow before the kind."""
    return len(words) >= 6 and words[1] == "FLOCK" and words[5].rpartition(":")[2] == str(inode)


LockOutcome: TypeAlias = FileLock | LockHeld


def describe_holder(program: str, wall_ms: int) -> str:
    """What this process, which starts at ``wall_ms``, writes into the locks that it holds."""
    started = datetime.fromtimestamp(wall_ms // 1_000, UTC)
    return f"{program} (pid {os.getpid()}, started {started:%Y-%m-%d %H:%M:%S UTC})"


def hold_lock(path: Path, holder: str, *, mounts: Path = MOUNTINFO) -> LockOutcome:
    """Takes the lock ``path`` at once, or says who has it. Makes the file (0600) and its directory (0700).

    Raises ``PortFault`` on a network file system, whose locks may be granted twice, and
    ``PortUnavailable`` when the file can't be made."""
    try:
        make_directory(path.parent)
        if (kind := network_type(path.parent, mounts)) is not None:
            raise PortFault(
                f"{path.parent} is on a network file system ({kind}), where locks and the store are not safe:"
                " choose a directory on a local disk"
            )
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except (FileExistsError, NotADirectoryError) as error:
        raise PortUnavailable(
            f"the lock {path} can't be made: a file is in the place of its folder, or above it"
        ) from error
    except OSError as error:
        mend = "free space there" if error.errno in _FULL else f"see that this user may write in {path.parent}"
        raise PortUnavailable(f"the lock {path} can't be opened ({error.strerror}): {mend}") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, holder.encode("utf-8", "replace")[:_TEXT_BYTES], 0)
    except BlockingIOError:
        text = os.pread(descriptor, _TEXT_BYTES, 0).decode("utf-8", "replace").strip()
        os.close(descriptor)
        return LockHeld(text or "a process that is just starting or ending")
    except OSError as error:
        os.close(descriptor)
        mend = "free space there" if error.errno in _FULL else "choose a directory on a local disk"
        raise PortUnavailable(f"the lock {path} can't be taken ({error.strerror}): {mend}") from error
    return FileLock(descriptor)
