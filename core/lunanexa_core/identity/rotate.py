"""What all trust: at a leader's beginning, and through a rotation, as far as nodes have followed."""

from lunanexa_core.commands import Begin, RotateTrust
from lunanexa_core.events import TrustChanged
from lunanexa_core.identity.trust import NodeTrust, TrustStage, behind, first_trust, next_step, spread
from lunanexa_core.ids import NodeId
from lunanexa_core.observed import Observed
from lunanexa_core.outcomes import Outcome, Refusal
from lunanexa_core.state import Node, State


def begin_trust(state: State, command: Begin) -> TrustChanged | None:
    """A cluster's first set; or a fresh one where the installation has no key of any authority of the old one, as after
    a loss of keys, or with the store of another installation: then each node must enrol anew. ``None``: no change."""
    trust = state.trust
    if trust is None:
        return TrustChanged(first_trust(command.authority, command.signing_key))
    if holds_any(state, command):
        # A store that was set back to before the end of a rotation, after which the old keys were removed.
        removed = trust.issuing.fingerprint not in _held(command)
        return TrustChanged(next_step(trust)) if removed and trust.stage is TrustStage.SPREADING else None
    return TrustChanged(first_trust(command.authority, command.signing_key, trust.version + 1))


def holds_any(state: State, command: Begin) -> bool:
    """Whether the installation has the key of an authority that is trusted."""
    trusted = () if state.trust is None else state.trust.authorities
    return any(one.fingerprint in _held(command) for one in trusted)


def _held(command: Begin) -> frozenset[str]:
    return command.held | {command.authority.fingerprint}


def rotate(state: State, command: RotateTrust) -> TrustChanged | Refusal | None:
    """The first step of a rotation; ``None`` while one is under way."""
    trust = state.trust
    if trust is None or trust.stage is not TrustStage.STABLE:
        return None
    if command.authority in trust.authorities or command.signing_key in trust.signing_keys:
        return Refusal(outcome=Outcome.INVALID_REQUEST, message="The new keys are those that are in use.")
    return TrustChanged(spread(trust, command.authority, command.signing_key))


def rotation_step(state: State, observed: Observed) -> TrustChanged | None:
    """The next step of a rotation, once nobody is behind."""
    if state.trust is None or state.trust.stage is TrustStage.STABLE or awaited(state, observed):
        return None
    return TrustChanged(next_step(state.trust))


def awaited(state: State, observed: Observed) -> tuple[NodeId, ...]:
    """The nodes for which a rotation waits, in stable order."""
    if state.trust is None:
        return ()
    members = (node for _, node in sorted(state.nodes.items()) if _is_member(node))
    return behind(state.trust, tuple(_trust_of(observed, node) for node in members))


def _is_member(node: Node) -> bool:
    """Whether it could come back by itself."""
    return node.public_key is not None and bool(node.certificates) and not node.retired and not node.revoked


def _trust_of(observed: Observed, node: Node) -> NodeTrust:
    reading = observed.nodes.get(node.node)
    return NodeTrust(
        node=node.node,
        version=None if reading is None else reading.heartbeat.trust_version,
        issuer=_shown_issuer(node, None if reading is None else reading.heartbeat.certificate),
    )


def _shown_issuer(node: Node, serial: str | None) -> str | None:
    """Of the certificate that the node says it shows: the answer that brought a newer one may be lost. An agent that is
    too old to say counts as showing the newest."""
    if serial is None:
        return node.certificates[-1].issuer
    return next((one.issuer for one in node.certificates if one.serial == serial), None)
