"""Driving port: the operator plane. Everything that the command line and the console do goes through it.

Documents are JSON values in the wire form of ``/admin/v1``; a token is the presented bearer secret.
"""

from abc import abstractmethod
from typing import Protocol

from lunanexa_core.canonical import JsonValue
from lunanexa_core.journal_query import ReceiptQuery
from lunanexa_core.outcomes import Refusal


class OperatorPlane(Protocol):
    """What operators see and do. Each method answers 401/403 as a refusal when the token does not allow it."""

    @abstractmethod
    async def authorise(self, token: str | None) -> Refusal | None:
        """Why a token may do nothing at all here, on this plane and on :class:`KeyPlane`. Asked before anything of a
        request but its head is read; each method still asks for the role that it needs."""

    @abstractmethod
    async def status(self, token: str | None) -> JsonValue | Refusal:
        """One page of everything: cluster, nodes, deployments, replicas, queues, usage, last receipts."""

    @abstractmethod
    async def deployments(self, token: str | None) -> JsonValue | Refusal:
        """Deployments in force, stable order."""

    @abstractmethod
    async def apply_deployment(
        self, token: str | None, name: str, document: JsonValue, if_match: int | None
    ) -> JsonValue | Refusal:
        """Creates or changes a deployment; equal content changes nothing. ``if_match`` fences by generation."""

    @abstractmethod
    async def remove_deployment(self, token: str | None, name: str) -> JsonValue | Refusal:
        """Removes a deployment; its replicas drain and stop."""

    @abstractmethod
    async def drain(self, token: str | None) -> JsonValue | Refusal:
        """Admits nothing new from now on (503 ``draining``) and says what is still in flight. Idempotent."""

    @abstractmethod
    async def receipts(self, token: str | None, query: ReceiptQuery) -> JsonValue | Refusal:
        """A page of receipts, from memory and, for those that have left it, from the ledger."""


class KeyPlane(Protocol):
    """Keys as operators make, see and revoke them. The same answers to a token that does not allow it."""

    @abstractmethod
    async def create_key(self, token: str | None, document: JsonValue) -> JsonValue | Refusal:
        """Makes a key for inference. Its ``secret`` is in this answer and nowhere else, ever."""

    @abstractmethod
    async def keys(self, token: str | None) -> JsonValue | Refusal:
        """Keys in force with their limits and what was used of them, stable order."""

    @abstractmethod
    async def key(self, token: str | None, key: str) -> JsonValue | Refusal:
        """One of them."""

    @abstractmethod
    async def revoke_key(self, token: str | None, key: str) -> JsonValue | Refusal:
        """Voids a key: its next request is refused and what it has in progress ends. An installation's own keys
        can't be revoked."""


class Health(Protocol):
    """What probes ask; needs no token and shows nothing of the inside."""

    @abstractmethod
    def ready(self) -> tuple[bool, tuple[str, ...]]:
        """Whether requests would be admitted, and the blocker codes if not."""

    @abstractmethod
    def warnings(self) -> tuple[str, ...]:
        """Codes of what was accepted that costs a promise: ``lost_tail_accepted``, the newest of what was acknowledged
        may be lost with the store's server."""

    @abstractmethod
    def as_of(self) -> int | None:
        """The sequence of the journal that answers are as of, where this controller does not lead; ``None``: it
        does."""
