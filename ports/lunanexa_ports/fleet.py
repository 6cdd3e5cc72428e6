"""Driving port: nodes and deployments one by one, as operators see and direct them.

Documents are JSON values in the wire form of ``/admin/v1``; a token is the presented bearer secret.
"""

from abc import abstractmethod
from typing import Protocol

from lunanexa_core.canonical import JsonValue
from lunanexa_core.outcomes import Refusal


class FleetPlane(Protocol):
    """Each method answers 401/403 as a refusal when the token does not allow it. ``if_match`` is the generation that
    is changed; with another one nothing is."""

    @abstractmethod
    async def nodes(self, token: str | None, limit: int, cursor: str | None) -> JsonValue | Refusal:
        """A page of at most ``limit`` nodes by name, from behind the node ``cursor`` on."""

    @abstractmethod
    async def node(self, token: str | None, name: str) -> JsonValue | Refusal:
        """One of them, with every replica on it, what each still has in progress, and where else it runs."""

    @abstractmethod
    async def set_directive(
        self, token: str | None, name: str, document: JsonValue, if_match: int | None
    ) -> JsonValue | Refusal:
        """What the node shall do from now on, durable when this returns; the same again changes nothing. Answers the
        node as :meth:`node` does: how far it is, is seen by asking again."""

    @abstractmethod
    async def deployment(self, token: str | None, name: str) -> JsonValue | Refusal:
        """One deployment: its specification, and its replicas."""

    @abstractmethod
    async def plan_deployment(self, token: str | None, document: JsonValue) -> JsonValue | Refusal:
        """What a specification would change, and why which node can't take a replica. Nothing is written."""

    @abstractmethod
    async def scale_deployment(
        self, token: str | None, name: str, document: JsonValue, if_match: int | None
    ) -> JsonValue | Refusal:
        """Another number of replicas; those that stay run on."""
