"""What every pair of signer and verifier must do."""

from collections.abc import Awaitable, Callable
from hashlib import sha256
from typing import Final, TypeAlias

import attrs

from lunanexa_core.southbound.documents import SignedDocument
from lunanexa_ports.signing import Signer, Verifier

MakeSigning: TypeAlias = Callable[[], tuple[Signer, Verifier]]
"""Makes a new key each time, and a verifier that could know any of them."""
Check: TypeAlias = Callable[[MakeSigning], Awaitable[None]]

_PAYLOAD: Final = b'{"schema":"lunanexa.desired_state.v1"}'


async def check_names_of_the_key(make: MakeSigning) -> None:
    """The public key is 32 bytes, and the key id follows from it."""
    signer, _ = make()
    public = bytes.fromhex(signer.public_key)
    assert len(public) == 32
    assert signer.public_key == signer.public_key.lower()
    assert signer.key_id == f"ed25519:{sha256(public).hexdigest()[:16]}"


async def check_own_signature_holds(make: MakeSigning) -> None:
    signer, verifier = make()
    for payload in (b"", _PAYLOAD, bytes(range(256)) * 400):
        document = signer.sign(payload)
        assert document.payload == payload
        assert document.key_id == signer.key_id
        assert len(document.signature) == 64
        assert verifier.verify(document, {signer.key_id: signer.public_key})


async def check_signing_is_deterministic(make: MakeSigning) -> None:
    """Signing the same bytes again gives the same document (RFC 8032), so that retries are equal."""
    signer, _ = make()
    assert signer.sign(_PAYLOAD) == signer.sign(_PAYLOAD)


async def check_changed_document_fails(make: MakeSigning) -> None:
    """One bit, anywhere, is too much; so is a signature of another length."""
    signer, verifier = make()
    document = signer.sign(_PAYLOAD)
    trusted = {signer.key_id: signer.public_key}
    for place in range(len(_PAYLOAD)):
        assert not verifier.verify(attrs.evolve(document, payload=_flipped(_PAYLOAD, place)), trusted)
    for place in range(len(document.signature)):
        assert not verifier.verify(attrs.evolve(document, signature=_flipped(document.signature, place)), trusted)
    for signature in (b"", document.signature[:-1], document.signature + b"\0"):
        assert not verifier.verify(attrs.evolve(document, signature=signature), trusted)


async def check_other_key_fails(make: MakeSigning) -> None:
    """A good signature of a key that is not the trusted one under that name is none."""
    signer, verifier = make()
    other, _ = make()
    assert signer.public_key != other.public_key
    document = signer.sign(_PAYLOAD)
    assert not verifier.verify(document, {})
    assert not verifier.verify(document, {other.key_id: other.public_key})
    assert not verifier.verify(document, {signer.key_id: other.public_key})
    forged = attrs.evolve(other.sign(_PAYLOAD), key_id=signer.key_id)
    assert not verifier.verify(forged, {signer.key_id: signer.public_key})


async def check_malformed_trust_fails(make: MakeSigning) -> None:
    """A trusted key that is no key verifies nothing, and breaks nothing."""
    signer, verifier = make()
    document = signer.sign(_PAYLOAD)
    for public in ("", "zz", signer.public_key[:-2], signer.public_key + "00", "0" * 64, "\u00e9" * 64):
        assert not verifier.verify(document, {signer.key_id: public}), public
    assert not verifier.verify(SignedDocument(payload=b"", key_id="", signature=b""), {"": signer.public_key})


CHECKS: Final[tuple[Check, ...]] = (
    check_names_of_the_key,
    check_own_signature_holds,
    check_signing_is_deterministic,
    check_changed_document_fails,
    check_other_key_fails,
    check_malformed_trust_fails,
)


def _flipped(data: bytes, place: int) -> bytes:
    return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]
