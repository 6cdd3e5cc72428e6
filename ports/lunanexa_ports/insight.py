"""Driving port: what operators see of single requests, and why each went where it went."""

from abc import abstractmethod
from typing import Protocol

from lunanexa_core.canonical import JsonValue
from lunanexa_core.outcomes import Refusal


class Insight(Protocol):
    """Each method answers 401/403 as a refusal when the token does not allow it. No payload is in any answer."""

    @abstractmethod
    async def requests(self, token: str | None, limit: int) -> JsonValue | Refusal:
        """Requests of all keys: those in progress, newest first, then those ended, newest first."""

    @abstractmethod
    async def explain(self, token: str | None, workload: str) -> JsonValue | Refusal:
        """One request: its state or receipt, and the routing decision with every candidate and every term. Receipts
        that have left memory are read from the ledger; decisions are kept of the newest requests only."""
