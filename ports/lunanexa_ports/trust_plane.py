"""Driving port: who belongs to the fleet, and what all of it trust, as operators decide it.

Documents are JSON values in the wire form of ``/admin/v1``; a token is the presented bearer secret.
"""

from abc import abstractmethod
from typing import Protocol

from lunanexa_core.canonical import JsonValue
from lunanexa_core.outcomes import Refusal


class TrustPlane(Protocol):
    """Each method answers 401/403 as a refusal when the token does not allow it."""

    @abstractmethod
    async def mint_token(self, token: str | None, node: str, document: JsonValue) -> JsonValue | Refusal:
        """An enrolment token for one node, good once and for fifteen minutes at most. Its line is in this answer and
        nowhere else, ever. For a node that is enrolled only when ``document`` says ``again``."""

    @abstractmethod
    async def revoke_node(self, token: str | None, node: str, document: JsonValue) -> JsonValue | Refusal:
        """Voids a node's certificates and its signing key at once: nothing of it is heard, nothing is granted to it,
        and what it had is placed elsewhere. It may enrol anew with a token."""

    @abstractmethod
    async def set_address(self, token: str | None, node: str, document: JsonValue) -> JsonValue | Refusal:
        """Where gateways reach a node's data listener from now on."""

    @abstractmethod
    async def trust(self, token: str | None) -> JsonValue | Refusal:
        """The trusted authorities and signing keys, the stage of a rotation, and the nodes for which it waits."""

    @abstractmethod
    async def rotate(self, token: str | None) -> JsonValue | Refusal:
        """Begins to exchange authority and signing key for new ones; goes on by itself as nodes follow. While a
        rotation is under way it changes nothing. Answers as :meth:`trust` does."""

    @abstractmethod
    async def revocation_list(self, token: str | None) -> str | Refusal:
        """A signed list (CRL, PEM) of the revoked certificates that have not expired, for others than our own."""
