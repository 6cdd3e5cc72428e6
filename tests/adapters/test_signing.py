"""The key file of the Ed25519 signer, and the signatures of RFC 8032 themselves."""

import os
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from lunanexa_adapters.crypto.signing import Ed25519Signer, Ed25519Verifier
from lunanexa_core.southbound.documents import SignedDocument
from lunanexa_ports.errors import PortFault, PortUnavailable


def test_a_key_is_made_once_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "secrets" / "signing.pem"
    made = Ed25519Signer.load_or_create(path)
    loaded = Ed25519Signer.load_or_create(path)
    assert (made.key_id, made.public_key) == (loaded.key_id, loaded.public_key)
    assert made.sign(b"payload") == loaded.sign(b"payload")
    assert path.stat().st_mode & 0o777 == 0o600
    assert [file.name for file in path.parent.iterdir()] == ["signing.pem"]


def test_a_key_that_others_may_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "signing.pem"
    Ed25519Signer.load_or_create(path)
    path.chmod(0o640)
    with pytest.raises(PortFault, match="chmod 600"):
        Ed25519Signer.load_or_create(path)


@pytest.mark.parametrize("content", [b"", b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"])
def test_a_file_that_is_no_key_is_never_replaced(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "signing.pem"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(PortFault) as caught:
        Ed25519Signer.load_or_create(path)
    assert "AAAA" not in str(caught.value)
    assert path.read_bytes() == content


def test_a_key_of_another_kind_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "signing.pem"
    path.write_bytes(
        ec.generate_private_key(ec.SECP256R1()).private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    path.chmod(0o600)
    with pytest.raises(PortFault, match="Ed25519"):
        Ed25519Signer.load_or_create(path)


def test_a_place_where_no_key_can_be(tmp_path: Path) -> None:
    """Nor does any of them keep a reader waiting."""
    (tmp_path / "file").touch()
    os.mkfifo(tmp_path / "pipe", 0o600)
    for path in (tmp_path / "file" / "signing.pem", tmp_path, tmp_path / "pipe"):
        with pytest.raises((PortUnavailable, PortFault)):
            Ed25519Signer.load_or_create(path)


def test_vectors_of_rfc_8032() -> None:
    """Section 7.1, test 3."""
    secret = bytes.fromhex("c5aa8df43f9f837bedb7442f31dcb7b166d38535076f094b85ce3a2e0b4458f7")
    public = "fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025"
    signature = bytes.fromhex(
        "6291d657deec24024827e69c3abe01a30ce548a284743a445e3680d7db5ac3ac"
        "18ff9b538d16f290ae67f760984dc6594a7c15e9716ed28dc027beceea1ec40a"
    )
    signer = Ed25519Signer(Ed25519PrivateKey.from_private_bytes(secret))
    assert signer.public_key == public
    assert signer.sign(b"\xaf\x82").signature == signature
    document = SignedDocument(payload=b"\xaf\x82", key_id="name", signature=signature)
    assert Ed25519Verifier().verify(document, {"name": public})
