"""Driven port: what is done to a journal's store as a whole, beside its appends."""

from abc import abstractmethod
from collections.abc import AsyncIterator
from typing import Protocol

from lunanexa_core.journal import Head, Row


class JournalUpkeep(Protocol):
    """Of the same store as a :class:`~lunanexa_ports.journal.Journal`. Raises as that does."""

    @abstractmethod
    async def drop_ledger(self, until: int, limit: int, *, after: int = 0) -> int:
        """Deletes at most ``limit`` rows of the ledger with a sequence beyond ``after``, ``until`` or lower, the oldest
        first, durably; returns how many. It neither moves the head nor touches the journal's rows, and never the newest
        row. Who calls has their end in the journal, and keeps the stretch short: the store may look at each of its
        rows. 0: nothing is left to drop there."""

    @abstractmethod
    async def fill(self, rows: AsyncIterator[Row]) -> Head | None:
        """Writes all ``rows``, a whole journal from its beginning, into a store that has none, and sets the head after
        the last, with that row's epoch and nobody leading; all of it or, when it fails, nothing. ``None``: the store
        is not empty, and nothing was written. ``rows`` are in order and belong together: the caller has verified
        them. Sequences may have gaps where the ledger was pruned."""
