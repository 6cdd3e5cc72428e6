"""What is said of a certificate where it is shown, issued and kept."""

from collections.abc import Iterable
from typing import Final

import attrs

from lunanexa_core.identity.trust import TrustSet
from lunanexa_core.ids import NodeId

VALID_MS: Final = 86_400_000
"""How long a certificate is good from its issue on: a day."""
BACKDATED_MS: Final = 3_600_000
"""How long before its issue it is good already: OpenSSL has no tolerance for a clock that is behind."""
HELD_MAX: Final = 4
"""Certificates of one node that may be good at the same time; older ones are revoked."""
RENEW_EVERY_MS: Final = 60_000
"""A node is given one of the same authority once in so long: each is a row of the journal."""
CROWDED_EVERY_MS: Final = VALID_MS // 4
"""And once in so long where an older one must be revoked for it, of which every node is told. An agent renews after
about half of a certificate's time, and again at once only when it did not hear the answer."""


@attrs.frozen(kw_only=True)
class PeerCertificate:
    """A certificate that was verified against the trusted authorities, as the other end of a connection showed it or
    as a process holds it. Times are of Unix, in seconds."""

    identity: str
    """The one URI of its subject alternative name."""
    serial: str
    """Lower-case hex, without leading zeros."""
    not_before_s: int
    not_after_s: int

    def expired(self, wall_ms: int) -> bool:
        return wall_ms >= self.not_after_s * 1_000


@attrs.frozen(kw_only=True)
class NodeCertificate:
    """A certificate that a node was given, as the journal keeps it."""

    serial: str
    issuer: str
    """The fingerprint of its authority."""
    not_after_wall_ms: int
    request: str = ""
    """SHA-256 of the PKCS #10 request (DER) that it answers, hex; empty: of an older version, and of none."""


def counting(
    certificates: Iterable[NodeCertificate], trust: TrustSet | None, wall_ms: int
) -> tuple[NodeCertificate, ...]:
    """Those that somebody would believe: they are good yet, and of an authority that is trusted."""
    trusted = () if trust is None else tuple(one.fingerprint for one in trust.authorities)
    return tuple(one for one in certificates if wall_ms < one.not_after_wall_ms and one.issuer in trusted)


@attrs.frozen(kw_only=True)
class RevokedCertificate:
    """A certificate that counts no more, kept for as long as it would have been good."""

    serial: str
    node: NodeId
    revoked_wall_ms: int
    not_after_wall_ms: int


@attrs.frozen(kw_only=True)
class CertificateTerms:
    """What an authority writes into a certificate; of a request it takes the public key alone."""

    identity: str
    serial: str
    not_before_s: int
    not_after_s: int


def terms_at(identity: str, serial: str, wall_ms: int) -> CertificateTerms:
    """Of a certificate that is issued now."""
    return CertificateTerms(
        identity=identity,
        serial=serial,
        not_before_s=(wall_ms - BACKDATED_MS) // 1_000,
        not_after_s=(wall_ms + VALID_MS) // 1_000,
    )


def renew_after_ms(valid_ms: int, jitter_per_mille: int) -> int:
    """How long a party waits with its renewal that has a certificate for ``valid_ms`` yet: half of that, a tenth of it
    sooner or later, as ``jitter_per_mille`` (0 to 999) says, so that a fleet that was enrolled at once is not renewed
    at once for ever."""
    half = max(0, valid_ms) // 2
    return half - half // 10 + half * jitter_per_mille // 5_000
