"""The numbered schema of a store, and how a file of it is opened.

A file says itself which store it is and how far its schema is. A schema that is newer than the program
or that was left half-way keeps the store shut: guessing would lose rows that are to be kept for ever.
"""

import os
import sqlite3
from pathlib import Path
from typing import Final

import attrs

from lunanexa_adapters.files.atomic import make_directory
from lunanexa_adapters.sqlite.connection import transaction
from lunanexa_ports.errors import PortFault

BUSY_MS: Final = 5_000

_TABLE: Final = "lunanexa_schema"
_CREATE: Final = f"""CREATE TABLE {_TABLE} (
    store TEXT NOT NULL, version INTEGER NOT NULL, state TEXT NOT NULL CHECK (state IN ('running', 'done')),
    PRIMARY KEY (store, version))"""


@attrs.frozen
class Schema:
    """``steps[n]`` holds the statements that bring version ``n`` to ``n + 1``; they are never changed."""

    store: str
    steps: tuple[tuple[str, ...], ...]

    @property
    def version(self) -> int:
        return len(self.steps)


def open_store(path: Path, schema: Schema, *, busy_ms: int = BUSY_MS) -> sqlite3.Connection:
    """A connection for writing: WAL, durable at each commit. Creates the file (mode 0600, its directory
    0700) with the newest schema. Raises ``PortFault`` when the schema is not that of this program."""
    _create_file(path)
    connection = _connect(path, busy_ms)
    try:
        fresh = check(connection, schema)
        if connection.execute("PRAGMA journal_mode=WAL").fetchone() != ("wal",):
            raise PortFault(f"the {schema.store} can't be kept in WAL mode: is it on a local file system?")
        if fresh:
            _create_schema(connection, schema)
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


def open_unchanged(path: Path, schema: Schema) -> sqlite3.Connection:
    """A connection that changes nothing of a file that nobody writes meanwhile. What a writer that was killed left in
    its WAL is read too. Raises ``PortFault`` when the file is not of this schema."""
    wal = path.with_name(path.name + "-wal")
    left = wal.exists() and wal.stat().st_size > 0
    # Without a WAL to read, SQLite makes no files beside this one if it is told that it won't change.
    address = path.absolute().as_uri() + ("?mode=ro" if left else "?mode=ro&immutable=1")
    connection = sqlite3.connect(address, isolation_level=None, uri=True)
    try:
        connection.execute("PRAGMA trusted_schema=OFF")
        if check(connection, schema):
            raise PortFault(f"the {schema.store} is empty")
    except BaseException:
        connection.close()
        raise
    return connection


def check(connection: sqlite3.Connection, schema: Schema) -> bool:
    """Whether the file is empty (``True``) or holds this schema (``False``). Raises ``PortFault`` with the
    way out for anything else."""
    tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}
    if not tables:
        return True
    if _TABLE not in tables:
        raise PortFault(f"the file is an SQLite file of another program, not a {schema.store}")
    rows = connection.execute(f"SELECT store, version, state FROM {_TABLE} ORDER BY version").fetchall()
    stores = {store for store, _, _ in rows}
    if stores != {schema.store}:
        raise PortFault(f"the file is a {', '.join(sorted(stores)) or 'nameless store'}, not a {schema.store}")
    version = rows[-1][1]
    if any(state != "done" for _, _, state in rows):
        raise PortFault(
            f"the change of the {schema.store} to schema {version} did not end:"
            " copy the data directory back from before it"
        )
    if version < schema.version:
        raise PortFault(
            f"the {schema.store} has schema {version}, older than {schema.version} of this program:"
            " start the version of lunanexa that wrote it"
        )
    if version > schema.version:
        raise PortFault(
            f"the {schema.store} has schema {version}, newer than {schema.version} of this program:"
            " start the version of lunanexa that wrote it, or a newer one"
        )
    return False


def _create_schema(connection: sqlite3.Connection, schema: Schema) -> None:
    with transaction(connection):
        # Asked again under the write lock: another program may have made it meanwhile.
        if not check(connection, schema):
            return
        connection.execute(_CREATE)
        for version, statements in enumerate(schema.steps, start=1):
            for statement in statements:
                connection.execute(statement)
            connection.execute(f"INSERT INTO {_TABLE} VALUES (?, ?, 'done')", (schema.store, version))


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
