"""Driving port: what node agents ask of the controller. Bodies are the bytes as sent, verified before parsed."""

from abc import abstractmethod
from typing import Protocol

from lunanexa_core.ids import NodeId
from lunanexa_core.outcomes import Refusal
from lunanexa_core.southbound.documents import SignedDocument


class NodePlane(Protocol):
    """The node's three verbs. ``bearer`` is the node's installation key (a client certificate later)."""

    @abstractmethod
    async def enrol(self, node: NodeId, bearer: str | None, document: SignedDocument) -> bytes | Refusal:
        """Takes a node's :class:`~lunanexa_core.southbound.heartbeat.Enrolment`, signed by the key that it
        brings, and answers the encoded :class:`~lunanexa_core.southbound.heartbeat.Enrolled`. Idempotent for
        the same key; another key for a known node is refused."""

    @abstractmethod
    async def heartbeat(self, node: NodeId, bearer: str | None, document: SignedDocument) -> bytes | Refusal:
        """Takes a signed heartbeat and answers the encoded
        :class:`~lunanexa_core.southbound.heartbeat.HeartbeatAnswer`; ``stale_generation`` when its sequence
        is not above the last of that boot, or its boot was superseded."""

    @abstractmethod
    async def desired(
        self, node: NodeId, bearer: str | None, after: tuple[int, int], wait_ms: int
    ) -> SignedDocument | Refusal | None:
        """The node's signed desired state once its (epoch, generation) is above ``after``; ``None`` when it
        was not within ``wait_ms``."""
