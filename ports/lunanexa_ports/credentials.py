"""Driven port: one process's own identity in mutual TLS: a private key, its certificate, and whom it trusts."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Protocol

from lunanexa_core.identity.certificate import PeerCertificate


class Credentials(Protocol):
    """What the adapters that open and accept connections for this process show and demand: each new connection goes by
    what is in force when it is opened; those that are open stay. Calls may block for as long as a disk takes. Raises
    ``PortUnavailable`` with nothing changed, ``PortFault`` for what is kept and can't be read."""

    @property
    @abstractmethod
    def certificate(self) -> PeerCertificate | None:
        """What this process shows; ``None`` before the first was accepted. It may have expired."""

    @property
    @abstractmethod
    def trusted(self) -> tuple[str, ...]:
        """Fingerprints of the authorities that are trusted; empty: nobody is."""

    @abstractmethod
    def request(self) -> bytes:
        """A PKCS #10 request (DER) for a new private key, which waits for :meth:`accept`. Until then it is the same
        request, byte by byte: who did not hear the answer asks for the same again. What is in force stays so."""

    @abstractmethod
    def accept(self, chain: str) -> PeerCertificate:
        """Shows this certificate (PEM, with what stands between it and the root) from now on, durable when this
        returns. Raises ``PortFault`` when it is not for the key of the :meth:`request`, does not lead to a trusted
        authority, or does not bear exactly one URI."""

    @abstractmethod
    def trust(self, certificates: Sequence[str]) -> None:
        """Trusts these authorities (PEM) from now on and no others, durable when this returns. Raises ``PortFault`` for
        what is no certificate."""

    @abstractmethod
    def forget(self) -> None:
        """Shows nothing any more: the certificate was revoked, or another cluster is joined. Trust goes too."""
