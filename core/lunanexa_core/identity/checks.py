"""Whether who speaks on the node plane is the node that it says it is, and one of ours."""

from typing import Final

from lunanexa_core.identity.certificate import PeerCertificate
from lunanexa_core.identity.names import node_identity
from lunanexa_core.ids import NodeId
from lunanexa_core.outcomes import Outcome, Refusal
from lunanexa_core.state import State
from lunanexa_core.time import Instant


def _denied(message: str) -> Refusal:
    return Refusal(outcome=Outcome.PERMISSION_DENIED, message=message)


NOT_ENROLLED: Final = _denied("This node is not enrolled; an operator must let it enrol.")
NO_CERTIFICATE: Final = _denied("A certificate of this node must be shown.")
OTHER_CERTIFICATE: Final = _denied("The certificate is not of this node.")
EXPIRED: Final = _denied("The certificate has expired; renew it by a challenge.")
REVOKED: Final = _denied("The certificate was revoked; an operator must let the node enrol anew.")


def check_peer(state: State, node: NodeId, peer: PeerCertificate | None, now: Instant) -> Refusal | None:
    """Why a verified peer may not speak for ``node``. A retired node may: it is told so."""
    if peer is None:
        return NO_CERTIFICATE
    if state.cluster is None or peer.identity != node_identity(state.cluster, node).uri:
        return OTHER_CERTIFICATE
    if peer.expired(now.wall_ms):
        return EXPIRED
    known = state.nodes.get(node)
    if peer.serial in state.revoked or (known is not None and known.revoked):
        return REVOKED
    return NOT_ENROLLED if known is None or known.public_key is None else None
