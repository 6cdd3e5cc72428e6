"""Driven port: the files that keep rows which have left the ledger."""

from abc import abstractmethod
from collections.abc import AsyncIterator
from typing import Protocol

from lunanexa_core.events import LedgerFile


class LedgerArchive(Protocol):
    """One folder of them. One process at a time writes there."""

    @abstractmethod
    async def keep(self, first: int, last: int, lines: AsyncIterator[bytes]) -> LedgerFile:
        """Writes ``lines``, compressed (gzip), as the file of the rows from sequence ``first`` to ``last``: whole,
        durable, for its owner only. It takes the place of every other file from that ``first``: an attempt that came to
        no pruning. Raises :class:`~lunanexa_ports.errors.PortUnavailable` (no room, no right) and whatever ``lines``
        raises; the files are as they were then, as they are when it is cancelled."""

    @abstractmethod
    def place(self, name: str) -> str:
        """What to tell a person who looks for the file. Never raises; also for a file that is not there."""
