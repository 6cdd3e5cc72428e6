"""How nodes become the cluster's, and stay it: enrolment by a token, and certificates anew.

A challenge is not kept: it is a time and what only a controller of this cluster can make of it, so that any of them
can tell within a minute whether it is answered.
"""

import hmac
from typing import Final

import structlog

from lunanexa_apps.codec import CodecError, decode, encode
from lunanexa_apps.controller.batches import STORE_DOWN
from lunanexa_apps.controller.issuing import ClusterKeys, Issued, request_digest
from lunanexa_apps.controller.kernel import Kernel
from lunanexa_apps.controller.unreadable import unreadable
from lunanexa_core.commands import EnrolNode, RenewCertificate
from lunanexa_core.identity.certificate import PeerCertificate
from lunanexa_core.identity.checks import check_peer
from lunanexa_core.identity.enrol import token_refusal
from lunanexa_core.identity.names import Identity, node_identity
from lunanexa_core.identity.renew import given_before, renewal_refusal
from lunanexa_core.ids import NodeId
from lunanexa_core.keys import derive_challenge, secret_digest
from lunanexa_core.outcomes import Outcome, Refusal
from lunanexa_core.southbound.documents import SignedDocument
from lunanexa_core.southbound.enrolment import Authorities, Challenge, Enrolled, Enrolment, Renewal
from lunanexa_ports.signing import Verifier

_log = structlog.get_logger()
CHALLENGE_MS: Final = 60_000
BAD_SIGNATURE: Final = Refusal(
    outcome=Outcome.PERMISSION_DENIED, message="The document is not signed by this node's key."
)
BAD_CHALLENGE: Final = Refusal(
    outcome=Outcome.PERMISSION_DENIED,
    message="The challenge is not one for this node, or its minute is over; ask for another.",
)
_BAD_HEX: Final = Refusal(
    outcome=Outcome.INVALID_REQUEST, message="certificate_request must be hexadecimal.", param="certificate_request"
)


class NodeAdmission:
    """The verbs for which no certificate is needed, and its renewal. ``secret`` is the installation's."""

    def __init__(self, kernel: Kernel, keys: ClusterKeys, verifier: Verifier, secret: str) -> None:
        self._kernel = kernel
        self._keys = keys
        self._verifier = verifier
        self._secret = secret

    def authorities(self) -> bytes | Refusal:
        """Also of a controller that does not lead: who enrols asks it no more before it knows whom it may believe."""
        state = self._kernel.state
        if not self._kernel.replayed or state.cluster is None or state.trust is None:
            return self._kernel.unserved() or STORE_DOWN
        certificates = tuple(one.certificate for one in state.trust.authorities)
        return encode(Authorities(cluster=state.cluster, certificates=certificates))

    async def enrol(self, node: NodeId, document: SignedDocument) -> bytes | Refusal:
        refusal = self._kernel.unserved()
        if refusal is not None:
            return refusal
        try:
            asked = decode(Enrolment, document.payload)
        except CodecError as error:
            return unreadable(error)
        if asked.node != node:
            return Refusal(outcome=Outcome.PERMISSION_DENIED, message="The enrolment names another node.")
        # The signature by the brought key proves that the node holds its private half.
        if not self._verifier.verify(document, {document.key_id: asked.public_key}):
            return BAD_SIGNATURE
        digest, now = secret_digest(asked.secret), self._kernel.now()
        # Nobody has anything signed here who has no token. What counts is the decision below.
        refusal = token_refusal(self._kernel.state, node, asked.token, digest, asked.public_key, now)
        if refusal is not None:
            return refusal
        request = _request_of(asked.certificate_request)
        if isinstance(request, Refusal):
            return request
        issued = self._keys.issue(self._identity(node), request)
        if isinstance(issued, Refusal):
            return issued
        command = EnrolNode(
            node=node,
            public_key=asked.public_key,
            agent_version=asked.agent_version,
            token=asked.token,
            digest=digest,
            certificate=issued.certificate,
            data_address=asked.data_address,
        )
        answer = await self._kernel.ask(command, node)
        if isinstance(answer, Refusal):
            return answer
        _log.info("node_enrolled", node=node, token=asked.token, serial=issued.certificate.serial)
        return self._enrolled(node, issued)

    def challenge(self, node: NodeId) -> bytes | Refusal:
        refusal = self._kernel.unserved()
        return refusal or encode(Challenge(challenge=self._challenge_of(node, self._kernel.now().wall_ms)))

    async def renew(self, node: NodeId, peer: PeerCertificate | None, document: SignedDocument) -> bytes | Refusal:
        refusal = self._kernel.unserved()
        if refusal is not None:
            return refusal
        state, now = self._kernel.state, self._kernel.now()
        stranger, known = check_peer(state, node, peer, now), state.nodes.get(node)
        if known is None or known.public_key is None:
            # Only who shows a certificate is told more.
            return BAD_SIGNATURE if peer is None or stranger is None else stranger
        if not self._verifier.verify(document, {document.key_id: known.public_key}):
            return BAD_SIGNATURE
        try:
            asked = decode(Renewal, document.payload)
        except CodecError as error:
            return unreadable(error)
        if asked.node != node:
            return Refusal(outcome=Outcome.PERMISSION_DENIED, message="The renewal names another node.")
        if stranger is not None and asked.challenge is None:
            return stranger
        by_challenge = stranger is not None
        if by_challenge and not self._is_answered(node, asked.challenge or "", now.wall_ms):
            return BAD_CHALLENGE
        return await self._renew(node, known.public_key, asked, by_challenge=by_challenge)

    async def _renew(self, node: NodeId, public_key: str, asked: Renewal, *, by_challenge: bool) -> bytes | Refusal:
        kernel, trust = self._kernel, self._kernel.state.trust
        if trust is None:
            return STORE_DOWN
        issuer = trust.issuing.fingerprint
        refusal = renewal_refusal(kernel.state, kernel.policy, node, issuer, kernel.now(), by_challenge=by_challenge)
        if refusal is not None and refusal.outcome is not Outcome.RATE_LIMITED:
            return refusal
        request = _request_of(asked.certificate_request)
        if isinstance(request, Refusal):
            return request
        given = given_before(kernel.state, node, request_digest(request), self._keys.wall_ms)
        if given is None and refusal is not None:
            return refusal
        issued = self._keys.issue(self._identity(node), request, again=given)
        if isinstance(issued, Refusal):
            return issued
        if given is not None:
            _log.info("node_certified_again", node=node, serial=given.serial, by_challenge=by_challenge)
            return self._enrolled(node, issued)
        command = RenewCertificate(
            node=node,
            public_key=public_key,
            certificate=issued.certificate,
            by_challenge=by_challenge,
            agent_version=asked.agent_version,
        )
        answer = await kernel.ask(command, node)
        if isinstance(answer, Refusal):
            return answer
        _log.info("node_certified", node=node, serial=issued.certificate.serial, by_challenge=by_challenge)
        return self._enrolled(node, issued)

    def _enrolled(self, node: NodeId, issued: Issued) -> bytes:
        state = self._kernel.state
        identity, known = self._identity(node), state.nodes[node]
        return encode(
            Enrolled(
                cluster=identity.cluster,
                epoch=state.epoch,
                trust=issued.trust,
                certificate=issued.chain,
                valid_ms=max(0, issued.certificate.not_after_wall_ms - self._keys.wall_ms),
                data_address=known.data_address,
            )
        )

    def _identity(self, node: NodeId) -> Identity:
        cluster = self._kernel.state.cluster
        assert cluster is not None, "who leads has begun"
        return node_identity(cluster, node)

    def _challenge_of(self, node: NodeId, wall_ms: int) -> str:
        return f"{wall_ms}.{derive_challenge(self._secret, node, wall_ms)}"

    def _is_answered(self, node: NodeId, challenge: str, wall_ms: int) -> bool:
        given, _, _ = challenge.partition(".")
        if not (given.isascii() and given.isdecimal() and len(given) < 18):
            return False
        fresh = 0 <= wall_ms - int(given) <= CHALLENGE_MS
        return hmac.compare_digest(self._challenge_of(node, int(given)).encode(), challenge.encode()) and fresh


def _request_of(text: str) -> bytes | Refusal:
    try:
        return bytes.fromhex(text)
    except ValueError:
        return _BAD_HEX
