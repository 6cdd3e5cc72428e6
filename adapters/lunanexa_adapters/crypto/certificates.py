"""What is read out of X.509 certificates (RFC 5280), in one place for those that were shown, issued and kept."""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.types import CertificateIssuerPrivateKeyTypes, PrivateKeyTypes
from cryptography.x509.oid import ExtendedKeyUsageOID

from lunanexa_core.identity.certificate import PeerCertificate
from lunanexa_ports.errors import PortFault

CHAIN_MAX: Final = 8
"""Certificates in one file or message."""
PEM_BYTES_MAX: Final = 64 << 10
_BOTH_WAYS: Final = frozenset((ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH))

UNREADABLE: Final = (
    ValueError,
    TypeError,
    UnsupportedAlgorithm,
    x509.InvalidVersion,
    x509.DuplicateExtension,
    x509.ExtensionNotFound,
    x509.UnsupportedGeneralNameType,
)
"""What the library raises for bytes that are not what they should be, or of a kind that it does not know."""


def read_certificates(pem: bytes) -> tuple[x509.Certificate, ...]:
    """All certificates of a PEM text, in their order; empty for what has none or can't be read."""
    if len(pem) > PEM_BYTES_MAX:
        return ()
    try:
        found = tuple(x509.load_pem_x509_certificates(pem))
    except UNREADABLE:
        return ()
    return found if len(found) <= CHAIN_MAX else ()


def fingerprint_of(certificate: x509.Certificate) -> str:
    """SHA-256 of its public key's DER form (SubjectPublicKeyInfo), hex."""
    spki = serialization.PublicFormat.SubjectPublicKeyInfo
    return hashlib.sha256(certificate.public_key().public_bytes(serialization.Encoding.DER, spki)).hexdigest()


def pem_of(certificates: Sequence[x509.Certificate]) -> str:
    return "".join(one.public_bytes(serialization.Encoding.PEM).decode("ascii") for one in certificates)


def private_pem(key: CertificateIssuerPrivateKeyTypes) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def parse_private(path: Path, pem: bytes) -> PrivateKeyTypes:
    """The private key in what ``path`` holds (PEM, PKCS #8, not encrypted). Raises ``PortFault``."""
    try:
        return serialization.load_pem_private_key(pem, password=None)
    except UNREADABLE as error:
        raise PortFault(f"{path} holds no private key that can be read") from error


def same_key(key: CertificateIssuerPrivateKeyTypes, certificate: x509.Certificate) -> bool:
    """Whether a certificate is for a private key."""
    try:
        return key.public_key() == certificate.public_key()
    except UNREADABLE:
        return False


def described(certificate: x509.Certificate) -> PeerCertificate | None:
    """What a party's certificate says. ``None`` for one that no party of ours has: an authority's, one without
    exactly one URI, or one that is not for both ends of a connection. Says nothing of who issued it, nor of time."""
    try:
        extensions = certificate.extensions
        names = extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        usage = extensions.get_extension_for_class(x509.KeyUsage).value
        purposes = extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
        constraints = extensions.get_extension_for_class(x509.BasicConstraints).value
        serial = certificate.serial_number
        not_before, not_after = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    except UNREADABLE:
        return None
    uris = names.get_values_for_type(x509.UniformResourceIdentifier)
    if constraints.ca or len(uris) != 1 or serial <= 0:
        return None
    if not usage.digital_signature or usage.key_cert_sign or usage.crl_sign or not _BOTH_WAYS.issubset(purposes):
        return None
    return PeerCertificate(
        identity=uris[0],
        serial=f"{serial:x}",
        not_before_s=int(not_before.timestamp()),
        not_after_s=int(not_after.timestamp()),
    )


def is_authority(certificate: x509.Certificate) -> bool:
    """Whether it may issue others, by its basic constraints and its key usage."""
    try:
        extensions = certificate.extensions
        if not extensions.get_extension_for_class(x509.BasicConstraints).value.ca:
            return False
        return extensions.get_extension_for_class(x509.KeyUsage).value.key_cert_sign
    except UNREADABLE:
        return False


def issued_by(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    """Whether ``authority`` may issue others, and signed this one."""
    try:
        certificate.verify_directly_issued_by(authority)
    except (*UNREADABLE, InvalidSignature):
        return False
    return is_authority(authority)


def is_root(certificate: x509.Certificate) -> bool:
    """Whether it is an authority's that no other issued."""
    return issued_by(certificate, certificate)
