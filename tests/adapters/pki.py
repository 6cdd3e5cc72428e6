"""An authority, parties that it lets in, and an attacker's certificates of all kinds; handshakes in memory."""

import datetime
import ssl
from collections.abc import Sequence

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID, ObjectIdentifier

from lunanexa_adapters.crypto.authority import IssuingKey, LocalAuthority, make_authority
from lunanexa_adapters.crypto.certificates import pem_of, private_pem
from lunanexa_adapters.crypto.credentials import TlsCredentials
from lunanexa_adapters.system.clock import SystemClock
from lunanexa_core.identity.certificate import terms_at
from lunanexa_core.time import Instant
from lunanexa_ports.clock import Clock

NODE = "lunanexa://c1/node/n1"
CONTROLLER = "lunanexa://c1/controller/h1"
BOTH = (ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH)
NOW_S = SystemClock().now().wall_ms // 1_000
"""OpenSSL looks at the machine's clock, and at no other."""


class SetClock(Clock):
    def __init__(self, wall_ms: int = NOW_S * 1_000) -> None:
        self.wall_ms = wall_ms

    def now(self) -> Instant:
        return Instant(mono_ms=0, wall_ms=self.wall_ms)


def party(authority: LocalAuthority, identity: str = NODE, serial: str = "c0ffee") -> TlsCredentials:
    """In memory, trusting the authority that let it in."""
    credentials = TlsCredentials(None)
    credentials.trust([authority.public.certificate])
    chain = authority.issue(credentials.request(), terms_at(identity, serial, NOW_S * 1_000))
    assert chain is not None
    credentials.accept(chain)
    return credentials


def make_key(kind: str) -> IssuingKey:
    match kind:
        case "rsa":
            return rsa.generate_private_key(65_537, 2_048)
        case "short rsa":
            return rsa.generate_private_key(65_537, 1_024)
        case "p256":
            return ec.generate_private_key(ec.SECP256R1())
        case "p384":
            return ec.generate_private_key(ec.SECP384R1())
        case "p521":
            return ec.generate_private_key(ec.SECP521R1())
        case _:
            return ed25519.Ed25519PrivateKey.generate()


def above(
    key: IssuingKey,
    name: str,
    issuer: LocalAuthority | None = None,
    *,
    length: int | None = None,
    ca: bool = True,
    days: int = 99,
) -> x509.Certificate:
    """An operator's certificate of an authority; without an issuer a root."""
    own = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    builder = (
        x509.CertificateBuilder(own if issuer is None else issuer.issuing.subject, own, key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(_time(-100 * 86_400))
        .not_valid_after(_time(days * 86_400))
        .add_extension(x509.BasicConstraints(ca, length if ca else None), critical=True)
        .add_extension(x509.KeyUsage(not ca, False, False, False, False, ca, ca, False, False), critical=True)
    )
    signing = key if issuer is None else issuer.key
    return builder.sign(signing, None if isinstance(signing, ed25519.Ed25519PrivateKey) else hashes.SHA256())


def brought(kind: str = "p256", *, intermediates: int = 1) -> LocalAuthority:
    """What an operator brings: an issuing certificate below a root."""
    key = make_key(kind)
    found = LocalAuthority(key=key, chain=(above(key, "root"),))
    for place in range(intermediates):
        key = make_key(kind)
        found = LocalAuthority(key=key, chain=(above(key, f"intermediate {place}", found), *found.chain))
    return found


def leaf(
    authority: LocalAuthority,
    *uris: str,
    usages: Sequence[ObjectIdentifier] = BOTH,
    not_before_s: int = -60,
    not_after_s: int = 3_600,
    ca: bool | None = False,
    name: str = "leaf",
) -> LocalAuthority:
    """A certificate as no code of ours issues it, from ``authority``. It may sign others in its turn."""
    key = ed25519.Ed25519PrivateKey.generate()
    builder = (
        x509.CertificateBuilder(authority.issuing.subject, x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(_time(not_before_s))
        .not_valid_after(_time(not_after_s))
        .add_extension(x509.KeyUsage(True, False, False, False, False, bool(ca), False, False, False), critical=True)
    )
    if ca is not None:
        builder = builder.add_extension(x509.BasicConstraints(ca, None), critical=True)
    if usages:
        builder = builder.add_extension(x509.ExtendedKeyUsage(usages), critical=False)
    if uris:
        names = [x509.UniformResourceIdentifier(uri) for uri in uris]
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=True)
    return LocalAuthority(key=key, chain=(builder.sign(authority.key, authority.algorithm), *authority.chain))


def self_signed(uri: str) -> LocalAuthority:
    """A party's certificate that nobody issued but itself."""
    made = make_authority(NOW_S)
    return LocalAuthority(key=made.key, chain=(above(made.key, "self", ca=False), leaf(made, uri).issuing))


def shown(forged: LocalAuthority) -> bytes:
    """As an identity that OpenSSL can show."""
    return private_pem(forged.key) + pem_of(forged.chain).encode()


def handshake(
    server: ssl.SSLContext, client: ssl.SSLContext, session: ssl.SSLSession | None = None
) -> tuple[ssl.SSLObject, ssl.SSLObject]:
    """Both ends, as server and client, after a byte went each way: only then has a client of TLS 1.3 heard whether its
    certificate was taken. Raises ``ssl.SSLError``."""
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = (
        client.wrap_bio(back, there, server_hostname="start-1", session=session),
        server.wrap_bio(there, back, server_side=True),
    )
    waiting = list(ends)
    while waiting:
        for end in list(waiting):
            try:
                end.do_handshake()
                waiting.remove(end)
            except ssl.SSLWantReadError:
                pass
    for one, other in (ends, ends[::-1]):
        one.write(b"x")
        assert other.read(1) == b"x"
    return ends[1], ends[0]


def _time(after_s: int) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(NOW_S + after_s, datetime.UTC)
