"""Signatures of the simulated world: cheap, deterministic, and as hard to forge as the world is closed.

A "signature" is a hash over a secret and the payload, so that only the secret's holder can make it and
a change of one bit shows. To check it takes the secret too: the keyring has it, and stands for the
mathematics of a real public key. Nothing but :class:`SimulatedVerifier` looks into it.
"""

import hashlib
import hmac
from collections.abc import Mapping

from lunanexa_core.southbound.documents import SignedDocument
from lunanexa_ports.signing import Signer, Verifier
from lunanexa_simulation.rng import Stream


class SimulatedKeyring:
    """One a world: public key (hex) to secret."""

    def __init__(self) -> None:
        self._secrets: dict[str, bytes] = {}

    def new_key(self, stream: Stream) -> "SimulatedSigner":
        """A new key, drawn from ``stream``."""
        secret = stream.randbytes(32)
        public = hashlib.sha256(b"public" + secret).digest()
        self._secrets[public.hex()] = secret
        return SimulatedSigner(secret, public)

    def signature(self, public_key: str, payload: bytes) -> bytes | None:
        """What the holder of ``public_key`` would sign ``payload`` with; ``None`` for a key that is none."""
        secret = self._secrets.get(public_key)
        return None if secret is None else _signature(secret, payload)


class SimulatedSigner(Signer):
    """Made by :meth:`SimulatedKeyring.new_key`. It outlives crashes, as a key file does."""

    def __init__(self, secret: bytes, public: bytes) -> None:
        self._secret = secret
        self._public = public
        self._key_id = f"ed25519:{hashlib.sha256(public).hexdigest()[:16]}"

    @property
    def key_id(self) -> str:
        return self._key_id

    @property
    def public_key(self) -> str:
        return self._public.hex()

    def sign(self, payload: bytes) -> SignedDocument:
        return SignedDocument(payload=payload, key_id=self._key_id, signature=_signature(self._secret, payload))


class SimulatedVerifier(Verifier):
    """Checks signatures of the keys of one keyring."""

    def __init__(self, keyring: SimulatedKeyring) -> None:
        self._keyring = keyring

    def verify(self, document: SignedDocument, trusted: Mapping[str, str]) -> bool:
        public = trusted.get(document.key_id)
        expected = None if public is None else self._keyring.signature(public, document.payload)
        return expected is not None and hmac.compare_digest(expected, document.signature)


def _signature(secret: bytes, payload: bytes) -> bytes:
    return hashlib.sha512(secret + payload).digest()
