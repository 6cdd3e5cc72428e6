"""Driven port: signatures over bytes as they are sent (Ed25519)."""

from abc import abstractmethod
from collections.abc import Mapping
from typing import Protocol

from lunanexa_core.southbound.documents import SignedDocument


class Signer(Protocol):
    """One private key, which never leaves its adapter."""

    @property
    @abstractmethod
    def key_id(self) -> str:
        """A short stable name of the key: ``ed25519:`` and the first 16 hex digits of the public key's SHA-256."""

    @property
    @abstractmethod
    def public_key(self) -> str:
        """The raw public key, hex."""

    @abstractmethod
    def sign(self, payload: bytes) -> SignedDocument:
        """The payload with its signature. Never fails."""


class Verifier(Protocol):
    """Checks signatures; holds no secret."""

    @abstractmethod
    def verify(self, document: SignedDocument, trusted: Mapping[str, str]) -> bool:
        """Whether ``document`` is signed by the key that ``trusted`` (key id to raw public key, hex) names
        by its ``key_id``. An unknown key id, a malformed key or a wrong signature is ``False``."""
