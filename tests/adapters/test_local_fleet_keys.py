"""The files of a fleet's keys: what is made, what an operator brings, what is refused and what is said of it."""

import hashlib
import os
import shutil
import ssl
from collections.abc import Callable
from pathlib import Path

import attrs
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization

from lunanexa_adapters.crypto.authority import LIST_S, LocalAuthority, make_authority
from lunanexa_adapters.crypto.authority_files import load_authority
from lunanexa_adapters.crypto.certificates import fingerprint_of, pem_of, private_pem
from lunanexa_adapters.crypto.credentials import TlsCredentials
from lunanexa_adapters.crypto.fleet_keys import LocalFleetKeys
from lunanexa_adapters.crypto.peer import peer_of
from lunanexa_adapters.crypto.signing import Ed25519Signer
from lunanexa_core.identity.certificate import BACKDATED_MS, PeerCertificate, terms_at
from lunanexa_ports.errors import PortFault
from lunanexa_ports.fleet_keys import Revoked
from tests.adapters.pki import (
    CONTROLLER,
    NODE,
    NOW_S,
    SetClock,
    above,
    brought,
    handshake,
    leaf,
    make_key,
    party,
)

TEN_YEARS_S = 10 * 365 * 86_400


def opened(folder: Path, clock: SetClock | None = None) -> LocalFleetKeys:
    return LocalFleetKeys(folder, clock or SetClock())


def put(folder: Path, *parts: bytes, name: str = "authority.pem") -> Path:
    path = folder / name
    path.write_bytes(b"".join(parts))
    path.chmod(0o600)
    return path


def the_one(keys: LocalFleetKeys) -> x509.Certificate:
    (authority,) = keys.authorities().values()
    return x509.load_pem_x509_certificate(authority.certificate.encode())


def test_files_are_their_owners_alone(tmp_path: Path) -> None:
    folder = tmp_path / "secrets"
    keys = opened(folder)
    keys.authorities()
    keys.signers()
    keys.make()
    stamp = f"{NOW_S * 1_000:016x}"
    names = ["authority.pem", f"authority-{stamp}.pem", "signing.pem", f"signing-{stamp}.pem"]
    assert sorted(path.name for path in folder.iterdir()) == sorted(names)
    assert folder.stat().st_mode & 0o777 == 0o700
    for path in folder.iterdir():
        assert path.stat().st_mode & 0o777 == 0o600
        path.chmod(0o604)
        with pytest.raises(PortFault, match=f"{path.name}.*chmod 600"):
            (opened(folder).authorities if path.name.startswith("authority") else opened(folder).signers)()
        path.chmod(0o600)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_file_of_another_user_is_not_believed(tmp_path: Path) -> None:
    opened(tmp_path).authorities()
    path = tmp_path / "authority.pem"
    os.chown(path, 65_534, -1)
    with pytest.raises(PortFault, match=r"another user's \(65534\): run `chown 0 "):
        opened(tmp_path).authorities()


def test_the_key_that_signs_already_goes_on(tmp_path: Path) -> None:
    signer = Ed25519Signer.load_or_create(tmp_path / "signing.pem")
    found = opened(tmp_path).signers()
    assert list(found) == [signer.key_id]
    assert found[signer.key_id].sign(b"x") == signer.sign(b"x")


def test_a_root_is_as_openssl_wants_it(tmp_path: Path) -> None:
    root = the_one(opened(tmp_path))
    root.verify_directly_issued_by(root)
    found = {one.value.__class__: one for one in root.extensions}
    assert found[x509.BasicConstraints].critical
    assert found[x509.BasicConstraints].value.ca
    assert found[x509.KeyUsage].critical
    assert found[x509.KeyUsage].value.key_cert_sign
    assert found[x509.KeyUsage].value.crl_sign
    assert x509.SubjectKeyIdentifier in found
    assert root.not_valid_before_utc.timestamp() == NOW_S - BACKDATED_MS // 1_000
    assert root.not_valid_after_utc.timestamp() == NOW_S + TEN_YEARS_S
    other = make_authority(NOW_S)
    assert other.issuing.subject != root.subject
    assert other.issuing.serial_number != root.serial_number


def test_the_fingerprint_is_of_the_roots_key(tmp_path: Path) -> None:
    """So that an intermediate may be exchanged, and even the root's certificate renewed, without a word to anybody."""
    authority = brought(intermediates=2)
    put(tmp_path, authority.pem)
    (fingerprint,) = opened(tmp_path).authorities()
    spki = (
        authority.chain[-1]
        .public_key()
        .public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    )
    assert fingerprint == hashlib.sha256(spki).hexdigest()

    root = LocalAuthority(key=make_key("p256"), chain=authority.chain[-1:])
    assert fingerprint_of(root.issuing) == fingerprint


def test_a_newer_intermediate_of_the_same_root_counts(tmp_path: Path) -> None:
    root = brought("p256", intermediates=0)
    made = []
    for name in ("authority.pem", "authority-000000000000000a.pem"):
        key = make_key("p256")
        made.append(LocalAuthority(key=key, chain=(above(key, "below", root), *root.chain)))
        put(tmp_path, made[-1].pem, name=name)
    keys, node = opened(tmp_path), TlsCredentials(None)
    (fingerprint,) = keys.authorities()
    chain = keys.issue(fingerprint, node.request(), terms_at(NODE, "1", NOW_S * 1_000))
    assert chain is not None
    assert chain.endswith(pem_of((made[1].issuing,)))
    keys.forget(fingerprint, "")
    assert not list(tmp_path.iterdir())


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["ed25519", "p256", "p384", "rsa"])
@pytest.mark.parametrize("intermediates", [0, 1])
def test_what_an_operator_brings(kind: str, intermediates: int, tmp_path: Path) -> None:
    """It issues, it signs a revocation list, and text around it (as openssl writes it) does no harm."""
    authority = brought(kind, intermediates=intermediates)
    put(tmp_path, b"Subject: CN=below\n", authority.pem, b"\n# the end\n")
    keys = opened(tmp_path)
    (fingerprint,) = keys.authorities()
    parties = [TlsCredentials(None) for _ in range(2)]
    for one, identity in zip(parties, (CONTROLLER, NODE), strict=True):
        one.trust([keys.authorities()[fingerprint].certificate])
        chain = keys.issue(fingerprint, one.request(), terms_at(identity, "1", NOW_S * 1_000))
        assert chain is not None
        one.accept(chain)
    controller, node = parties
    server, _ = handshake(controller.server_context(demand=True), node.client_context(anonymous=False, verified=True))
    assert peer_of(server) == node.certificate
    pem = keys.revocation_list(fingerprint, [], number=1, now_s=NOW_S)
    assert x509.load_pem_x509_crl(pem.encode()).is_signature_valid(authority.issuing.public_key())  # type: ignore[arg-type]


def _below(length: int | None = None, **of: bool) -> LocalAuthority:
    """A root of ``length``, and two authorities below it."""
    key = make_key("p256")
    found = LocalAuthority(key=key, chain=(above(key, "root", length=length),))
    for name in ("one", "two"):
        key = make_key("p256")
        found = LocalAuthority(key=key, chain=(above(key, name, found, **of), *found.chain))
    return found


def _chain(*certificates: x509.Certificate) -> bytes:
    return pem_of(certificates).encode()


def _expired() -> LocalAuthority:
    root, key = brought(intermediates=0), make_key("p256")
    return LocalAuthority(key=key, chain=(above(key, "expired", root, days=-1), *root.chain))


GOOD = brought()
KEY = private_pem(GOOD.key)
BAD: dict[str, tuple[Callable[[], bytes], str]] = {
    "nothing": (lambda: b"", "no private key"),
    "no PEM": (lambda: b"\xff\x00", "no private key"),
    "no key": (lambda: _chain(*GOOD.chain), "no private key"),
    "a key that is cut": (lambda: KEY[:80] + _chain(*GOOD.chain), "no private key"),
    "no certificate": (lambda: KEY, "there must be its certificate"),
    "too many": (lambda: KEY + _chain(*GOOD.chain) * 5, "there must be its certificate"),
    "too long": (lambda: KEY + bytes(70_000), "move it away"),
    "another key": (lambda: private_pem(make_key("p256")) + _chain(*GOOD.chain), "not of that key"),
    "the root first": (lambda: KEY + _chain(*GOOD.chain[::-1]), "not of that key"),
    "no root": (lambda: KEY + _chain(GOOD.issuing), "no root"),
    "another root": (lambda: KEY + _chain(GOOD.issuing, brought().chain[-1]), "not issued by certificate 2"),
    "one left out": (lambda: _left_out(), "not issued by certificate 2"),
    "a leaf": (lambda: leaf(GOOD, NODE).pem, "certificate 1 may not issue others"),
    "a leaf in between": (lambda: _below(ca=False).pem, "certificate 1 may not issue others"),
    "no room": (lambda: _below(length=1).pem, "certificate 3 allows 1 authorities below it, and there are 2"),
    "expired": (lambda: _expired().pem, "expired"),
    "an RSA key that is too short": (lambda: brought("short rsa").pem, "RSA of 2048"),
    "a curve that nobody has": (lambda: brought("p521").pem, "neither Ed25519"),
}


def _left_out() -> bytes:
    found = _below()
    return private_pem(found.key) + _chain(found.chain[0], found.chain[2])


@pytest.mark.parametrize(("content", "problem"), BAD.values(), ids=BAD)
def test_what_an_operator_brings_wrongly(content: Callable[[], bytes], problem: str, tmp_path: Path) -> None:
    """Said by the name of the file, nothing of the key shown, and the file left alone."""
    data = content()
    path = put(tmp_path, data)
    with pytest.raises(PortFault, match=problem) as caught:
        opened(tmp_path).authorities()
    assert str(path) in str(caught.value)
    assert "BEGIN" not in str(caught.value)
    assert path.read_bytes() == data


def test_an_authority_that_has_expired_meanwhile(tmp_path: Path) -> None:
    """Nobody would believe what it issues; a start says so by the file's name."""
    clock = SetClock()
    keys, request = opened(tmp_path, clock), TlsCredentials(None).request()
    (fingerprint,) = keys.authorities()
    clock.wall_ms = (NOW_S + TEN_YEARS_S - 1) * 1_000
    assert keys.issue(fingerprint, request, terms_at(NODE, "1", clock.wall_ms)) is not None
    clock.wall_ms += 1_000
    with pytest.raises(PortFault, match=f"{fingerprint}.*expired.*rotate"):
        keys.issue(fingerprint, request, terms_at(NODE, "1", clock.wall_ms))
    with pytest.raises(PortFault, match=r"authority\.pem.*expired"):
        opened(tmp_path, clock).authorities()


def test_later_keys_sort_by_age_whatever_the_clock_says(tmp_path: Path) -> None:
    clock = SetClock()
    keys = opened(tmp_path, clock)
    authorities, signers = list(keys.authorities()), list(keys.signers())
    for step_ms in (0, -86_400_000, 1):
        clock.wall_ms += step_ms
        authority, signing_key = keys.make()
        authorities.append(authority.fingerprint)
        signers.append(signing_key.key_id)
    assert list(opened(tmp_path).authorities()) == authorities
    assert list(opened(tmp_path).signers()) == signers


def test_keys_that_are_copied_here_are_found(tmp_path: Path) -> None:
    """As from the controller that led, to one that is open already."""
    theirs, ours = opened(tmp_path / "theirs"), opened(tmp_path / "ours")
    assert ours.authorities()
    authority, signing_key = theirs.make()
    with pytest.raises(PortFault, match=f"{authority.fingerprint}.*copy it"):
        ours.issue(authority.fingerprint, b"", terms_at(NODE, "1", 0))
    shutil.copytree(tmp_path / "theirs", tmp_path / "ours", dirs_exist_ok=True)
    terms = terms_at(NODE, "1", NOW_S * 1_000)
    assert ours.issue(authority.fingerprint, TlsCredentials(None).request(), terms) is not None
    assert ours.authorities()[authority.fingerprint] == authority
    assert signing_key.key_id in ours.signers()


def test_a_revocation_list_is_read_by_others(tmp_path: Path) -> None:
    """RFC 5280, section 5; its issuer is that of the certificates, and OpenSSL refuses by it."""
    keys = opened(tmp_path)
    root = the_one(keys)
    revoked = (Revoked(serial="c0ffee", revoked_s=NOW_S - 5), Revoked(serial="1", revoked_s=NOW_S - 7_200))
    pem = keys.revocation_list(fingerprint_of(root), revoked, number=41, now_s=NOW_S)
    found = x509.load_pem_x509_crl(pem.encode())
    assert found.is_signature_valid(root.public_key())  # type: ignore[arg-type]  # a root's key is one that signs
    assert found.issuer == root.subject
    assert found.extensions.get_extension_for_class(x509.CRLNumber).value.crl_number == 41
    assert found.next_update_utc is not None
    assert (found.last_update_utc.timestamp(), found.next_update_utc.timestamp()) == (NOW_S, NOW_S + LIST_S)
    entries = {f"{one.serial_number:x}": int(one.revocation_date_utc.timestamp()) for one in found}
    assert entries == {one.serial: one.revoked_s for one in revoked}

    authority = load_authority(tmp_path / "authority.pem", NOW_S)
    assert authority is not None
    (tmp_path / "list.pem").write_text(pem)
    context = party(authority, CONTROLLER, "2").server_context(demand=True)
    context.load_verify_locations(cafile=str(tmp_path / "list.pem"))
    context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF
    handshake(context, party(authority, serial="c0ffed").client_context(anonymous=False, verified=True))
    with pytest.raises(ssl.SSLError, match="revoked"):
        handshake(context, party(authority, serial="c0ffee").client_context(anonymous=False, verified=True))


def test_what_is_issued_is_what_a_party_shows(tmp_path: Path) -> None:
    keys = opened(tmp_path)
    (fingerprint,) = keys.authorities()
    node, terms = TlsCredentials(None), terms_at(NODE, "beef", NOW_S * 1_000)
    node.trust([keys.authorities()[fingerprint].certificate])
    chain = keys.issue(fingerprint, node.request(), terms)
    assert chain is not None
    assert node.accept(chain) == PeerCertificate(**attrs.asdict(terms))
    assert party(make_authority(NOW_S)).trusted != node.trusted
