"""Driven port: the private keys by which a controller speaks for its cluster: authorities and signing keys."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Protocol

import attrs

from lunanexa_core.identity.certificate import CertificateTerms
from lunanexa_core.identity.trust import Authority, SigningKey
from lunanexa_ports.signing import Signer


@attrs.frozen(kw_only=True)
class Revoked:
    """An entry of a revocation list."""

    serial: str
    revoked_s: int


class FleetKeys(Protocol):
    """Keys that never leave their adapter. Each call may block for as long as a disk takes. Raises
    ``PortUnavailable`` (no room, not readable) and ``PortFault`` (a file that is no key, or is open to others)."""

    @abstractmethod
    def authorities(self) -> Mapping[str, Authority]:
        """The authorities whose private keys are here, by fingerprint; those that were made or brought first, first.
        Never empty: where there is none, one is made."""

    @abstractmethod
    def signers(self) -> Mapping[str, Signer]:
        """The signing keys that are here, by key id; oldest first. Never empty: where there is none, one is made."""

    @abstractmethod
    def make(self) -> tuple[Authority, SigningKey]:
        """A new one of each, durable when this returns."""

    @abstractmethod
    def issue(self, fingerprint: str, request: bytes, terms: CertificateTerms) -> str | None:
        """A certificate with what stands between it and the root, PEM, the certificate first, for the key of a PKCS #10
        request (DER) whose signature proves that its sender holds that key; ``None`` when ``request`` is no such
        request, or of another kind of key than Ed25519 and P-256. Of the request nothing but the key is taken.
        ``fingerprint`` must be one of :meth:`authorities`."""

    @abstractmethod
    def revocation_list(self, fingerprint: str, revoked: Sequence[Revoked], *, number: int, now_s: int) -> str:
        """A signed list (RFC 5280, PEM) of certificates of that authority, good for a day."""

    @abstractmethod
    def forget(self, authority: str, signing_key: str) -> None:
        """Removes both private keys for good. Idempotent."""
