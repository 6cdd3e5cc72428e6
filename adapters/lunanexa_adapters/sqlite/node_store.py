"""A node agent's memory in one SQLite file. Small and rarely written: one thread reads and writes."""

import sqlite3
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Final

from lunanexa_adapters.sqlite.connection import ConnectionThread, damage, transaction
from lunanexa_adapters.sqlite.schema import BUSY_MS, Schema, open_store, open_unchanged
from lunanexa_core.ids import AssignmentId
from lunanexa_ports.node_store import NodeStore

NODE_STORE_SCHEMA: Final = Schema(
    "node store",
    (
        (
            "CREATE TABLE fact (name TEXT PRIMARY KEY, value BLOB NOT NULL)",
            "CREATE TABLE replica (assignment TEXT PRIMARY KEY, value BLOB NOT NULL)",
            "CREATE TABLE start (one INTEGER PRIMARY KEY CHECK (one = 1), number INTEGER NOT NULL)",
            "INSERT INTO start VALUES (1, 0)",
        ),
    ),
)


class SqliteNodeStore(NodeStore):
    """Made by :func:`open_sqlite_node_store`."""

    def __init__(self, thread: ConnectionThread) -> None:
        self._thread = thread

    async def next_start_number(self) -> int:
        return await self._thread.submit(_next_start_number)

    async def put(self, name: str, value: bytes) -> None:
        await self._thread.submit(partial(_put, name, value))

    async def get(self, name: str) -> bytes | None:
        return await self._thread.submit(partial(_get, name))

    async def put_replica(self, assignment: AssignmentId, value: bytes | None) -> None:
        await self._thread.submit(partial(_put_replica, assignment, value))

    async def replicas(self) -> Mapping[AssignmentId, bytes]:
        return await self._thread.submit(_replicas)

    async def aclose(self) -> None:
        await self._thread.aclose()


@asynccontextmanager
async def open_sqlite_node_store(path: Path, *, busy_ms: int = BUSY_MS) -> AsyncIterator[SqliteNodeStore]:
    """The node store in the file ``path``, made where there is none. Raises as the port does."""
    async with ConnectionThread("node store", partial(open_store, path, NODE_STORE_SCHEMA, busy_ms=busy_ms)) as thread:
        yield SqliteNodeStore(thread)


@asynccontextmanager
async def read_sqlite_node_store(path: Path, *, live: bool) -> AsyncIterator[SqliteNodeStore]:
    """The same for reading: whatever writes raises ``PortUnavailable``. ``live``: an agent runs meanwhile."""
    reader = partial(open_unchanged, path, NODE_STORE_SCHEMA, live=live)
    async with ConnectionThread("node store", reader) as thread:
        yield SqliteNodeStore(thread)


def _next_start_number(connection: sqlite3.Connection) -> int:
    with transaction(connection):
        connection.execute("UPDATE start SET number = number + 1")
        found = connection.execute("SELECT number FROM start").fetchall()
        if len(found) != 1 or type(found[0][0]) is not int:
            raise damage("node store", "the node store's counter is damaged")
        number: int = found[0][0]
    return number


def _put(name: str, value: bytes, connection: sqlite3.Connection) -> None:
    connection.execute(
        "INSERT INTO fact VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value", (name, value)
    )


def _get(name: str, connection: sqlite3.Connection) -> bytes | None:
    found = connection.execute("SELECT value FROM fact WHERE name = ?", (name,)).fetchone()
    return None if found is None else _bytes(found[0])


def _put_replica(assignment: AssignmentId, value: bytes | None, connection: sqlite3.Connection) -> None:
    if value is None:
        connection.execute("DELETE FROM replica WHERE assignment = ?", (assignment,))
        return
    connection.execute(
        "INSERT INTO replica VALUES (?, ?) ON CONFLICT (assignment) DO UPDATE SET value = excluded.value",
        (assignment, value),
    )


def _replicas(connection: sqlite3.Connection) -> Mapping[AssignmentId, bytes]:
    found = connection.execute("SELECT assignment, value FROM replica ORDER BY assignment").fetchall()
    return {AssignmentId(assignment): _bytes(value) for assignment, value in found}


def _bytes(value: object) -> bytes:
    if not isinstance(value, bytes):
        raise damage("node store", "a value of the node store is damaged")
    return value
