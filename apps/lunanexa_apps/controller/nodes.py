"""The node plane: enrolment, heartbeats and the signed desired state, as the kernel knows them."""

import hmac

import structlog
import trio

from lunanexa_apps.codec import CodecError, decode, encode
from lunanexa_apps.controller.batches import STORE_DOWN
from lunanexa_apps.controller.kernel import Kernel
from lunanexa_apps.controller.unreadable import unreadable
from lunanexa_core.commands import EnrolNode, ReportHeartbeat
from lunanexa_core.deployment import Assignment
from lunanexa_core.ids import NodeId
from lunanexa_core.keys import derive_engine_key, secret_digest
from lunanexa_core.outcomes import Outcome, Refusal
from lunanexa_core.southbound.build import desired_state
from lunanexa_core.southbound.documents import SignedDocument
from lunanexa_core.southbound.heartbeat import Enrolled, Enrolment, Heartbeat, HeartbeatAnswer
from lunanexa_core.state import Node
from lunanexa_ports.node_plane import NodePlane
from lunanexa_ports.signing import Signer, Verifier

_log = structlog.get_logger()
WAIT_MS_MAX = 60_000
_KEY_REFUSED = Refusal(outcome=Outcome.INVALID_API_KEY, message="The node's key is missing or wrong.")
_BAD_SIGNATURE = Refusal(outcome=Outcome.PERMISSION_DENIED, message="The document is not signed by this node's key.")


class KernelNodePlane(NodePlane):
    """Checks who speaks and that it signed what it says; then it is a command like any other."""

    def __init__(self, kernel: Kernel, signer: Signer, verifier: Verifier, engine_secret: str) -> None:
        self._kernel = kernel
        self._signer = signer
        self._verifier = verifier
        self._engine_secret = engine_secret

    async def enrol(self, node: NodeId, bearer: str | None, document: SignedDocument) -> bytes | Refusal:
        known = self._authenticate(node, bearer)
        if isinstance(known, Refusal):
            return known
        try:
            enrolment = decode(Enrolment, document.payload)
        except CodecError as error:
            return unreadable(error)
        if enrolment.node != node:
            return Refusal(outcome=Outcome.PERMISSION_DENIED, message="The enrolment names another node.")
        # The signature by the brought key proves that the node holds its private half.
        if not self._verifier.verify(document, {document.key_id: enrolment.public_key}):
            return _BAD_SIGNATURE
        answer = await self._kernel.ask(
            EnrolNode(node=node, public_key=enrolment.public_key, agent_version=enrolment.agent_version), node
        )
        if isinstance(answer, Refusal):
            return answer
        cluster = self._kernel.state.cluster
        assert cluster is not None
        _log.info("node_enrolled", node=node)
        return encode(
            Enrolled(
                cluster=cluster,
                epoch=self._kernel.state.epoch,
                signing_keys={self._signer.key_id: self._signer.public_key},
            )
        )

    async def heartbeat(self, node: NodeId, bearer: str | None, document: SignedDocument) -> bytes | Refusal:
        known = self._authenticate(node, bearer)
        if isinstance(known, Refusal):
            return known
        if known.public_key is None:
            return Refusal(outcome=Outcome.PERMISSION_DENIED, message="This node has not enrolled.")
        if not self._verifier.verify(document, {document.key_id: known.public_key}):
            return _BAD_SIGNATURE
        try:
            heartbeat = decode(Heartbeat, document.payload)
        except CodecError as error:
            return unreadable(error)
        fault = heartbeat.fault()
        if fault is not None:
            return unreadable(CodecError(f"$.{fault[0]}", fault[1]))
        if heartbeat.node != node:
            return Refusal(outcome=Outcome.PERMISSION_DENIED, message="The heartbeat names another node.")
        answer = await self._kernel.ask(ReportHeartbeat(heartbeat), node)
        if isinstance(answer, Refusal):
            return answer
        if not self._kernel.may_write:
            return STORE_DOWN  # It was heard; but another may lead by now, who must hear of the node too.
        return encode(
            HeartbeatAnswer(
                boot=heartbeat.boot,
                sequence=heartbeat.sequence,
                epoch=self._kernel.state.epoch,
                generation=self._kernel.state.nodes[node].generation,
                lease_ms=self._kernel.policy.node_lease_ms,
            )
        )

    async def desired(
        self, node: NodeId, bearer: str | None, after: tuple[int, int], wait_ms: int
    ) -> SignedDocument | Refusal | None:
        known = self._authenticate(node, bearer)
        if isinstance(known, Refusal):
            return known
        with trio.move_on_after(min(max(wait_ms, 0), WAIT_MS_MAX) / 1000):
            while (refusal := self._kernel.suspended()) is None:
                if self._is_newer(node, after):
                    return self._signer.sign(encode(desired_state(self._kernel.state, node, self._engine_key)))
                await self._kernel.wait_until(
                    lambda: self._kernel.suspended() is not None or self._is_newer(node, after)
                )
            return refusal
        return None

    def _is_newer(self, name: NodeId, after: tuple[int, int]) -> bool:
        state = self._kernel.state
        node = state.nodes.get(name)
        return node is not None and (state.epoch, node.generation) > after

    def _authenticate(self, node: NodeId, bearer: str | None) -> Node | Refusal:
        refusal = self._kernel.unserved()
        if refusal is not None:
            return refusal
        known = self._kernel.state.nodes.get(node)
        digest = secret_digest(bearer or "")
        # The comparison runs for unknown nodes too, so that its time tells nothing.
        if not hmac.compare_digest(known.bearer_digest if known else "", digest) or known is None:
            return _KEY_REFUSED
        return known

    def _engine_key(self, assignment: Assignment) -> str:
        return derive_engine_key(self._engine_secret, assignment.assignment, assignment.generation)
