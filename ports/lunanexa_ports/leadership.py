"""Driven port: the lease by which one of many controllers leads a store, and the epoch that comes with it."""

from abc import abstractmethod
from typing import Protocol

from lunanexa_core.ids import HolderId
from lunanexa_core.journal import Head
from lunanexa_core.leadership import Lease


class Leadership(Protocol):
    """Of the same store as a :class:`~lunanexa_ports.journal.Journal`. All methods raise
    :class:`~lunanexa_ports.errors.PortUnavailable` when the store can't be reached (a claim, renewal or release may
    then have been done or not: look again), and :class:`~lunanexa_ports.errors.PortFault` when it is unusable.

    A store that only processes of one machine can open may leave renewals unwritten: its lock is the lease.
    """

    @property
    @abstractmethod
    def lost_tail_accepted(self) -> bool:
        """Whether a replica that takes the store's place may lack acknowledged records, which an operator accepted;
        known after the first use."""

    @abstractmethod
    async def look(self) -> Lease:
        """The lease as it stands."""

    @abstractmethod
    async def claim(self, holder: HolderId, address: str, *, seen: Lease | None, above: int = 0) -> Head | None:
        """Takes the lease and a new epoch in one durable step, which fences every earlier holder: an append in
        flight is durable before it, or writes nothing. Only if the row is still as ``seen``, or, with ``None``, if it
        is still ``holder``'s; otherwise nothing changes and the answer is ``None``. The epoch is higher than every
        earlier one and than ``above``. Returns the head, with that epoch."""

    @abstractmethod
    async def renew(self, holder: HolderId, epoch: int) -> bool:
        """Keeps the lease; ``False``: it is not ``holder``'s in ``epoch`` any more, and nothing was changed."""

    @abstractmethod
    async def release(self, holder: HolderId, epoch: int) -> None:
        """Gives the lease back, so that others need not wait; does nothing when it is not ``holder``'s in ``epoch``."""

    @abstractmethod
    async def wait(self, within_ms: int) -> None:
        """Returns when rows may have been appended or the lease may have changed since this was last called (or
        since the store was opened), and after ``within_ms`` at the latest; also without cause."""
