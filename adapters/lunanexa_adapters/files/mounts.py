"""Which file system a path lies on. Python's ``statvfs`` does not say, Linux's mount table does."""

import os
import re
from pathlib import Path
from typing import Final

MOUNTINFO: Final = Path("/proc/self/mountinfo")

# Locks of these are the server's word at best, and SQLite's shared WAL index can't be mapped on them.
NETWORK_TYPES: Final = frozenset(
    {
        "9p",
        "afs",
        "beegfs",
        "ceph",
        "cifs",
        "coda",
        "gfs2",
        "glusterfs",
        "gpfs",
        "lustre",
        "ncpfs",
        "nfs",
        "nfs4",
        "ocfs2",
        "smb3",
        "smbfs",
    }
)
_NETWORK_FUSE: Final = frozenset(
    {
        "blobfuse2",
        "ceph-fuse",
        "davfs",
        "gcsfuse",
        "glusterfs",
        "goofys",
        "juicefs",
        "rclone",
        "s3fs",
        "smbnetfs",
        "sshfs",
    }
)
_OCTAL: Final = re.compile(r"\\([0-7]{3})")


def file_system_type(path: Path, mountinfo: str) -> str | None:
    """The type of the file system that holds ``path`` by ``mountinfo`` (proc(5)): the one with the longest
    mount point above it, the last mounted of equals. ``None``: the table does not say."""
    resolved = Path(os.path.realpath(path))
    best: tuple[int, str] | None = None
    for line in mountinfo.splitlines():
        fields, _, rest = line.partition(" - ")
        columns = fields.split(" ")
        if len(columns) < 6 or not rest:
            continue
        point = Path(_OCTAL.sub(lambda match: chr(int(match[1], 8)), columns[4]))
        if resolved.is_relative_to(point) and (best is None or len(point.parts) >= best[0]):
            best = (len(point.parts), rest.split(" ")[0])
    return None if best is None else best[1]


def network_type(path: Path, table: Path = MOUNTINFO) -> str | None:
    """The type of the file system of ``path`` where it is one of a network, else ``None``.
    Without a mount table nothing is known, and ``None`` too."""
    try:
        mountinfo = table.read_text("utf-8", "surrogateescape")
    except OSError:
        return None
    kind = file_system_type(path, mountinfo)
    if kind is None or kind in NETWORK_TYPES:
        return kind
    return kind if kind.startswith("fuse.") and kind.removeprefix("fuse.") in _NETWORK_FUSE else None
