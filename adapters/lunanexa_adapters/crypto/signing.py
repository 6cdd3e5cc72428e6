"""Ed25519 (RFC 8032) with the ``cryptography`` library; the private key in a PEM file of its owner's."""

import hashlib
from collections.abc import Mapping
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from lunanexa_adapters.crypto.certificates import parse_private, private_pem
from lunanexa_adapters.files.atomic import create_atomic
from lunanexa_adapters.files.owned_file import KEY, read_owned_file
from lunanexa_core.southbound.documents import SignedDocument
from lunanexa_ports.errors import PortFault, PortUnavailable
from lunanexa_ports.signing import Signer, Verifier


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
        pem = read_owned_file(path, KEY)
        if pem is None:
            # Of two processes at once the second finds the first one's key.
            create_atomic(path, private_pem(Ed25519PrivateKey.generate()))
            pem = read_owned_file(path, KEY)
            if pem is None:
                raise PortUnavailable(f"the key {path} was removed while it was made")
        private = parse_private(path, pem)
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
