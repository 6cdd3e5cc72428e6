"""One certificate authority: a private key, the certificate that it issues with, and what stands above that.

Certificates follow the X.509-SVID profile of SPIFFE: one URI, both ends of a connection, never an authority.
"""

import datetime
from collections.abc import Sequence
from typing import Final, TypeAlias

import attrs
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from lunanexa_adapters.crypto.certificates import UNREADABLE, fingerprint_of, pem_of, private_pem
from lunanexa_core.identity.certificate import BACKDATED_MS, CertificateTerms
from lunanexa_core.identity.trust import Authority
from lunanexa_ports.fleet_keys import Revoked

ROOT_YEARS: Final = 10
LIST_S: Final = 86_400
"""How long a revocation list is good."""
_SERIAL_DIGITS: Final = 30
IssuingKey: TypeAlias = ed25519.Ed25519PrivateKey | ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey
NodeKey: TypeAlias = ed25519.Ed25519PublicKey | ec.EllipticCurvePublicKey


@attrs.frozen(kw_only=True)
class LocalAuthority:
    """A chain whose first certificate is of ``key`` and whose last is a root."""

    key: IssuingKey = attrs.field(repr=False)
    chain: tuple[x509.Certificate, ...]

    @property
    def issuing(self) -> x509.Certificate:
        return self.chain[0]

    @property
    def public(self) -> Authority:
        root = self.chain[-1]
        return Authority(fingerprint=fingerprint_of(root), certificate=pem_of((root,)))

    @property
    def pem(self) -> bytes:
        return private_pem(self.key) + pem_of(self.chain).encode("ascii")

    @property
    def algorithm(self) -> hashes.SHA256 | None:
        """What it hashes with before it signs; Ed25519 does that by itself."""
        return None if isinstance(self.key, ed25519.Ed25519PrivateKey) else hashes.SHA256()

    @property
    def expires_s(self) -> int:
        """When the first of its certificates ends."""
        return min(int(one.not_valid_after_utc.timestamp()) for one in self.chain)

    def issue(self, request: bytes, terms: CertificateTerms) -> str | None:
        """See :meth:`~lunanexa_ports.fleet_keys.FleetKeys.issue`."""
        public = _key_of(request)
        if public is None:
            return None
        certificate = (
            _dated(x509.Name([]), public, int(terms.serial, 16), terms.not_before_s, terms.not_after_s)
            .issuer_name(self.issuing.subject)
            .add_extension(x509.SubjectAlternativeName([x509.UniformResourceIdentifier(terms.identity)]), critical=True)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(digital_signature=True), critical=True)
            .add_extension(
                x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]),
                critical=False,
            )
            .add_extension(_named_after(self.issuing), critical=False)
            .sign(self.key, self.algorithm)
        )
        return pem_of((certificate, *self.chain[:-1]))

    def revocation_list(self, revoked: Sequence[Revoked], *, number: int, now_s: int) -> str:
        """See :meth:`~lunanexa_ports.fleet_keys.FleetKeys.revocation_list`."""
        builder = (
            x509.CertificateRevocationListBuilder()
            .issuer_name(self.issuing.subject)
            .last_update(_time(now_s))
            .next_update(_time(now_s + LIST_S))
            .add_extension(_named_after(self.issuing), critical=False)
            .add_extension(x509.CRLNumber(number), critical=False)
        )
        for one in revoked:
            entry = x509.RevokedCertificateBuilder().serial_number(int(one.serial, 16))
            builder = builder.add_revoked_certificate(entry.revocation_date(_time(one.revoked_s)).build())
        return builder.sign(self.key, self.algorithm).public_bytes(serialization.Encoding.PEM).decode("ascii")


def make_authority(now_s: int) -> LocalAuthority:
    """A new root, good from an hour ago on."""
    key = ed25519.Ed25519PrivateKey.generate()
    public = key.public_key()
    own = x509.SubjectKeyIdentifier.from_public_key(public)
    # Of its own for each, so that two of one cluster are told apart by name too.
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"LunaNexa authority {own.digest.hex()[:16]}")])
    serial = int(own.digest.hex()[:_SERIAL_DIGITS], 16) or 1
    root = (
        _dated(name, public, serial, now_s - BACKDATED_MS // 1_000, now_s + ROOT_YEARS * 365 * 86_400)
        .issuer_name(name)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(key_cert_sign=True, crl_sign=True), critical=True)
        .add_extension(own, critical=False)
        .sign(key, None)
    )
    return LocalAuthority(key=key, chain=(root,))


def _key_of(request: bytes) -> NodeKey | None:
    """The key of a PKCS #10 request, if its sender holds it."""
    try:
        found = x509.load_der_x509_csr(request)
        public = found.public_key()
        if not found.is_signature_valid:
            return None
    except UNREADABLE:
        return None
    if isinstance(public, ed25519.Ed25519PublicKey):
        return public
    if isinstance(public, ec.EllipticCurvePublicKey) and isinstance(public.curve, ec.SECP256R1):
        return public
    return None


def _dated(
    subject: x509.Name, public: NodeKey, serial: int, not_before_s: int, not_after_s: int
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .public_key(public)
        .serial_number(serial)
        .not_valid_before(_time(not_before_s))
        .not_valid_after(_time(not_after_s))
    )


def _time(unix_s: int) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(unix_s, datetime.UTC)


def _named_after(issuing: x509.Certificate) -> x509.AuthorityKeyIdentifier:
    """As the issuing certificate names its own key, which need not be as we would."""
    try:
        own = issuing.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    except x509.ExtensionNotFound:
        own = x509.SubjectKeyIdentifier.from_public_key(issuing.public_key())
    return x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(own)


def _usage(*, digital_signature: bool = False, key_cert_sign: bool = False, crl_sign: bool = False) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=digital_signature,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=key_cert_sign,
        crl_sign=crl_sign,
        encipher_only=False,
        decipher_only=False,
    )
