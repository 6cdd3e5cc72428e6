"""The numbered schema of a store, and how a file of it is opened.

A file says itself which store it is and how far its schema is. All steps that are missing are one transaction, before
which the store is copied: what was cut short is as it was. A schema that is newer than the program or that was left
half-way keeps the store shut: guessing would lose rows that are to be kept for ever.
"""

import os
import sqlite3
from pathlib import Path
from typing import Final

import attrs

from lunanexa_adapters.files.atomic import make_directory
from lunanexa_adapters.sqlite.connection import damage, transaction
from lunanexa_adapters.sqlite.copies import keep_copy, remove_old_copies, way_back
from lunanexa_ports.errors import PortFault

BUSY_MS: Final = 5_000

_TABLE: Final = "lunanexa_schema"
_CREATE: Final = f"""CREATE TABLE {_TABLE} (
    store TEXT NOT NULL, version INTEGER NOT NULL, state TEXT NOT NULL CHECK (state IN ('running', 'done')),
    PRIMARY KEY (store, version))"""


@attrs.frozen
class Schema:
    """``steps[n]`` holds the statements that bring version ``n`` to ``n + 1``; they are never changed. What is in a
    store before a step, the step only adds to: programs that read older versions rely on it."""

    store: str
    steps: tuple[tuple[str, ...], ...]
    copied: bool = True
    """Whether a copy is kept before a change; not of what must be gone when its time is over."""

    @property
    def version(self) -> int:
        return len(self.steps)


def open_store(path: Path, schema: Schema, *, busy_ms: int = BUSY_MS) -> sqlite3.Connection:
    """A connection for writing: WAL, durable at each commit. Creates the file (mode 0600, its directory
    0700) with the newest schema, and brings an older schema up to date. Raises ``PortFault`` when the file is another
    store's, its schema is newer than this program's or it is damaged, each with the way out."""
    _create_file(path)
    connection = _connect(path, busy_ms)
    try:
        version = check(connection, schema, path)
        if connection.execute("PRAGMA journal_mode=WAL").fetchone() != ("wal",):
            raise PortFault(f"the {schema.store} can't be kept in WAL mode: is it on a local file system?")
        if version < schema.version:
            _change_schema(connection, schema, path)
    except BaseException:
        connection.close()
        raise
    return connection


def open_reader(path: Path, *, busy_ms: int = BUSY_MS) -> sqlite3.Connection:
    """A connection for reading beside :func:`open_store`'s, which must be open. In WAL mode neither waits
    for the other."""
    connection = _connect(path, busy_ms)
    connection.execute("PRAGMA query_only=ON")
    return connection


def open_unchanged(path: Path, schema: Schema, *, live: bool = False) -> sqlite3.Connection:
    """A connection that changes nothing of a file that nobody writes meanwhile, or, with ``live``, another process.
    What a writer that was killed left in its WAL is read too. An older schema will do. Raises as :func:`open_store`,
    and ``PortFault`` for an empty file."""
    wal = path.with_name(path.name + "-wal")
    left = live or (wal.exists() and wal.stat().st_size > 0)
    # Without a WAL to read, SQLite makes no files beside this one if it is told that it won't change.
    address = path.absolute().as_uri() + ("?mode=ro" if left else "?mode=ro&immutable=1")
    connection = sqlite3.connect(address, isolation_level=None, uri=True)
    try:
        connection.execute("PRAGMA trusted_schema=OFF")
        if check(connection, schema, path) == 0:
            raise PortFault(f"the file {path} is empty: no {schema.store} was made there")
    except BaseException:
        connection.close()
        raise
    return connection


def check(connection: sqlite3.Connection, schema: Schema, path: Path) -> int:
    """The version of the schema in the file ``path``, this program's or an older one; 0: it is empty. Raises
    ``PortFault`` with the way out for anything else."""
    tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}
    if not tables:
        return 0
    if _TABLE not in tables:
        raise PortFault(f"the file {path} is an SQLite file of another program, not a {schema.store}")
    rows = connection.execute(f"SELECT store, version, state FROM {_TABLE} ORDER BY version").fetchall()
    stores = {store for store, _, _ in rows}
    if stores != {schema.store}:
        raise PortFault(f"the file {path} is a {', '.join(sorted(stores)) or 'nameless store'}, not a {schema.store}")
    version = rows[-1][1]
    if type(version) is not int:
        raise damage(schema.store, f"the {schema.store} is damaged (its schema is {version!r})")
    if any(state != "done" for _, _, state in rows):
        # No step of this program is ever seen half-way: a newer program's may be.
        back = way_back(path, schema.version)
        raise PortFault(
            f"the change of the {schema.store} to schema {version} did not end: start the version of lunanexa that"
            f" began it, or put back the copy from before it ({back or 'there is none: restore a backup'})"
        )
    if version > schema.version:
        back = way_back(path, schema.version)
        without = f"; or, without what was written since, put back the copy from before the change ({back})"
        raise PortFault(
            f"the {schema.store} has schema {version}, newer than {schema.version} of this program:"
            f" start the version of lunanexa that wrote it, or a newer one{without if back else ''}"
        )
    return version


def _change_schema(connection: sqlite3.Connection, schema: Schema, path: Path) -> None:
    with transaction(connection):
        # Asked again under the write lock: another program may have changed it meanwhile.
        version = check(connection, schema, path)
        if version == 0:
            connection.execute(_CREATE)
        elif version < schema.version and schema.copied:
            keep_copy(path, schema.store, version)
        for number, statements in enumerate(schema.steps[version:], start=version + 1):
            for statement in statements:
                connection.execute(statement)
            connection.execute(f"INSERT INTO {_TABLE} VALUES (?, ?, 'done')", (schema.store, number))
    remove_old_copies(path)


def _connect(path: Path, busy_ms: int) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None, timeout=busy_ms / 1_000)
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute("PRAGMA trusted_schema=OFF")
    return connection


def _create_file(path: Path) -> None:
    make_directory(path.parent)
    # Only a new file is ever opened here: closing any descriptor of a file drops all POSIX locks that this
    # process has on it, SQLite's too. SQLite gives its WAL and index the mode of the main file.
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        if path.stat().st_mode & 0o077:
            path.chmod(0o600)
