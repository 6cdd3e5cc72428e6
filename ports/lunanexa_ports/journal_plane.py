"""Driving port: journal and ledger as operators and auditors read them."""

from abc import abstractmethod
from typing import Protocol

from lunanexa_core.canonical import JsonValue
from lunanexa_core.journal_query import PageQuery
from lunanexa_core.outcomes import Refusal


class JournalPlane(Protocol):
    """Each method answers 401/403 as a refusal when the token does not allow it, and says so when the store can't be
    read or is damaged. No payload is in any record; who asks can verify the rows for himself."""

    @abstractmethod
    async def rows(self, token: str | None, query: PageQuery) -> JsonValue | Refusal:
        """A page of rows."""

    @abstractmethod
    async def row(self, token: str | None, sequence: int) -> JsonValue | Refusal:
        """One of them."""

    @abstractmethod
    async def head(self, token: str | None) -> JsonValue | Refusal:
        """Where both chains stand."""

    @abstractmethod
    async def state(self, token: str | None) -> JsonValue | Refusal:
        """The digest of the live state, to compare with a replay's."""
