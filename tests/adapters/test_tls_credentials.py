"""Real handshakes with our credentials, and with an attacker's; what certificates say; files of an identity."""

import ssl
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import attrs
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.x509.oid import ExtendedKeyUsageOID
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from lunanexa_adapters.crypto import tls_contexts
from lunanexa_adapters.crypto.authority import LocalAuthority, make_authority
from lunanexa_adapters.crypto.certificates import UNREADABLE, described, pem_of
from lunanexa_adapters.crypto.credentials import IDENTITY_FILE, TRUSTED_FILE, TlsCredentials
from lunanexa_adapters.crypto.peer import peer_of
from lunanexa_core.identity.certificate import CertificateTerms, PeerCertificate, terms_at
from lunanexa_core.identity.names import Identity, Party, parse_identity
from lunanexa_core.ids import ClusterId
from lunanexa_ports.errors import PortFault, PortUnavailable
from tests.adapters.pki import (
    CONTROLLER,
    NODE,
    NOW_S,
    above,
    brought,
    handshake,
    leaf,
    make_key,
    party,
    self_signed,
    shown,
)
from tests.adapters.writers import writers
from tests.examples import examples

AUTHORITY = make_authority(NOW_S)
OTHER = make_authority(NOW_S)
TERMS = terms_at(NODE, "c0ffee", NOW_S * 1_000)
TRUSTED = (AUTHORITY.public.certificate,)
CONTROLLER_PARTY = party(AUTHORITY, CONTROLLER, "1")
NODE_PARTY = party(AUTHORITY)


def test_both_ends_learn_who_the_other_is() -> None:
    server, client = handshake(
        CONTROLLER_PARTY.server_context(demand=True), NODE_PARTY.client_context(anonymous=False, verified=True)
    )
    assert peer_of(server) == NODE_PARTY.certificate == PeerCertificate(**attrs.asdict(TERMS))
    assert peer_of(client) == CONTROLLER_PARTY.certificate
    assert server.version() == "TLSv1.3"


def test_who_shows_nothing_is_nobody() -> None:
    """And is let in only where no certificate is demanded."""
    anonymous = NODE_PARTY.client_context(anonymous=True, verified=True)
    server, client = handshake(CONTROLLER_PARTY.server_context(demand=False), anonymous)
    assert peer_of(server) is None
    assert peer_of(client) == CONTROLLER_PARTY.certificate
    with pytest.raises(ssl.SSLError, match="PEER_DID_NOT_RETURN_A_CERTIFICATE"):
        handshake(CONTROLLER_PARTY.server_context(demand=True), anonymous)


def test_an_unverified_server_is_nobody() -> None:
    """Whatever it shows, to a client that asks for the authorities before it trusts any."""
    newcomer = TlsCredentials(None)
    for served in (CONTROLLER_PARTY, party(OTHER, CONTROLLER)):
        _, client = handshake(
            served.server_context(demand=False), newcomer.client_context(anonymous=True, verified=False)
        )
        assert client.getpeercert(binary_form=True) is not None
        assert peer_of(client) is None


def test_who_trusts_nobody_refuses_everybody() -> None:
    newcomer = TlsCredentials(None)
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(
            CONTROLLER_PARTY.server_context(demand=False), newcomer.client_context(anonymous=False, verified=True)
        )
    with pytest.raises(PortUnavailable):
        newcomer.server_context(demand=False)


REFUSED: dict[str, tuple[Callable[[], LocalAuthority], str]] = {
    "another authority": (lambda: leaf(OTHER, NODE), "unable to get local issuer|self.signed"),
    "another authority of the same name": (
        lambda: leaf(namesake(), NODE),
        "unable to get local issuer|self.signed|signature",
    ),
    "expired": (lambda: leaf(AUTHORITY, NODE, not_after_s=-1), "expired"),
    "not yet valid": (lambda: leaf(AUTHORITY, NODE, not_before_s=3_000), "not yet valid"),
    "signed by itself": (lambda: self_signed(NODE), "self.signed|unable to get local issuer"),
    "issued by a party": (lambda: leaf(leaf(AUTHORITY, NODE, name="party"), NODE), "invalid CA|CA cert"),
    "issued by who says nothing of being an authority": (
        lambda: leaf(leaf(AUTHORITY, NODE, ca=None, name="party"), NODE),
        "invalid CA|CA cert",
    ),
    "more authorities than the root allows": (
        lambda: leaf(leaf(AUTHORITY, ca=True, usages=(), name="below"), NODE),
        "path length",
    ),
    "the root itself": (lambda: AUTHORITY, "purpose"),
}


def namesake() -> LocalAuthority:
    """An authority that calls itself as ours does."""
    key = ed25519.Ed25519PrivateKey.generate()
    name = AUTHORITY.issuing.subject
    builder = x509.CertificateBuilder(
        name, name, key.public_key(), 1, AUTHORITY.issuing.not_valid_before_utc, AUTHORITY.issuing.not_valid_after_utc
    ).add_extension(x509.BasicConstraints(True, None), critical=True)
    return LocalAuthority(key=key, chain=(builder.sign(key, None),))


@pytest.mark.parametrize(("forged", "reason"), REFUSED.values(), ids=REFUSED)
@pytest.mark.parametrize("demand", [True, False])
def test_a_client_is_refused(forged: Callable[[], LocalAuthority], reason: str, demand: bool) -> None:
    """Also where no certificate is demanded: who shows one is believed, or is not spoken to."""
    client = tls_contexts.client_context(shown(forged()), TRUSTED, verified=True)
    with pytest.raises(ssl.SSLError, match=reason):
        handshake(CONTROLLER_PARTY.server_context(demand=demand), client)


@pytest.mark.parametrize(("forged", "reason"), REFUSED.values(), ids=REFUSED)
def test_a_server_is_refused(forged: Callable[[], LocalAuthority], reason: str) -> None:
    server = tls_contexts.server_context(shown(forged()), (), demand=False)
    with pytest.raises(ssl.SSLCertVerificationError, match=reason):
        handshake(server, NODE_PARTY.client_context(anonymous=True, verified=True))


def test_a_certificate_for_one_end_is_refused_at_the_other() -> None:
    for_servers = shown(leaf(AUTHORITY, NODE, usages=[ExtendedKeyUsageOID.SERVER_AUTH]))
    for_clients = shown(leaf(AUTHORITY, CONTROLLER, usages=[ExtendedKeyUsageOID.CLIENT_AUTH]))
    with pytest.raises(ssl.SSLError, match=r"(?i)purpose|certificate.verify"):
        handshake(
            CONTROLLER_PARTY.server_context(demand=True),
            tls_contexts.client_context(for_servers, TRUSTED, verified=True),
        )
    with pytest.raises(ssl.SSLError, match=r"(?i)purpose|certificate.verify"):
        handshake(
            tls_contexts.server_context(for_clients, TRUSTED, demand=False),
            NODE_PARTY.client_context(anonymous=True, verified=True),
        )


NOBODY: dict[str, Callable[[], LocalAuthority]] = {
    "no URI": lambda: leaf(AUTHORITY, name=NODE),
    "two URIs": lambda: leaf(AUTHORITY, NODE, CONTROLLER),
    "the same URI twice": lambda: leaf(AUTHORITY, NODE, NODE),
    "no purpose": lambda: leaf(AUTHORITY, NODE, usages=()),
    "an authority": lambda: leaf(AUTHORITY, NODE, ca=True),
    "says nothing of being none": lambda: leaf(AUTHORITY, NODE, ca=None),
}


@pytest.mark.parametrize("forged", NOBODY.values(), ids=NOBODY)
def test_who_is_trusted_and_no_party_is_nobody(forged: Callable[[], LocalAuthority]) -> None:
    """What only the authority's own key can have made, at both ends."""
    identity = shown(forged())
    server, _ = handshake(
        CONTROLLER_PARTY.server_context(demand=True), tls_contexts.client_context(identity, TRUSTED, verified=True)
    )
    assert server.getpeercert()
    assert peer_of(server) is None
    _, client = handshake(
        tls_contexts.server_context(identity, TRUSTED, demand=False),
        NODE_PARTY.client_context(anonymous=True, verified=True),
    )
    assert client.getpeercert()
    assert peer_of(client) is None


@pytest.mark.parametrize("maximum", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_nothing_is_resumed(maximum: ssl.TLSVersion) -> None:
    """A client that keeps its session is verified again; of the version that can't help resuming nothing is spoken."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_verify_locations(cadata=TRUSTED[0])
    context.maximum_version = maximum
    server_context = CONTROLLER_PARTY.server_context(demand=False)
    if maximum is ssl.TLSVersion.TLSv1_2:
        with pytest.raises(ssl.SSLError, match=r"(?i)protocol"):
            handshake(server_context, context)
        return
    _, client = handshake(server_context, context)
    server, again = handshake(server_context, context, client.session)
    assert not server.session_reused
    assert not again.session_reused


def test_each_connection_goes_by_what_is_in_force() -> None:
    node = party(AUTHORITY)
    before = node.client_context(anonymous=False, verified=True)
    assert node.client_context(anonymous=False, verified=True) is before
    server_context = CONTROLLER_PARTY.server_context(demand=True)
    old, _ = handshake(server_context, before)

    chain = AUTHORITY.issue(node.request(), attrs.evolve(TERMS, serial="beef"))
    assert chain is not None
    node.accept(chain)
    renewed, _ = handshake(server_context, node.client_context(anonymous=False, verified=True))
    node.trust([OTHER.public.certificate])
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(server_context, node.client_context(anonymous=False, verified=True))
    node.forget()
    newcomer = node.client_context(anonymous=False, verified=False)
    with pytest.raises(ssl.SSLError, match="PEER_DID_NOT_RETURN"):
        handshake(server_context, newcomer)
    served = [peer_of(old), peer_of(renewed)]
    assert [one.serial for one in served if one is not None] == ["c0ffee", "beef"]


@pytest.mark.parametrize("kind", ["ed25519", "p256", "p384", "rsa"])
@pytest.mark.parametrize("intermediates", [0, 1, 2])
def test_a_chain_that_was_brought(kind: str, intermediates: int) -> None:
    """Whoever trusts its root needs nothing else, and the root is not sent along."""
    authority = brought(kind, intermediates=intermediates)
    controller, node = party(authority, CONTROLLER), party(authority)
    server, client = handshake(
        controller.server_context(demand=True), node.client_context(anonymous=False, verified=True)
    )
    assert peer_of(server) == node.certificate
    assert peer_of(client) == controller.certificate
    chain = authority.issue(node.request(), TERMS)
    assert chain is not None
    assert chain.count("BEGIN CERTIFICATE") == 1 + intermediates
    assert authority.public.certificate not in chain


def test_a_leaf_is_as_the_profile_says() -> None:
    """X.509-SVID 3 and 4; OpenSSL's strict rules agree."""
    chain = AUTHORITY.issue(TlsCredentials(None).request(), TERMS)
    assert chain is not None
    certificate = x509.load_pem_x509_certificate(chain.encode())
    found = {one.value.__class__: one for one in certificate.extensions}
    assert not list(certificate.subject)
    assert found[x509.SubjectAlternativeName].critical
    assert found[x509.KeyUsage].critical
    assert found[x509.BasicConstraints].critical
    assert set(found[x509.ExtendedKeyUsage].value) == {ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH}
    server, client = (
        CONTROLLER_PARTY.server_context(demand=True),
        party(AUTHORITY).client_context(anonymous=False, verified=True),
    )
    for context in (server, client):
        context.verify_flags |= ssl.VERIFY_X509_STRICT
    assert peer_of(handshake(server, client)[0]) is not None


def test_only_keys_of_two_kinds_are_let_in() -> None:
    for kind, good in (("ed25519", True), ("p256", True), ("p384", False), ("rsa", False), ("p521", False)):
        key = make_key(kind)
        algorithm = None if isinstance(key, ed25519.Ed25519PrivateKey) else hashes.SHA256()
        request = x509.CertificateSigningRequestBuilder(x509.Name([])).sign(key, algorithm)
        chain = AUTHORITY.issue(request.public_bytes(serialization.Encoding.DER), TERMS)
        assert (chain is not None) == good, kind


def test_of_a_request_only_the_key_counts() -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    names = x509.SubjectAlternativeName([x509.UniformResourceIdentifier(CONTROLLER), x509.DNSName("controller")])
    request = (
        x509.CertificateSigningRequestBuilder(above(key, "controller").subject)
        .add_extension(names, critical=True)
        .add_extension(x509.BasicConstraints(True, None), critical=True)
        .sign(key, hashes.SHA256())
    )
    chain = AUTHORITY.issue(request.public_bytes(serialization.Encoding.DER), TERMS)
    assert chain is not None
    found = x509.load_pem_x509_certificate(chain.encode())
    assert found.public_key() == key.public_key()
    assert described(found) == PeerCertificate(**attrs.asdict(TERMS))
    alternatives = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert list(alternatives) == [x509.UniformResourceIdentifier(NODE)]


IDENTIFIERS = st.text("abcXYZ019_.:-", min_size=1, max_size=40)
TIMES = st.integers(0, 1 << 32)


@settings(max_examples=examples(50))
@given(
    st.builds(Identity, IDENTIFIERS.map(ClusterId), st.sampled_from(Party), IDENTIFIERS),
    st.integers(1, (1 << 159) - 1),
    TIMES,
    TIMES,
)
def test_a_certificate_says_what_its_terms_said(identity: Identity, serial: int, one_s: int, other_s: int) -> None:
    not_before_s, not_after_s = sorted((one_s, other_s))
    terms = CertificateTerms(
        identity=identity.uri, serial=f"{serial:x}", not_before_s=not_before_s, not_after_s=not_after_s
    )
    credentials = TlsCredentials(None)
    credentials.trust(TRUSTED)
    chain = AUTHORITY.issue(credentials.request(), terms)
    assert chain is not None
    found = credentials.accept(chain)
    assert found == PeerCertificate(**attrs.asdict(terms))
    assert parse_identity(found.identity) == identity
    if not_before_s <= NOW_S < not_after_s:
        server, _ = handshake(
            CONTROLLER_PARTY.server_context(demand=True), credentials.client_context(anonymous=False, verified=True)
        )
        assert peer_of(server) == found


REQUEST = TlsCredentials(None).request()
NO_SERIAL = "ignore:Parsed a serial number which wasn't positive"
CHANGES = st.tuples(st.integers(0, 10_000), st.sampled_from(["flip", "cut", "insert"]), st.integers(1, 255))


def changed(data: bytes, change: tuple[int, str, int]) -> bytes:
    place, how, value = change
    place %= len(data)
    match how:
        case "flip":
            return data[:place] + bytes([data[place] ^ value]) + data[place + 1 :]
        case "cut":
            return data[:place] + data[place + value :]
        case _:
            return data[:place] + bytes([value]) + data[place:]


def is_the_same(der: bytes, like: x509.Certificate | x509.CertificateSigningRequest) -> bool:
    """A parser may read the same body and signature from other bytes: where a signature ends in bits that are 0, they
    may be told to be unused."""
    try:
        if isinstance(like, x509.Certificate):
            certificate = x509.load_der_x509_certificate(der)
            body, signed = certificate.tbs_certificate_bytes, like.tbs_certificate_bytes
            return (body, certificate.signature) == (signed, like.signature)
        request = x509.load_der_x509_csr(der)
        return (request.tbs_certrequest_bytes, request.signature) == (like.tbs_certrequest_bytes, like.signature)
    except UNREADABLE:
        return False


@pytest.mark.filterwarnings(NO_SERIAL)
@given(st.one_of(st.binary(max_size=400), CHANGES.map(lambda change: changed(REQUEST, change))))
def test_no_request_but_a_request(request: bytes) -> None:
    assert AUTHORITY.issue(request, TERMS) is None or is_the_same(request, x509.load_der_x509_csr(REQUEST))


@pytest.mark.filterwarnings(NO_SERIAL)
@given(st.one_of(st.text(max_size=400), CHANGES))
def test_no_chain_but_a_chain(change: str | tuple[int, str, int]) -> None:
    credentials = TlsCredentials(None)
    credentials.trust(TRUSTED)
    chain = AUTHORITY.issue(credentials.request(), TERMS)
    assert chain is not None
    if isinstance(change, str):
        bad = change
    else:
        certificate = x509.load_pem_x509_certificate(chain.encode())
        der = changed(certificate.public_bytes(serialization.Encoding.DER), change)
        assume(not is_the_same(der, certificate))
        bad = ssl.DER_cert_to_PEM_cert(der)
    with pytest.raises(PortFault):
        credentials.accept(bad)
    with pytest.raises(PortFault):
        credentials.trust([bad])
    assert credentials.certificate is None
    assert credentials.trusted == (AUTHORITY.public.fingerprint,)
    credentials.accept(chain)


@pytest.mark.filterwarnings(NO_SERIAL)
@given(CHANGES)
def test_no_root_but_a_root(change: tuple[int, str, int]) -> None:
    """An authority whose key can't be read, or that did not sign its own certificate, is trusted by nobody."""
    credentials = TlsCredentials(None)
    credentials.trust(TRUSTED)
    root = changed(AUTHORITY.issuing.public_bytes(serialization.Encoding.DER), change)
    assume(not is_the_same(root, AUTHORITY.issuing))
    with pytest.raises(PortFault):
        credentials.trust([ssl.DER_cert_to_PEM_cert(root)])
    for below in (brought().issuing, leaf(AUTHORITY, NODE).issuing):
        with pytest.raises(PortFault):
            credentials.trust([pem_of((below,))])
    assert credentials.trusted == (AUTHORITY.public.fingerprint,)


@pytest.mark.parametrize("forged", NOBODY.values(), ids=NOBODY)
def test_what_is_no_partys_is_not_accepted(forged: Callable[[], LocalAuthority]) -> None:
    """Even for the right key."""
    credentials = TlsCredentials(None)
    credentials.trust(TRUSTED)
    request = x509.load_der_x509_csr(credentials.request())
    like = forged().issuing
    builder = x509.CertificateBuilder(
        AUTHORITY.issuing.subject,
        like.subject,
        request.public_key(),
        like.serial_number,
        like.not_valid_before_utc,
        like.not_valid_after_utc,
        list(like.extensions),
    )
    certificate = builder.sign(AUTHORITY.key, None)
    with pytest.raises(PortFault, match="exactly one URI"):
        credentials.accept(certificate.public_bytes(serialization.Encoding.PEM).decode())


def test_files_of_an_identity(tmp_path: Path) -> None:
    """Two, for their owner only; what is wrong with one is said by its name."""
    folder = tmp_path / "identity"
    enrolled(folder)
    assert sorted(path.name for path in folder.iterdir()) == [IDENTITY_FILE, TRUSTED_FILE]
    for path in folder.iterdir():
        assert path.stat().st_mode & 0o777 == 0o600
        good = path.read_bytes()
        path.chmod(0o640)
        with pytest.raises(PortFault, match=f"{path.name}.*chmod 600"):
            TlsCredentials(folder)
        path.chmod(0o600)
        for bad in (b"not PEM", good[: len(good) // 2], bytes(100_000), NODE_PARTY.request(), good[200:]):
            path.write_bytes(bad)
            with pytest.raises(PortFault, match=path.name):
                TlsCredentials(folder)
        path.write_bytes(good)
    assert TlsCredentials(folder).certificate is not None


def test_a_key_and_the_certificate_of_another_are_no_identity(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    enrolled(first)
    enrolled(second)
    (key, *_), (_, *certificates) = (
        (folder / IDENTITY_FILE).read_text().partition("-----BEGIN CERTIFICATE-----") for folder in (first, second)
    )
    (first / IDENTITY_FILE).write_text(key + "".join(certificates))
    with pytest.raises(PortFault, match="does not hold a key and its certificate"):
        TlsCredentials(first)


def enrolled(folder: Path) -> TlsCredentials:
    credentials = TlsCredentials(folder)
    credentials.trust(TRUSTED)
    chain = AUTHORITY.issue(credentials.request(), TERMS)
    assert chain is not None
    credentials.accept(chain)
    return credentials


@pytest.mark.slow
async def test_killed_before_any_call_of_the_system(tmp_path: Path) -> None:
    """A rotation from the first word to the last: whatever was the last call, the identity that is found fits together
    and is one that was in force."""
    seen: list[tuple[str | None, int]] = []
    async with writers() as running:
        for call in range(1, 10_000):
            folder = tmp_path / str(call)
            enrolled(folder)
            await running.start("identity", call, folder)
            told = await running.ended()
            credentials = TlsCredentials(folder)
            found = credentials.certificate
            seen.append((None if found is None else found.serial, len(credentials.trusted)))
            if found is not None:
                credentials.server_context(demand=True)
            if told["ended"] == [0]:
                break
            assert told["ended"] == [-9]
    steps = [("c0ffee", 1), ("c0ffee", 2), ("beef", 2), ("beef", 1), (None, 1), (None, 0)]
    assert [steps[0], *(new for old, new in pairwise(seen) if new != old)] == steps
