"""Driven port: the durable, hash-chained record of everything that was decided."""

import enum
from abc import abstractmethod
from collections.abc import AsyncGenerator, Sequence
from typing import Protocol

from lunanexa_core.journal import Head, Row
from lunanexa_core.journal_query import RowQuery


class Appended(enum.Enum):
    """How an append ended."""

    DURABLE = "durable"
    """All rows are on disk; nothing else is between them and the expected head."""
    FENCED = "fenced"
    """Nothing was written: the head is not the expected one, or a higher epoch has been taken."""


class JournalReader(Protocol):
    """A journal as whoever only looks on sees it. Raises as :class:`Journal` does."""

    @abstractmethod
    async def head(self) -> Head:
        """The stored head; ``epoch`` is that of the newest taken epoch."""

    @abstractmethod
    def read(self, after: int = 0, limit: int | None = None) -> AsyncGenerator[Row, None]:
        """Rows of both chains with a sequence above ``after``, in order, at most ``limit``. Rows that are
        appended meanwhile may or may not be seen. Does not keep appends waiting. Close what you leave early
        (``contextlib.aclosing``)."""

    @abstractmethod
    async def page(self, query: RowQuery) -> Sequence[Row]:
        """The first ``query.limit`` rows that it asks for, in its order. Without a target the store may look at each
        row of the stretch: who asks keeps it short."""


class Journal(JournalReader, Protocol):
    """One store, written by one leader at a time. Rows are bytes and typed head columns; what they mean
    is the kernel's business.

    All methods raise :class:`~lunanexa_ports.errors.PortUnavailable` when the store can't be reached or
    has no room (then nothing was written, except after :meth:`append`, whose outcome is then unknown: claim
    a new epoch and read the tail), and :class:`~lunanexa_ports.errors.PortFault` when it is corrupt.
    """

    @abstractmethod
    async def append(self, epoch: int, expected: Head, rows: Sequence[Row]) -> Appended:
        """Writes all rows, or none, in one transaction that holds the fence in itself: it writes only if
        ``epoch`` is the newest taken and the stored sequence and hashes are those of ``expected``. Returns
        only when the rows would survive a power loss. Cancellation does not interrupt it: the outcome
        is always known to the caller unless :class:`PortUnavailable` is raised. ``rows`` is not empty."""

    @abstractmethod
    async def aclose(self) -> None:
        """Lets an append in progress end, then closes the store. Idempotent."""
