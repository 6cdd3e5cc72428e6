"""How a node becomes one of a cluster's, and stays it: enrolment by a token, renewal of its certificate."""

import attrs

from lunanexa_core.identity.trust import TrustSet
from lunanexa_core.ids import ClusterId, NodeId


@attrs.frozen(kw_only=True)
class Authorities:
    """What a controller shows to whoever asks. Nobody believes it: a token's fingerprint says which is right."""

    cluster: ClusterId
    certificates: tuple[str, ...]
    """Roots, PEM."""


@attrs.frozen(kw_only=True)
class Enrolment:
    """A node's first word, signed by the key that it brings. ``repr`` shows no token."""

    node: NodeId
    public_key: str
    """Its signing key: raw Ed25519 public key, hex."""
    agent_version: str
    token: str
    """The token's name."""
    secret: str = attrs.field(repr=False)
    certificate_request: str
    """PKCS #10, DER, hex."""
    data_address: str | None = None
    """``HOST:PORT`` at which gateways reach the node's data listener. It is bound here: no later word of the node
    changes it. ``None``, where the token allows that: its engines are reached on the loopback of the controller's own
    machine, and nowhere else."""


@attrs.frozen(kw_only=True)
class Challenge:
    """What a renewal without a certificate must answer within a minute."""

    challenge: str


@attrs.frozen(kw_only=True)
class Renewal:
    """A node asks for a new certificate, signed by its enrolled key."""

    node: NodeId
    certificate_request: str
    """PKCS #10, DER, hex."""
    challenge: str | None = None
    agent_version: str


@attrs.frozen(kw_only=True)
class Enrolled:
    """What a node has and trusts from now on."""

    cluster: ClusterId
    epoch: int
    trust: TrustSet
    certificate: str
    """PEM, with what stands between it and the root."""
    valid_ms: int
    """How long it is good from the answer on: the node's own clock need not be right."""
    data_address: str | None = None
