"""Driving port: what a caller may see of its own workloads, and how it cancels one.

Documents are JSON values in the wire form of ``/v1``. A workload is the caller's own when the presented key
admitted it; of any other there is nothing to see, not even that it exists.
"""

from abc import abstractmethod
from typing import Protocol

from lunanexa_core.canonical import JsonValue
from lunanexa_core.outcomes import Refusal


class WorkloadPlane(Protocol):
    """Each method answers 401/403 as a refusal when the key does not allow it."""

    @abstractmethod
    async def workload(self, api_key: str | None, workload: str) -> JsonValue | Refusal:
        """Its live state and place in the queue, or its terminal receipt. Receipts that have left memory are read
        from the ledger."""

    @abstractmethod
    async def workloads(self, api_key: str | None, limit: int, cursor: str | None) -> JsonValue | Refusal:
        """A page of own workloads, newest first: those in progress, then those ended that are in memory.
        ``cursor`` is that of the page before; the order is stable while pages are read."""

    @abstractmethod
    async def cancel(self, api_key: str | None, workload: str) -> JsonValue | Refusal:
        """Ends a workload in whatever phase it is, and returns what :meth:`workload` would: with the receipt,
        unless the end takes longer than two seconds. Of one that has ended it is the receipt: idempotent."""

    @abstractmethod
    async def capabilities(self, api_key: str | None) -> JsonValue | Refusal:
        """Contract version, capabilities with their dialects and models, selectors, retention on offer, limits."""
