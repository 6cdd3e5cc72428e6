"""Whom this node trusts, and which documents it follows: whose key, which cluster, in what order. Kept over the
agent's death.

What is trusted changes by a document alone, signed by a key that was trusted before it, and only to a newer set: so a
set of keys is signed by the set before it. The first set comes with the enrolment."""

from typing import Final

import attrs
import structlog

from lunanexa_apps.codec import CodecError, decode, encode
from lunanexa_apps.node.identity import IDENTITY, NodeIdentity, read_identity
from lunanexa_core.identity.trust import TrustSet
from lunanexa_core.ids import NodeId
from lunanexa_core.southbound.documents import DesiredState, DocumentRefusal, SignedDocument, check_order
from lunanexa_ports.credentials import Credentials
from lunanexa_ports.node_store import NodeStore
from lunanexa_ports.signing import Verifier

_DOCUMENT: Final = "document"
_log = structlog.get_logger()


class Trust:
    """The node's enrolment and the newest document that it accepted."""

    def __init__(self, store: NodeStore, verifier: Verifier, credentials: Credentials, node: NodeId) -> None:
        self._store = store
        self._verifier = verifier
        self._credentials = credentials
        self._node = node
        self.identity: NodeIdentity | None = None
        self.accepted: DesiredState | None = None

    @property
    def version(self) -> int | None:
        """Of the set of authorities and keys that is followed."""
        return None if self.identity is None else self.identity.trust.version

    async def load(self) -> None:
        """What an earlier agent accepted. A document that does not verify any more is left where it is and
        not followed; the controller's next one replaces it."""
        self.identity = await read_identity(self._store)
        if self.identity is None:
            return
        document = await self._store.get(_DOCUMENT)
        if document is not None:
            try:
                read = self._read(decode(SignedDocument, document))
            except CodecError as error:
                _log.error("stored_document_unreadable", place=error.path, problem=error.problem)
            else:
                await self._take_up(read)
        # The agent may have died between the store's word and the credentials'.
        self._show_trust()

    async def enrolled(self, identity: NodeIdentity) -> None:
        """The node was let in: from now on this is whose it is. Durable when this returns."""
        await self._keep(identity)
        if self.accepted is not None and self.accepted.cluster != identity.cluster:
            self.accepted = None  # Its order says nothing of another cluster's documents.
        self._show_trust()

    async def renewed(self, issuer: str, data_address: str | None) -> None:
        """The certificate in force is of this authority now, and this is the address that is bound to the node."""
        assert self.identity is not None
        identity = attrs.evolve(self.identity, issuer=issuer, data_address=data_address)
        if identity != self.identity:
            await self._keep(identity)

    async def accepted_document(self) -> SignedDocument | None:
        """What :attr:`accepted` was read from, as it was signed. Raises as the store does."""
        kept = None if self.accepted is None else await self._store.get(_DOCUMENT)
        try:
            return None if kept is None else decode(SignedDocument, kept)
        except CodecError as error:
            _log.error("stored_document_unreadable", place=error.path, problem=error.problem)
            return None

    async def offer(self, document: SignedDocument) -> DesiredState | DocumentRefusal:
        """Follows ``document`` if it may be followed; it is durable when this returns."""
        desired = self._read(document)
        if isinstance(desired, DocumentRefusal):
            return desired
        await self._store.put(_DOCUMENT, encode(document))
        self.accepted = desired
        await self._follow(desired.trust)
        return desired

    async def _take_up(self, read: DesiredState | DocumentRefusal) -> None:
        if isinstance(read, DocumentRefusal):
            _log.error("stored_document_refused", refusal=read.value)
            return
        self.accepted = read
        await self._follow(read.trust)

    async def _follow(self, trust: TrustSet | None) -> None:
        """Of a verified document: the keys that it names replace those that it was verified with."""
        assert self.identity is not None
        if trust is None or trust.version <= self.identity.trust.version:
            return
        await self._keep(attrs.evolve(self.identity, trust=trust))
        self._show_trust()
        _log.info("trust_followed", version=trust.version, stage=trust.stage.value)

    async def _keep(self, identity: NodeIdentity) -> None:
        await self._store.put(IDENTITY, encode(identity))
        self.identity = identity

    def _show_trust(self) -> None:
        """Connections that are opened from now on go by it."""
        assert self.identity is not None
        authorities = self.identity.trust.authorities
        if set(self._credentials.trusted) != {one.fingerprint for one in authorities}:
            self._credentials.trust([one.certificate for one in authorities])

    def _read(self, document: SignedDocument) -> DesiredState | DocumentRefusal:
        """Verified first, parsed after, then put in order."""
        assert self.identity is not None
        keys = self.identity.trust.keys
        if document.key_id not in keys:
            return DocumentRefusal.UNKNOWN_KEY
        if not self._verifier.verify(document, keys):
            return DocumentRefusal.BAD_SIGNATURE
        try:
            desired = decode(DesiredState, document.payload)
        except CodecError as error:
            _log.error("document_unreadable", place=error.path, problem=error.problem)
            return DocumentRefusal.NOT_READABLE
        refusal = check_order(self.accepted, desired, cluster=self.identity.cluster, node=self._node)
        if refusal is None and desired.epoch < self.identity.epoch:
            return DocumentRefusal.ROLLED_BACK
        return desired if refusal is None else refusal
