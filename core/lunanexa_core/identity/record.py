"""What enrolments, certificates, revocations and trust make of state. Called by ``apply`` alone."""

from collections.abc import Sequence
from typing import assert_never

import attrs

from lunanexa_core.events import EnrolmentTokenMinted, Liveness, NodeCertified, NodeEnrolled, NodeRevoked, TrustChanged
from lunanexa_core.identity.certificate import HELD_MAX, NodeCertificate, RevokedCertificate, counting
from lunanexa_core.identity.token import KnownToken
from lunanexa_core.ids import NodeId
from lunanexa_core.southbound.documents import Directive
from lunanexa_core.state import Node, State


def record(
    state: State, event: TrustChanged | EnrolmentTokenMinted | NodeEnrolled | NodeCertified, wall_ms: int
) -> None:
    match event:
        case TrustChanged():
            _record_trust(state, event, wall_ms)
        case EnrolmentTokenMinted():
            _record_token(state, event, wall_ms)
        case NodeEnrolled():
            _record_enrolment(state, event, wall_ms)
        case NodeCertified():
            _record_certificate(state, event, wall_ms)
        case _:
            assert_never(event)


def _record_trust(state: State, changed: TrustChanged, wall_ms: int) -> None:
    state.trust = changed.trust
    tell_all(state, wall_ms)


def _record_token(state: State, minted: EnrolmentTokenMinted, wall_ms: int) -> None:
    """The only token of its node. Those whose time is over leave with it."""
    for name, token in list(state.tokens.items()):
        if token.node == minted.node or wall_ms >= token.expires_wall_ms:
            del state.tokens[name]
    state.tokens[minted.token] = KnownToken(
        token=minted.token,
        node=minted.node,
        digest=minted.digest,
        expires_wall_ms=minted.expires_wall_ms,
        loopback=minted.loopback,
    )


def _record_enrolment(state: State, enrolled: NodeEnrolled, wall_ms: int) -> None:
    """A node of ours from here on, in service. Another one by its name is not, nor is it with what it had."""
    known = state.nodes.get(enrolled.node, Node(node=enrolled.node))
    named = attrs.evolve(
        known, public_key=enrolled.public_key, agent_version=enrolled.agent_version, enrolled_wall_ms=wall_ms
    )
    if enrolled.token is None or enrolled.certificate is None:
        state.nodes[enrolled.node] = named
        return
    token = state.tokens.get(enrolled.token)
    state.nodes[enrolled.node] = attrs.evolve(
        named,
        certificates=(enrolled.certificate,),
        certified_wall_ms=wall_ms,
        data_address=enrolled.data_address,
        loopback=token is not None and token.loopback,
        revoked=False,
        retired=False,
        directive=Directive.ACTIVE,
        directive_wall_ms=wall_ms,
        directive_reason=None,
        directive_within_ms=None,
    )
    if token is not None:
        state.tokens[enrolled.token] = attrs.evolve(token, used_by=enrolled.public_key)
    _void(state, enrolled.node, known.certificates, wall_ms)
    if known.public_key is not None or known.revoked or known.retired:
        tell_all(state, wall_ms)


def _record_certificate(state: State, certified: NodeCertified, wall_ms: int) -> None:
    """One more. Of too many that somebody would believe the oldest are revoked."""
    node = state.nodes[certified.node]
    certificates = (*counting(node.certificates, state.trust, wall_ms), certified.certificate)
    state.nodes[certified.node] = attrs.evolve(
        node,
        certificates=certificates[-HELD_MAX:],
        certified_wall_ms=wall_ms,
        agent_version=certified.agent_version,
    )
    if len(certificates) > HELD_MAX:
        _void(state, certified.node, certificates[:-HELD_MAX], wall_ms)
        tell_all(state, wall_ms)


def record_revocation(state: State, revoked: NodeRevoked, wall_ms: int) -> None:
    """Nothing of it counts. Its replicas are none of ours; whether they run is not known."""
    node = state.nodes[revoked.node]
    state.nodes[revoked.node] = attrs.evolve(
        node, revoked=True, public_key=None, certificates=(), liveness=Liveness.LOST
    )
    for name in [name for name, token in state.tokens.items() if token.node == revoked.node]:
        del state.tokens[name]
    _void(state, revoked.node, node.certificates, wall_ms)
    tell_all(state, wall_ms)


def _void(state: State, node: NodeId, certificates: Sequence[NodeCertificate], wall_ms: int) -> None:
    for one in certificates:
        if wall_ms < one.not_after_wall_ms:
            state.revoked[one.serial] = RevokedCertificate(
                serial=one.serial, node=node, revoked_wall_ms=wall_ms, not_after_wall_ms=one.not_after_wall_ms
            )


def tell_all(state: State, wall_ms: int) -> None:
    """Every node's document is another from here on. Only now revocations may leave it: the same generation has the
    same content."""
    for serial, one in list(state.revoked.items()):
        if wall_ms >= one.not_after_wall_ms:
            del state.revoked[serial]
    for name, node in state.nodes.items():
        state.nodes[name] = attrs.evolve(node, generation=node.generation + 1)
