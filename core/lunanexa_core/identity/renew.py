"""How an enrolled node has its certificate renewed."""

from typing import Final

from lunanexa_core.commands import RenewCertificate
from lunanexa_core.events import NodeCertified
from lunanexa_core.identity.certificate import RENEW_EVERY_MS
from lunanexa_core.identity.checks import NOT_ENROLLED, REVOKED
from lunanexa_core.identity.enrol import BAD_VERSION, is_version
from lunanexa_core.ids import NodeId
from lunanexa_core.nodes.directive import RETIRED
from lunanexa_core.outcomes import Outcome, Refusal
from lunanexa_core.policy import Policy
from lunanexa_core.state import State
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
    since_ms = now.wall_ms - newest.issued_wall_ms
    if newest.issuer == issuer and 0 <= since_ms < RENEW_EVERY_MS:
        return Refusal(
            outcome=Outcome.RATE_LIMITED,
            message="This node was given a certificate just now.",
            retry_after_ms=RENEW_EVERY_MS - since_ms,
        )
    return None
