"""Kept answers in an SQLite file of their own: they are no part of the record, and go when their time is over.

What is removed is overwritten (``secure_delete``), and the write-ahead log, which may still hold it, is cut.
Source: https://www.sqlite.org/pragma.html#pragma_secure_delete
"""

import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Final

from lunanexa_adapters.sqlite.connection import ConnectionThread, damage, transaction
from lunanexa_adapters.sqlite.schema import BUSY_MS, Schema, open_store
from lunanexa_core.ids import WorkloadId
from lunanexa_ports.answers import Answer, Answers

ANSWERS_SCHEMA: Final = Schema(
    "store of answers",
    (
        (
            # The body last: the sum of the sizes then reads no body.
            "CREATE TABLE answer (workload TEXT PRIMARY KEY, expires_wall_ms INTEGER NOT NULL,"
            " size_bytes INTEGER NOT NULL, status INTEGER NOT NULL, content_type TEXT NOT NULL, body BLOB NOT NULL)",
            "CREATE INDEX answer_by_expiry ON answer (expires_wall_ms)",
        ),
    ),
    copied=False,
)


class SqliteAnswers(Answers):
    """Made by :func:`open_sqlite_answers`."""

    def __init__(self, thread: ConnectionThread, bytes_max: int) -> None:
        self._thread = thread
        self._bytes_max = bytes_max

    async def put(self, workload: WorkloadId, answer: Answer, *, now_wall_ms: int, expires_wall_ms: int) -> bool:
        return await self._thread.submit(partial(_put, workload, answer, now_wall_ms, expires_wall_ms, self._bytes_max))

    async def get(self, workload: WorkloadId, now_wall_ms: int) -> Answer | None:
        return await self._thread.submit(partial(_get, workload, now_wall_ms))

    async def remove_expired(self, now_wall_ms: int) -> int:
        return await self._thread.submit(partial(_remove_expired, now_wall_ms))

    async def aclose(self) -> None:
        await self._thread.aclose()


@asynccontextmanager
async def open_sqlite_answers(path: Path, bytes_max: int, *, busy_ms: int = BUSY_MS) -> AsyncIterator[SqliteAnswers]:
    """The store in the file ``path``, made where there is none, for ``bytes_max`` at most. Raises as the port does."""
    async with ConnectionThread("store of answers", partial(_open, path, busy_ms)) as thread:
        yield SqliteAnswers(thread, bytes_max)


def _open(path: Path, busy_ms: int) -> sqlite3.Connection:
    connection = open_store(path, ANSWERS_SCHEMA, busy_ms=busy_ms)
    connection.execute("PRAGMA secure_delete=ON")
    return connection


def _put(
    workload: WorkloadId,
    answer: Answer,
    now_wall_ms: int,
    expires_wall_ms: int,
    bytes_max: int,
    connection: sqlite3.Connection,
) -> bool:
    with transaction(connection):
        (others_bytes,) = connection.execute(
            "SELECT COALESCE(SUM(size_bytes), 0) FROM answer WHERE workload <> ? AND expires_wall_ms > ?",
            (workload, now_wall_ms),
        ).fetchone()
        if others_bytes + answer.size_bytes > bytes_max:
            return False
        connection.execute("DELETE FROM answer WHERE workload = ? OR expires_wall_ms <= ?", (workload, now_wall_ms))
        connection.execute(
            "INSERT INTO answer VALUES (?, ?, ?, ?, ?, ?)",
            (workload, expires_wall_ms, answer.size_bytes, answer.status, answer.content_type, answer.body),
        )
    return True


def _get(workload: WorkloadId, now_wall_ms: int, connection: sqlite3.Connection) -> Answer | None:
    found = connection.execute(
        "SELECT status, content_type, body FROM answer WHERE workload = ? AND expires_wall_ms > ?",
        (workload, now_wall_ms),
    ).fetchone()
    if found is None:
        return None
    status, content_type, body = found
    if type(status) is not int or type(content_type) is not str or type(body) is not bytes:
        raise damage("store of answers", f"the answer of {workload} is damaged")
    return Answer(status=status, content_type=content_type, body=body)


def _remove_expired(now_wall_ms: int, connection: sqlite3.Connection) -> int:
    with transaction(connection):
        removed = connection.execute("DELETE FROM answer WHERE expires_wall_ms <= ?", (now_wall_ms,)).rowcount
    # Always: it may hold what made room for another answer meanwhile.
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    return removed
