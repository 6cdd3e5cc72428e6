"""What the operator plane answers of who belongs to the fleet and what all of it trust, and what may be asked for."""

import enum

import attrs

from lunanexa_core.contract.schema import rules
from lunanexa_core.identity.trust import TrustStage
from lunanexa_core.ids import NodeId
from lunanexa_core.nodes.directive import REASON_MAX


@attrs.frozen
class TokenRequest:
    """An enrolment token for one node. ``again``: also for a node that is enrolled; its certificates are revoked when
    the token is used. ``loopback``: for a node of the controller's own machine, which may do without a data listener:
    its engines are reached on the loopback."""

    again: bool = False
    loopback: bool = False


@attrs.frozen(kw_only=True)
class TokenMinted:
    """A token, with its one line: it is shown this once, and good once. ``node_url`` is where the node enrols;
    ``None``: this controller has no listener for nodes."""

    node: NodeId
    token: str
    line: str = attrs.field(repr=False)
    expires_in_ms: int
    node_url: str | None


@attrs.frozen
class RevokeRequest:
    """Why, for the journal."""

    reason: str | None = attrs.field(default=None, metadata=rules(maxLength=REASON_MAX))


@attrs.frozen
class AddressRequest:
    """``HOST:PORT`` of the node's data listener, as gateways reach it; ``None``: it has none."""

    data_address: str | None


@attrs.frozen(kw_only=True)
class AuthorityDocument:
    """A certificate authority; one of them issues."""

    fingerprint: str
    certificate: str
    issuing: bool


@attrs.frozen(kw_only=True)
class SigningKeyDocument:
    """A key that signs documents; one of them is in use."""

    key_id: str
    public_key: str
    signing: bool


class Lack(enum.Enum):
    """What a rotation waits for."""

    NOT_HEARD = "not_heard"
    OLD_TRUST = "old_trust"
    OLD_CERTIFICATE = "old_certificate"


@attrs.frozen(kw_only=True)
class AwaitedNode:
    """A node for which a rotation waits. ``state`` is its liveness."""

    node: NodeId
    state: str
    lacks: Lack


@attrs.frozen(kw_only=True)
class TrustDocument:
    """What all of the cluster trust, oldest first. While ``stage`` is not ``stable`` a rotation goes on by itself, as
    soon as no node is in ``waiting``. ``revoked`` counts revoked certificates that have not expired."""

    version: int
    stage: TrustStage
    authorities: tuple[AuthorityDocument, ...]
    signing_keys: tuple[SigningKeyDocument, ...]
    waiting: tuple[AwaitedNode, ...]
    revoked: int
