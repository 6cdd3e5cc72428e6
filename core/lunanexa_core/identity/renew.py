"""How an enrolled node has its certificate renewed."""

from typing import Final

from lunanexa_core.commands import RenewCertificate
from lunanexa_core.events import NodeCertified
from lunanexa_core.identity.certificate import (
    CROWDED_EVERY_MS,
    HELD_MAX,
    RENEW_EVERY_MS,
    VALID_MS,
    NodeCertificate,
    counting,
)
from lunanexa_core.identity.checks import NOT_ENROLLED, REVOKED
from lunanexa_core.identity.enrol import BAD_VERSION, is_version
from lunanexa_core.ids import NodeId
from lunanexa_core.nodes.directive import RETIRED
from lunanexa_core.outcomes import Outcome, Refusal
from lunanexa_core.policy import Policy
from lunanexa_core.state import Node, State
from lunanexa_core.time import Instant

TOO_LATE: Final = Refusal(
    outcome=Outcome.PERMISSION_DENIED,
    message="The certificate has expired too long ago; an operator must let the node enrol anew.",
)


def renew(state: State, policy: Policy, command: RenewCertificate, now: Instant) -> NodeCertified | Refusal:
    """The renewal, or why it is refused."""
    refusal = renewal_refusal(
        state, policy, command.node, command.certificate.issuer, now, by_challenge=command.by_challenge
    )
    if refusal is not None:
        return refusal
    if state.nodes[command.node].public_key != command.public_key:
        return NOT_ENROLLED  # Another machine was let in by this name since the signature was verified.
    if not is_version(command.agent_version):
        return BAD_VERSION
    return NodeCertified(
        node=command.node,
        certificate=command.certificate,
        by_challenge=command.by_challenge,
        agent_version=command.agent_version,
    )


def renewal_refusal(
    state: State, policy: Policy, name: NodeId, issuer: str, now: Instant, *, by_challenge: bool
) -> Refusal | None:
    """Why a node is not given another certificate of ``issuer``. Who shows a certificate shows one that is good."""
    node = state.nodes.get(name)
    if node is not None and node.retired:
        return RETIRED
    if node is not None and node.revoked:
        return REVOKED
    if node is None or node.public_key is None or not node.certificates:
        return NOT_ENROLLED
    newest = node.certificates[-1]
    if by_challenge and now.wall_ms - newest.not_after_wall_ms > policy.renew_expired_ms:
        return TOO_LATE
    if newest.issuer != issuer:
        return None  # The fleet is told to renew, as often as an operator rotates.
    wait_ms = _every_ms(state, node, now) - (now.wall_ms - (node.certified_wall_ms or 0))
    if wait_ms <= 0:
        return None
    return Refusal(
        outcome=Outcome.RATE_LIMITED,
        message="This node was given certificates just now; it has no use for more.",
        retry_after_ms=wait_ms,
    )


def given_before(state: State, name: NodeId, request: str, wall_ms: int) -> NodeCertificate | None:
    """What the node was given for this very request (SHA-256 of it, hex), by the authority that issues now, if that has
    most of its time yet. Who did not hear the answer is given it again, by whichever controller leads meanwhile:
    another one would be one more that is good, and nobody's."""
    node, trust = state.nodes.get(name), state.trust
    if node is None or trust is None:
        return None
    for one in reversed(node.certificates):
        if one.request == request and one.issuer == trust.issuing.fingerprint:
            return one if one.not_after_wall_ms - wall_ms > VALID_MS // 2 else None
    return None


def _every_ms(state: State, node: Node, now: Instant) -> int:
    """How long after its newest certificate a node is given another. It goes by when that was written down: the clock
    by which certificates are good may be set at any time."""
    good = counting(node.certificates, state.trust, now.wall_ms)
    crowded = len(good) >= HELD_MAX and good[-1].not_after_wall_ms - now.wall_ms > CROWDED_EVERY_MS
    return CROWDED_EVERY_MS if crowded else RENEW_EVERY_MS
