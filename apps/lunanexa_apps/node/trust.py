"""Which documents this node follows: whose key, which cluster, in what order. Kept over the agent's death."""

from typing import Final

import attrs
import structlog

from lunanexa_apps.codec import CodecError, decode, encode
from lunanexa_core.ids import NodeId
from lunanexa_core.southbound.documents import DesiredState, DocumentRefusal, SignedDocument, check_order
from lunanexa_core.southbound.heartbeat import Enrolled
from lunanexa_ports.node_store import NodeStore
from lunanexa_ports.signing import Verifier

_ENROLLED: Final = "enrolled"
_DOCUMENT: Final = "document"
_log = structlog.get_logger()


@attrs.frozen
class OtherCluster:
    """The controller is of another cluster than the one that this node belongs to."""

    ours: str
    theirs: str


class Trust:
    """The node's enrolment and the newest document that it accepted."""

    def __init__(self, store: NodeStore, verifier: Verifier, node: NodeId) -> None:
        self._store = store
        self._verifier = verifier
        self._node = node
        self.enrolled: Enrolled | None = None
        self.accepted: DesiredState | None = None

    async def load(self) -> None:
        """What an earlier agent accepted. A document that does not verify any more is left where it is and
        not followed; the controller's next one replaces it."""
        enrolled = await self._store.get(_ENROLLED)
        if enrolled is None:
            return
        try:
            self.enrolled = decode(Enrolled, enrolled)
            document = await self._store.get(_DOCUMENT)
            if document is None:
                return
            read = self._read(decode(SignedDocument, document))
        except CodecError as error:
            _log.error("stored_document_unreadable", place=error.path, problem=error.problem)
            return
        if isinstance(read, DesiredState):
            self.accepted = read
        else:
            _log.error("stored_document_refused", refusal=read.value)

    async def enrol(self, enrolled: Enrolled) -> OtherCluster | None:
        """Trusts the controller's keys from now on. A node belongs to one cluster for good."""
        if self.enrolled is not None and self.enrolled.cluster != enrolled.cluster:
            return OtherCluster(self.enrolled.cluster, enrolled.cluster)
        if self.enrolled != enrolled:
            await self._store.put(_ENROLLED, encode(enrolled))
            self.enrolled = enrolled
        return None

    async def offer(self, document: SignedDocument) -> DesiredState | DocumentRefusal:
        """Follows ``document`` if it may be followed; it is durable when this returns."""
        desired = self._read(document)
        if isinstance(desired, DocumentRefusal):
            return desired
        await self._store.put(_DOCUMENT, encode(document))
        self.accepted = desired
        return desired

    def _read(self, document: SignedDocument) -> DesiredState | DocumentRefusal:
        """Verified first, parsed after, then put in order."""
        assert self.enrolled is not None
        if document.key_id not in self.enrolled.signing_keys:
            return DocumentRefusal.UNKNOWN_KEY
        if not self._verifier.verify(document, self.enrolled.signing_keys):
            return DocumentRefusal.BAD_SIGNATURE
        try:
            desired = decode(DesiredState, document.payload)
        except CodecError as error:
            _log.error("document_unreadable", place=error.path, problem=error.problem)
            return DocumentRefusal.NOT_READABLE
        refusal = check_order(self.accepted, desired, cluster=self.enrolled.cluster, node=self._node)
        return desired if refusal is None else refusal
