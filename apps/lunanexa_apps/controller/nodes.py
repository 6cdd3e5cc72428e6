"""The node plane: nodes that show who they are, their heartbeats, and the desired state that is signed for them."""

from typing import Final, TypeVar

import attrs
import structlog
import trio

from lunanexa_apps.codec import CodecError, decode, encode
from lunanexa_apps.controller.batches import STORE_DOWN
from lunanexa_apps.controller.enrolment import BAD_SIGNATURE, NodeAdmission
from lunanexa_apps.controller.issuing import ClusterKeys
from lunanexa_apps.controller.kernel import Kernel
from lunanexa_apps.controller.unreadable import unreadable
from lunanexa_core.commands import ReportHeartbeat, ShowDocument
from lunanexa_core.deployment import Assignment
from lunanexa_core.identity.certificate import PeerCertificate
from lunanexa_core.identity.checks import check_peer
from lunanexa_core.ids import NodeId
from lunanexa_core.keys import derive_engine_key
from lunanexa_core.outcomes import Outcome, Refusal
from lunanexa_core.southbound.build import desired_state
from lunanexa_core.southbound.documents import DesiredState, DocumentSeen, SignedDocument
from lunanexa_core.southbound.heartbeat import Heartbeat, HeartbeatAnswer
from lunanexa_ports.metrics import Metrics
from lunanexa_ports.node_plane import NodePlane
from lunanexa_ports.signing import Verifier

WAIT_MS_MAX = 60_000
_NOTE_EVERY_MS: Final = 60_000
_FINDINGS: Final = "lunanexa_node_findings_total"
HELP: Final = {_FINDINGS: "What nodes said that was not taken as it was, by finding."}
_UNKNOWN_KEY: Final = Refusal(
    outcome=Outcome.DOCUMENT_WANTED,
    message="The document is signed by a key that this controller does not have: the folder controller/secrets must be"
    " copied from the controller that led when it was given.",
)
_NOT_OURS: Final = Refusal(
    outcome=Outcome.DOCUMENT_WANTED, message="The document was not signed by this cluster for this node."
)
_log = structlog.get_logger()
T = TypeVar("T")


class KernelNodePlane(NodePlane):
    """Checks who speaks and that it signed what it says; then it is a command like any other."""

    def __init__(
        self, kernel: Kernel, keys: ClusterKeys, verifier: Verifier, metrics: Metrics, engine_secret: str
    ) -> None:
        self._kernel = kernel
        self._keys = keys
        self._verifier = verifier
        self._metrics = metrics
        self._engine_secret = engine_secret
        self._noted_ms: dict[tuple[str, NodeId], int] = {}
        self._admission = NodeAdmission(kernel, keys, verifier, engine_secret)

    async def authorities(self) -> bytes | Refusal:
        return self._told(self._admission.authorities())

    async def enrol(self, node: NodeId, document: SignedDocument) -> bytes | Refusal:
        return self._told(await self._admission.enrol(node, document))

    async def challenge(self, node: NodeId) -> bytes | Refusal:
        return self._told(self._admission.challenge(node))

    async def renew(self, node: NodeId, peer: PeerCertificate | None, document: SignedDocument) -> bytes | Refusal:
        return self._told(await self._admission.renew(node, peer, document))

    async def heartbeat(self, node: NodeId, peer: PeerCertificate | None, document: SignedDocument) -> bytes | Refusal:
        return self._told(await self._heartbeat(node, peer, document))

    async def desired(
        self, node: NodeId, peer: PeerCertificate | None, after: tuple[int, int], wait_ms: int
    ) -> SignedDocument | Refusal | None:
        return self._told(await self._desired(node, peer, after, wait_ms))

    async def show(self, node: NodeId, peer: PeerCertificate | None, document: SignedDocument) -> bytes | Refusal:
        return self._told(await self._show(node, peer, document))

    def _told(self, answer: T) -> T | Refusal:
        """Nodes alone are told where the controller that leads answers them."""
        if isinstance(answer, Refusal) and answer.outcome is Outcome.NOT_LEADER:
            return attrs.evolve(answer, leader_node_url=self._kernel.leader_node_url)
        return answer

    async def _heartbeat(self, node: NodeId, peer: PeerCertificate | None, document: SignedDocument) -> bytes | Refusal:
        refusal = self._why_not(node, peer)
        if refusal is not None:
            return refusal
        public_key = self._kernel.state.nodes[node].public_key
        if public_key is None or not self._verifier.verify(document, {document.key_id: public_key}):
            return BAD_SIGNATURE
        try:
            heartbeat = decode(Heartbeat, document.payload)
        except CodecError as error:
            return unreadable(error)
        fault = heartbeat.fault()
        if fault is not None:
            return unreadable(CodecError(f"$.{fault[0]}", fault[1]))
        if heartbeat.node != node:
            return Refusal(outcome=Outcome.PERMISSION_DENIED, message="The heartbeat names another node.")
        answer = await self._kernel.ask(ReportHeartbeat(heartbeat, public_key), node)
        if isinstance(answer, Refusal):
            if answer.outcome is Outcome.DOCUMENT_WANTED:
                self._note("node_document_wanted", node, epoch=heartbeat.epoch, generation=heartbeat.generation)
            return answer
        reading = self._kernel.observed.nodes.get(node)
        if reading is not None and reading.withheld:
            self._note("node_reports_withheld", node, replicas=len(heartbeat.replicas))
        if not self._kernel.may_write:
            return STORE_DOWN  # It was heard; but another may lead by now, who must hear of the node too.
        return encode(
            HeartbeatAnswer(
                boot=heartbeat.boot,
                sequence=heartbeat.sequence,
                epoch=self._kernel.state.epoch,
                generation=self._kernel.state.nodes[node].generation,
                lease_ms=self._kernel.policy.node_lease_ms,
                wall_ms=self._kernel.wall_ms(),
            )
        )

    async def _show(self, node: NodeId, peer: PeerCertificate | None, document: SignedDocument) -> bytes | Refusal:
        refusal = self._why_not(node, peer)
        if refusal is not None:
            return refusal
        trusted = self._keys.verifying(document.key_id)
        if not trusted:
            self._note("node_document_of_unknown_key", node, key_id=document.key_id)
            return _UNKNOWN_KEY
        if not self._verifier.verify(document, trusted):
            return _NOT_OURS
        try:
            desired = decode(DesiredState, document.payload)
        except CodecError as error:
            return unreadable(error)
        if desired.node != node or desired.cluster != self._kernel.state.cluster:
            return _NOT_OURS
        seen = DocumentSeen(epoch=desired.epoch, generation=desired.generation)
        answer = await self._kernel.ask(ShowDocument(node=node, epoch=seen.epoch, generation=seen.generation), node)
        return answer if isinstance(answer, Refusal) else encode(seen)

    def _note(self, event: str, node: NodeId, **more: object) -> None:
        """Counts it, and logs it once in a while: whoever is to blame says it with each heartbeat."""
        self._metrics.count(_FINDINGS, {"finding": event.removeprefix("node_")})
        now_ms, noted_ms = self._kernel.now().mono_ms, self._noted_ms.get((event, node))
        if noted_ms is None or now_ms - noted_ms >= _NOTE_EVERY_MS:
            self._noted_ms[event, node] = now_ms
            _log.warning(event, node=node, fix="see docs/operations/recovery.md and lunanexa status", **more)

    async def _desired(
        self, node: NodeId, peer: PeerCertificate | None, after: tuple[int, int], wait_ms: int
    ) -> SignedDocument | Refusal | None:
        refusal = self._why_not(node, peer)
        if refusal is not None:
            return refusal
        with trio.move_on_after(min(max(wait_ms, 0), WAIT_MS_MAX) / 1000):
            while (refusal := self._kernel.suspended()) is None:
                if self._is_newer(node, after):
                    # It may have been shut out while it waited.
                    return self._why_not(node, peer) or self._document(node)
                await self._kernel.wait_until(
                    lambda: self._kernel.suspended() is not None or self._is_newer(node, after)
                )
            return refusal
        return None

    def _document(self, node: NodeId) -> SignedDocument | Refusal:
        signer = self._keys.signer()
        if isinstance(signer, Refusal):
            return signer
        return signer.sign(encode(desired_state(self._kernel.state, node, self._engine_key)))

    def _is_newer(self, name: NodeId, after: tuple[int, int]) -> bool:
        state = self._kernel.state
        node = state.nodes.get(name)
        return node is not None and (state.epoch, node.generation) > after

    def _why_not(self, node: NodeId, peer: PeerCertificate | None) -> Refusal | None:
        """Why nothing is taken from who speaks for ``node``, nor told to it."""
        return self._kernel.unserved() or check_peer(self._kernel.state, node, peer, self._kernel.now())

    def _engine_key(self, assignment: Assignment) -> str:
        return derive_engine_key(self._engine_secret, assignment.assignment, assignment.generation)
