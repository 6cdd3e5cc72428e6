"""What all of a cluster trust: certificate authorities and the keys that sign documents, and how both are exchanged
without a moment in which somebody does not trust what another shows.

A rotation adds the new ones (``SPREADING``: trusted by whoever was told, used by nobody), uses them once every node
was told (``TURNING``: nodes renew), and drops the old ones once no node stands on them (``STABLE``)."""

import enum

import attrs

from lunanexa_core.ids import NodeId


class TrustStage(enum.Enum):
    STABLE = "stable"
    SPREADING = "spreading"
    TURNING = "turning"


@attrs.frozen(kw_only=True)
class Authority:
    """A certificate authority, by what others verify with."""

    fingerprint: str
    """SHA-256 of the DER form of its root's public key (SubjectPublicKeyInfo), hex."""
    certificate: str
    """Its root certificate, PEM."""


@attrs.frozen(kw_only=True)
class SigningKey:
    """A key that signs documents."""

    key_id: str
    public_key: str
    """Raw Ed25519 public key, hex."""


@attrs.frozen(kw_only=True)
class TrustSet:
    """Oldest first, two of each at most. The first are in use but while the stage is ``TURNING``, when the last are."""

    version: int
    authorities: tuple[Authority, ...]
    signing_keys: tuple[SigningKey, ...]
    stage: TrustStage = TrustStage.STABLE

    @property
    def issuing(self) -> Authority:
        """Which authority issues certificates now."""
        return self.authorities[-1 if self.stage is TrustStage.TURNING else 0]

    @property
    def signing(self) -> SigningKey:
        """Which key signs documents now."""
        return self.signing_keys[-1 if self.stage is TrustStage.TURNING else 0]

    def shares_authority(self, other: "TrustSet") -> bool:
        """Whether somebody who trusts one of them may be known to who trusts the other."""
        return any(one in other.authorities for one in self.authorities)

    @property
    def keys(self) -> dict[str, str]:
        """Public keys by key id, for a verifier."""
        return {key.key_id: key.public_key for key in self.signing_keys}


def first_trust(authority: Authority, signing_key: SigningKey, version: int = 1) -> TrustSet:
    """What a cluster begins with."""
    return TrustSet(version=version, authorities=(authority,), signing_keys=(signing_key,))


def spread(trust: TrustSet, authority: Authority, signing_key: SigningKey) -> TrustSet:
    """The first step of a rotation. Only of a stable set."""
    assert trust.stage is TrustStage.STABLE, trust.stage
    return TrustSet(
        version=trust.version + 1,
        authorities=(*trust.authorities, authority),
        signing_keys=(*trust.signing_keys, signing_key),
        stage=TrustStage.SPREADING,
    )


def next_step(trust: TrustSet) -> TrustSet:
    """The second step, and then the last."""
    if trust.stage is TrustStage.SPREADING:
        return attrs.evolve(trust, version=trust.version + 1, stage=TrustStage.TURNING)
    assert trust.stage is TrustStage.TURNING, trust.stage
    return first_trust(trust.authorities[-1], trust.signing_keys[-1], trust.version + 1)


@attrs.frozen(kw_only=True)
class NodeTrust:
    """How far one node is, as its heartbeats and the journal say."""

    node: NodeId
    version: int | None
    """Of the set that it follows; ``None``: it was not heard by this leader."""
    issuer: str | None
    """Of the certificate that it shows; ``None``: of none that it was given."""


def behind(trust: TrustSet, nodes: tuple[NodeTrust, ...]) -> tuple[NodeId, ...]:
    """The nodes for which a rotation waits: they would trust nobody, or be trusted by nobody, after its next step."""
    if trust.stage is TrustStage.STABLE:
        return ()
    turning = trust.stage is TrustStage.TURNING
    return tuple(
        one.node
        for one in nodes
        if one.version is None or one.version < trust.version or (turning and one.issuer != trust.issuing.fingerprint)
    )
