"""One SQLite connection in one thread of its own, for the life of its store.

A connection is bound to its thread and blocks it, and Trio's worker threads retire when they are idle:
so each connection has a thread that we own. Work is handed to it in order, one piece at a time.
"""

import contextlib
import sqlite3
import threading
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from types import TracebackType
from typing import Any, Final, Generic, TypeVar

import trio

from lunanexa_ports.errors import PortError, PortFault, PortUnavailable

T = TypeVar("T")

CLOSE_S: Final = 30.0

# Primary result codes (https://www.sqlite.org/rescode.html) after which a retry may help.
_RETRY: Final = {
    sqlite3.SQLITE_BUSY: "locked by another program",
    sqlite3.SQLITE_CANTOPEN: "not to be opened",
    sqlite3.SQLITE_FULL: "out of room",
    sqlite3.SQLITE_INTERRUPT: "interrupted",
    sqlite3.SQLITE_IOERR: "failing to read or write",
    sqlite3.SQLITE_LOCKED: "locked by another program",
    sqlite3.SQLITE_NOMEM: "out of memory",
    sqlite3.SQLITE_PERM: "not accessible",
    sqlite3.SQLITE_PROTOCOL: "locked by another program",
    sqlite3.SQLITE_READONLY: "not writable",
}
_MEND: Final = "keep a copy of the data directory as it is, then restore a backup"
_MENDS: Final = {
    "store of answers": "move its files away; only answers that were kept to be given again go with them",
}
"""Of stores that no backup holds."""


def damage(store: str, what: str) -> PortFault:
    """The fault ``what`` of a store whose content can't be believed, with the way out."""
    return PortFault(f"{what}: {_MENDS.get(store, _MEND)}")


def port_error(store: str, error: sqlite3.Error | OSError) -> PortError:
    """What ``error`` means to the caller of a port. An SQLite error without a code comes from reading a
    value that can't be one of ours."""
    if isinstance(error, OSError):
        return PortUnavailable(f"the {store} is not to be opened ({error})")
    code = getattr(error, "sqlite_errorcode", None)
    if code is not None and (why := _RETRY.get(code & 0xFF)) is not None:
        return PortUnavailable(f"the {store} is {why} ({error})")
    return damage(store, f"the {store} is damaged or not ours ({error})")


@contextlib.contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """A write transaction around the block, which takes the write lock before the block reads anything."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        # SQLite has rolled back by itself after some errors; what went wrong first is what counts.
        with contextlib.suppress(sqlite3.Error):
            if connection.in_transaction:
                connection.execute("ROLLBACK")
        raise


class _Job(Generic[T]):
    """One piece of work and, once ``done``, how it ended."""

    value: T

    def __init__(self, work: Callable[[], T]) -> None:
        self._work = work
        self.done = trio.Event()
        self.error: Exception | None = None

    def run(self) -> None:
        try:
            self.value = self._work()
        except Exception as error:  # noqa: BLE001 - raised in the task that waits for this job
            self.error = error


class ConnectionThread:
    """A connection that ``opening`` makes, and the thread that alone uses it. Use it as an asynchronous
    context manager, in one Trio run."""

    def __init__(self, store: str, opening: Callable[[], sqlite3.Connection]) -> None:
        self._store = store
        self._opening = opening
        # Never longer than two: callers take turns, and wait for theirs.
        self._jobs: SimpleQueue[_Job[Any] | None] = SimpleQueue()
        self._turn = trio.Lock()
        self._closing = False
        self._ended = trio.Event()

    async def __aenter__(self) -> "ConnectionThread":
        token = trio.lowlevel.current_trio_token()
        opened = _Job(self._opening)
        # A daemon: a loop that died without closing the store must not keep the process.
        threading.Thread(target=self._serve, args=(token, opened), name=f"sqlite {self._store}", daemon=True).start()
        with trio.CancelScope(shield=True):
            await opened.done.wait()
        self._result(opened)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def submit(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Runs ``work`` in the thread and returns or raises what it did, errors of SQLite as port errors.

        Shielded, without a deadline: work that was handed over runs to its end whatever becomes of the
        caller, and a caller that left would not know how it ended."""
        with trio.CancelScope(shield=True):
            async with self._turn:
                if self._closing:
                    raise PortUnavailable(f"the {self._store} is closed")
                job = _Job(lambda: work(self._connection))
                self._jobs.put(job)
                await job.done.wait()
        return self._result(job)

    async def aclose(self) -> None:
        """Lets the work in hand end, then closes the connection. Idempotent."""
        if not self._closing:
            self._closing = True
            self._jobs.put(None)
        with trio.move_on_after(CLOSE_S, shield=True):
            await self._ended.wait()

    def _result(self, job: _Job[T]) -> T:
        if isinstance(job.error, sqlite3.Error | OSError):
            raise port_error(self._store, job.error) from job.error
        if job.error is not None:
            raise job.error
        return job.value

    def _serve(self, token: trio.lowlevel.TrioToken, opened: _Job[sqlite3.Connection]) -> None:
        opened.run()
        with contextlib.suppress(trio.RunFinishedError):
            token.run_sync_soon(opened.done.set)
            if opened.error is not None:
                return
            self._connection = opened.value
            while (job := self._jobs.get()) is not None:
                job.run()
                token.run_sync_soon(job.done.set)
        with contextlib.suppress(sqlite3.Error):
            self._connection.close()
        with contextlib.suppress(trio.RunFinishedError):
            token.run_sync_soon(self._ended.set)
