"""Driving port: a store that may have lost its newest rows, as operators see it, and their go."""

from abc import abstractmethod
from typing import Protocol

from lunanexa_core.canonical import JsonValue
from lunanexa_core.outcomes import Refusal


class RecoveryPlane(Protocol):
    """Each method answers 401/403 as a refusal when the token does not allow it."""

    @abstractmethod
    async def recovery(self, token: str | None) -> JsonValue | Refusal:
        """Whether and why the leader recovers, and what the go would lead to."""

    @abstractmethod
    async def rebase(self, token: str | None, document: JsonValue) -> JsonValue | Refusal:
        """The go for the plan that ``document`` names; refused when the plan is another by now, or nothing is being
        recovered."""
