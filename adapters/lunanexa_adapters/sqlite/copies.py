"""The copy of a store that is kept beside it before its schema changes: the way back.

``store.sqlite3-schema-1-copy-1`` is the first copy of ``store.sqlite3`` as schema 1 had it. A copy gets its name when
it is whole, proven and durable, and only then is the store changed; another try of that change keeps no second one.
"""

import contextlib
import filecmp
import os
import re
import shlex
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Final

from lunanexa_adapters.files.atomic import sync_directory
from lunanexa_adapters.sqlite.connection import damage
from lunanexa_ports.errors import PortUnavailable

COPIES_KEPT: Final = 2
_MIB: Final = 1 << 20
_CHANGE_MIB: Final = 16
"""What a change itself may need at least, beside a quarter of the store for a new index."""


def keep_copy(path: Path, store: str, version: int) -> None:
    """Copies the store in ``path``, which has schema ``version`` and which nobody changes meanwhile. Raises
    ``PortUnavailable`` when there is no room or the directory can't be written, ``PortFault`` when the store is
    damaged. Blocks for as long as reading it twice and writing it once take."""
    part = path.with_name(f"{path.name}-copy.part")
    try:
        part.unlink(missing_ok=True)
        with closing(sqlite3.connect(path, isolation_level=None)) as source:
            source.execute("PRAGMA query_only=ON")
            _need_room(source, path, store)
            _copy(source, part)
        _prove(part, store)
        newest = max(_copies(path, version), default=(version, 0))
        if newest[1] == 0 or not filecmp.cmp(part, _named(path, *newest), shallow=False):
            os.rename(part, _named(path, version, newest[1] + 1))
        sync_directory(path.parent)
    except (OSError, sqlite3.OperationalError) as error:
        raise PortUnavailable(
            f"the copy of the {store} that is kept before its schema changes can't be written beside {path} ({error}):"
            " see that the disk has room and that this user may write there, then start again"
        ) from error
    finally:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)


def remove_old_copies(path: Path) -> None:
    """Leaves the newest copies, once a change has succeeded."""
    for version, number in sorted(_copies(path))[:-COPIES_KEPT]:
        with contextlib.suppress(OSError):
            _named(path, version, number).unlink()


def way_back(path: Path, newest_version: int) -> str | None:
    """The command that puts back the newest copy which has schema ``newest_version`` or an older one; ``None``: there
    is no such copy. It loses nothing: what is there now is moved aside."""
    found = [copy for copy in _copies(path) if copy[0] <= newest_version]
    if not found:
        return None
    name, copy = shlex.quote(path.name), shlex.quote(_named(path, *max(found)).name)
    folder = shlex.quote(str(path.absolute().parent))
    return f"cd {folder} && mkdir aside && mv {name}* aside && cp -p aside/{copy} {name}"


def _copies(path: Path, version: int | None = None) -> list[tuple[int, int]]:
    form = re.compile(re.escape(path.name) + r"-schema-([1-9]\d*)-copy-([1-9]\d*)", re.ASCII)
    found = (form.fullmatch(name) for name in os.listdir(path.parent))
    pairs = [(int(match[1]), int(match[2])) for match in found if match is not None]
    return [pair for pair in pairs if version is None or pair[0] == version]


def _named(path: Path, version: int, number: int) -> Path:
    return path.with_name(f"{path.name}-schema-{version}-copy-{number}")


def _need_room(source: sqlite3.Connection, path: Path, store: str) -> None:
    ((pages,),) = source.execute("PRAGMA page_count").fetchall()
    ((page_bytes,),) = source.execute("PRAGMA page_size").fetchall()
    size_mib = pages * page_bytes // _MIB
    needed_mib = size_mib + size_mib // 4 + _CHANGE_MIB
    room = os.statvfs(path.parent)
    free_mib = room.f_bavail * room.f_frsize // _MIB
    if free_mib < needed_mib:
        raise PortUnavailable(
            f"the schema of the {store} is to be changed, and a copy is kept before that: {needed_mib} MiB must be free"
            f" in {path.parent}, and {free_mib} MiB are: make room and start again"
        )


def _copy(source: sqlite3.Connection, part: Path) -> None:
    os.close(os.open(part, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600))
    with closing(sqlite3.connect(part, isolation_level=None)) as target:
        # A copy that was not finished is thrown away, so that it needs no journal of its own.
        target.execute("PRAGMA journal_mode=OFF")
        target.execute("PRAGMA synchronous=OFF")
        source.backup(target)
    descriptor = os.open(part, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _prove(part: Path, store: str) -> None:
    # Nobody else knows the file yet; told so, SQLite makes no files beside it.
    address = part.absolute().as_uri() + "?mode=ro&immutable=1"
    with closing(sqlite3.connect(address, isolation_level=None, uri=True)) as connection:
        found = [line for (line,) in connection.execute("PRAGMA integrity_check(1)")]
    if found != ["ok"]:
        raise damage(store, f"the {store} is damaged ({found[0].splitlines()[-1]}), so its schema was not changed")
