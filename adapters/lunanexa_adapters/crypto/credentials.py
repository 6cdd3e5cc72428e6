"""A process's own identity in mutual TLS, with ``cryptography`` and OpenSSL: in two files, or in memory.

Key and certificate are one file, and whom to trust is another, each replaced as a whole: a process that is killed at
any point starts with an identity that fits together.
"""

import ssl
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import attrs
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from lunanexa_adapters.crypto.certificates import (
    CHAIN_MAX,
    described,
    fingerprint_of,
    is_root,
    issued_by,
    parse_private,
    pem_of,
    private_pem,
    read_certificates,
    same_key,
)
from lunanexa_adapters.crypto.peer import Handshaken, peer_of
from lunanexa_adapters.crypto.tls_contexts import client_context, server_context
from lunanexa_adapters.files.atomic import remove_durably, write_atomic
from lunanexa_adapters.files.owned_file import KEY, read_owned_file
from lunanexa_core.identity.certificate import PeerCertificate
from lunanexa_ports.credentials import Credentials
from lunanexa_ports.errors import PortFault, PortUnavailable

IDENTITY_FILE: Final = "identity.pem"
"""Private key, certificate, and what stands between it and the root."""
TRUSTED_FILE: Final = "trusted.pem"
"""Roots of the authorities that are trusted."""


@attrs.frozen
class _Identity:
    pem: bytes = attrs.field(repr=False)
    certificate: PeerCertificate


@attrs.frozen
class _Force:
    """What is in force together, and the contexts that were made of it: a context never outlives it."""

    identity: _Identity | None
    trusted: tuple[x509.Certificate, ...]
    contexts: dict[tuple[str, bool, bool], ssl.SSLContext] = attrs.field(factory=dict, repr=False)

    @property
    def roots(self) -> tuple[str, ...]:
        return tuple(pem_of((one,)) for one in self.trusted)


class TlsCredentials(Credentials):
    """The identity in ``folder``; ``None``: in memory only. Opening it blocks on the disk and raises as calls do.
    Calls that change it come one after another; contexts may be asked for meanwhile, from any thread."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._waiting: Ed25519PrivateKey | None = None
        self._force = _Force(None, ()) if folder is None else _Force(_kept_identity(folder), _kept_trust(folder))

    @property
    def certificate(self) -> PeerCertificate | None:
        identity = self._force.identity
        return None if identity is None else identity.certificate

    @property
    def trusted(self) -> tuple[str, ...]:
        return tuple(fingerprint_of(one) for one in self._force.trusted)

    def request(self) -> bytes:
        # Ed25519: the handshake costs as much as with P-256, nodes sign with it already, and what it signs anew is the
        # same bytes.
        self._waiting = self._waiting or Ed25519PrivateKey.generate()
        request = x509.CertificateSigningRequestBuilder(subject_name=x509.Name([])).sign(self._waiting, None)
        return request.public_bytes(serialization.Encoding.DER)

    def accept(self, chain: str) -> PeerCertificate:
        certificates = read_certificates(chain.encode("utf-8", "replace"))
        if not certificates:
            raise PortFault("what was issued is no certificate")
        if self._waiting is None or not same_key(self._waiting, certificates[0]):
            raise PortFault("the certificate is for another key than the one that was asked for")
        if not _leads_to(certificates, self._force.trusted):
            raise PortFault("the certificate does not lead to an authority that is trusted")
        found = described(certificates[0])
        if found is None:
            raise PortFault("the certificate does not name one party by exactly one URI, for both ends of a connection")
        identity = _Identity(private_pem(self._waiting) + pem_of(certificates).encode("ascii"), found)
        if self._folder is not None:
            write_atomic(self._folder / IDENTITY_FILE, identity.pem)
        self._force = _Force(identity, self._force.trusted)
        self._waiting = None
        return found

    def trust(self, certificates: Sequence[str]) -> None:
        if len(certificates) > CHAIN_MAX:
            raise PortFault(f"{len(certificates)} authorities are to be trusted, and {CHAIN_MAX} can be at most")
        trusted = tuple(_root(one) for one in certificates)
        if self._folder is not None:
            write_atomic(self._folder / TRUSTED_FILE, pem_of(trusted).encode("ascii"))
        self._force = _Force(self._force.identity, trusted)

    def forget(self) -> None:
        if self._folder is not None:
            # The identity first: what is left when this is cut short is trust without an identity, which is harmless.
            remove_durably(self._folder / IDENTITY_FILE)
            remove_durably(self._folder / TRUSTED_FILE)
        self._waiting = None
        self._force = _Force(None, ())

    def server_context(self, *, demand: bool) -> ssl.SSLContext:
        """For a connection that is accepted now. A client's certificate is verified where one is shown; ``demand``: one
        must be shown. Raises ``PortUnavailable`` before a certificate was accepted."""
        force = self._force
        if force.identity is None:
            raise PortUnavailable("there is no certificate yet to serve TLS with")
        key = ("server", demand, False)
        if key not in force.contexts:
            force.contexts[key] = server_context(force.identity.pem, force.roots, demand=demand)
        return force.contexts[key]

    def client_context(self, *, anonymous: bool, verified: bool) -> ssl.SSLContext:
        """For a connection that is opened now. ``anonymous``: shows no certificate, though there may be one;
        ``verified``: the server must show one that leads to a trusted authority."""
        force = self._force
        shown = None if anonymous or force.identity is None else force.identity.pem
        key = ("client", shown is None, verified)
        if key not in force.contexts:
            force.contexts[key] = client_context(shown, force.roots, verified=verified)
        return force.contexts[key]

    def peer_of(self, connection: Handshaken) -> PeerCertificate | None:
        """As the function, for whoever may be without ``cryptography`` and so does not import it."""
        return peer_of(connection)


def _leads_to(chain: Sequence[x509.Certificate], trusted: Sequence[x509.Certificate]) -> bool:
    """Whether each is issued by the next, and one of them by a trusted authority. Time does not matter here: this
    machine's clock may be wrong, and whoever is shown the certificate looks at its own."""
    for one, following in zip(chain, (*chain[1:], None), strict=True):
        if any(issued_by(one, root) for root in trusted):
            return True
        if following is None or not issued_by(one, following):
            return False
    return False


def _root(pem: str) -> x509.Certificate:
    found = read_certificates(pem.encode("utf-8", "replace"))
    if len(found) != 1 or not is_root(found[0]):
        raise PortFault("what should be trusted is not the root certificate of one authority")
    return found[0]


def _kept_identity(folder: Path) -> _Identity | None:
    path = folder / IDENTITY_FILE
    pem = read_owned_file(path, KEY)
    if pem is None:
        return None
    key, certificates = parse_private(path, pem), read_certificates(pem)
    found = described(certificates[0]) if certificates else None
    if not isinstance(key, Ed25519PrivateKey) or found is None or not same_key(key, certificates[0]):
        raise PortFault(f"{path} does not hold a key and its certificate: move it away and enrol this node anew")
    return _Identity(pem, found)


def _kept_trust(folder: Path) -> tuple[x509.Certificate, ...]:
    path = folder / TRUSTED_FILE
    pem = read_owned_file(path, KEY)
    if not pem:
        return ()
    found = read_certificates(pem)
    if not found or not all(map(is_root, found)):
        raise PortFault(f"{path} does not hold root certificates of authorities: move it away and enrol this node anew")
    return found
