"""Driven port: replays of the store's rows, done where the kernel does not feel them."""

from abc import abstractmethod
from typing import Protocol


class Replays(Protocol):
    """Each reads the store that the kernel writes, and changes nothing in it. Raises
    :class:`~lunanexa_ports.errors.PortUnavailable` when it could not be done now,
    :class:`~lunanexa_ports.errors.PortFault` when the rows can't be replayed. Cancelling one ends it."""

    @abstractmethod
    async def snapshot(self, until: int, digest: str) -> bool:
        """Replays up to sequence ``until``, from the newest snapshot before it where there is one, and keeps a snapshot
        there if the state's digest is ``digest``; ``False``: it is another, and nothing is kept."""

    @abstractmethod
    async def carry(self, until: int) -> bytes:
        """What pruning the ledger up to sequence ``until`` must carry on: the canonical JSON of the ledger's tables
        as of there (:class:`~lunanexa_core.ledger_carry.LedgerCarry`)."""
