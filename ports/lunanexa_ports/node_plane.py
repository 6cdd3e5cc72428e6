"""Driving port: what node agents ask of the controller. Bodies are the bytes as sent, verified before parsed.

``peer`` is the verified client certificate of the connection; ``None``: none was shown.
"""

from abc import abstractmethod
from typing import Protocol

from lunanexa_core.identity.certificate import PeerCertificate
from lunanexa_core.ids import NodeId
from lunanexa_core.outcomes import Refusal
from lunanexa_core.southbound.documents import SignedDocument


class NodePlane(Protocol):
    """The node's verbs. But for :meth:`authorities`, :meth:`enrol` and :meth:`challenge`, and a renewal that brings an
    answered challenge, a certificate of that very node is demanded: good by now, and not revoked."""

    @abstractmethod
    async def authorities(self) -> bytes | Refusal:
        """The encoded :class:`~lunanexa_core.southbound.enrolment.Authorities`: public, and to be believed by its
        fingerprint only."""

    @abstractmethod
    async def enrol(self, node: NodeId, document: SignedDocument) -> bytes | Refusal:
        """Takes a node's :class:`~lunanexa_core.southbound.enrolment.Enrolment`, signed by the key that it brings, and
        answers the encoded :class:`~lunanexa_core.southbound.enrolment.Enrolled`. Its token is good once; by the same
        signing key it may be shown again, as long as it is good, by a node that did not hear the answer."""

    @abstractmethod
    async def challenge(self, node: NodeId) -> bytes | Refusal:
        """The encoded :class:`~lunanexa_core.southbound.enrolment.Challenge`, for a node whose certificate has
        expired. Says nothing of whether there is such a node."""

    @abstractmethod
    async def renew(self, node: NodeId, peer: PeerCertificate | None, document: SignedDocument) -> bytes | Refusal:
        """Takes a :class:`~lunanexa_core.southbound.enrolment.Renewal`, signed by the node's enrolled key, and answers
        the encoded :class:`~lunanexa_core.southbound.enrolment.Enrolled`. Without a certificate it must answer a
        challenge."""

    @abstractmethod
    async def heartbeat(self, node: NodeId, peer: PeerCertificate | None, document: SignedDocument) -> bytes | Refusal:
        """Takes a signed heartbeat and answers the encoded
        :class:`~lunanexa_core.southbound.heartbeat.HeartbeatAnswer`; ``stale_generation`` when its sequence
        is not above the last of that boot, or its boot was superseded."""

    @abstractmethod
    async def show(self, node: NodeId, peer: PeerCertificate | None, document: SignedDocument) -> bytes | Refusal:
        """Takes a desired state that the node follows, with the controller's signature as it came, and answers the
        encoded :class:`~lunanexa_core.southbound.documents.DocumentSeen`. Asked for by ``document_wanted``, the answer
        to a heartbeat that tells of a newer one than the store has given; refused so itself where the signature is by
        no key of the cluster that the controller has."""

    @abstractmethod
    async def desired(
        self, node: NodeId, peer: PeerCertificate | None, after: tuple[int, int], wait_ms: int
    ) -> SignedDocument | Refusal | None:
        """The node's signed desired state once its (epoch, generation) is above ``after``; ``None`` when it
        was not within ``wait_ms``."""
