"""Ed25519 (RFC 8032) with the ``cryptography`` library; the private key in a PEM file of its owner's."""

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from lunanexa_adapters.files.atomic import create_atomic
from lunanexa_core.southbound.documents import SignedDocument
from lunanexa_ports.errors import PortFault, PortUnavailable
from lunanexa_ports.signing import Signer, Verifier

_KEY_BYTES: Final = 4_096


class Ed25519Signer(Signer):
    """One private key, in memory."""

    def __init__(self, private: Ed25519PrivateKey) -> None:
        self._private = private
        raw = private.public_key().public_bytes_raw()
        self._public = raw.hex()
        self._key_id = f"ed25519:{hashlib.sha256(raw).hexdigest()[:16]}"

    @classmethod
    def load_or_create(cls, path: Path) -> "Ed25519Signer":
        """The key in ``path`` (PEM, PKCS #8), made with mode 0600 where there is none. Blocks on the disk.
        Raises ``PortFault`` when the file is no such key or others may read it, ``PortUnavailable`` when
        it can't be read or made."""
        pem = _read(path)
        if pem is None:
            made = Ed25519PrivateKey.generate().private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
            # Of two processes at once the second finds the first one's key.
            create_atomic(path, made)
            pem = _read(path)
            if pem is None:
                raise PortUnavailable(f"the key {path} was removed while it was made")
        try:
            private = serialization.load_pem_private_key(pem, password=None)
        except (ValueError, TypeError, UnsupportedAlgorithm) as error:
            raise PortFault(f"{path} holds no private key that can be read") from error
        if not isinstance(private, Ed25519PrivateKey):
            raise PortFault(f"{path} holds a private key of another kind than Ed25519")
        return cls(private)

    @property
    def key_id(self) -> str:
        return self._key_id

    @property
    def public_key(self) -> str:
        return self._public

    def sign(self, payload: bytes) -> SignedDocument:
        return SignedDocument(payload=payload, key_id=self._key_id, signature=self._private.sign(payload))


class Ed25519Verifier(Verifier):
    """Stateless."""

    def verify(self, document: SignedDocument, trusted: Mapping[str, str]) -> bool:
        public = trusted.get(document.key_id)
        if public is None:
            return False
        try:
            key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(public))
            key.verify(document.signature, document.payload)
        except (ValueError, InvalidSignature):
            return False
        return True


def _read(path: Path) -> bytes | None:
    try:
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_mode & 0o077:
                raise PortFault(f"the private key {path} may be read by others: run `chmod 600 {path}`")
            return file.read(_KEY_BYTES)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise PortUnavailable(f"the private key {path} can't be read: {error.strerror}") from error
