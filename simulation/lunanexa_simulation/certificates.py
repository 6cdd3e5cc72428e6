"""Certificates of the simulated world: JSON that only simulated adapters understand, signed with simulated keys.

An authority's names its own key as its issuer. There are none between an authority and those that it issues.
"""

import hashlib
import json
from typing import Any, Final

import attrs

from lunanexa_core.identity.certificate import PeerCertificate
from lunanexa_simulation.signing import SimulatedKeyring, SimulatedSigner

_MEMBERS: Final = {"identity": str, "serial": str, "not_before_s": int, "not_after_s": int, "key": str, "issuer": str}


@attrs.frozen(kw_only=True)
class SimulatedCertificate:
    identity: str
    """The URI; empty: an authority's."""
    serial: str
    not_before_s: int
    not_after_s: int
    key: str
    """Its owner's public key."""
    issuer: str
    """The public key of its authority."""

    def signed(self, issuer: SimulatedSigner) -> str:
        """The certificate as text. An attacker may sign with whatever key it has."""
        payload = json.dumps(attrs.asdict(self), sort_keys=True)
        return json.dumps({"payload": payload, "signature": issuer.sign(payload.encode()).signature.hex()})

    @property
    def fingerprint(self) -> str:
        return fingerprint_of(self.key)

    @property
    def peer(self) -> PeerCertificate:
        return PeerCertificate(
            identity=self.identity,
            serial=self.serial,
            not_before_s=self.not_before_s,
            not_after_s=self.not_after_s,
        )


def fingerprint_of(public_key: str) -> str:
    return hashlib.sha256(bytes.fromhex(public_key)).hexdigest()


def read_certificate(keyring: SimulatedKeyring, text: str) -> SimulatedCertificate | None:
    """``None`` for what is none, and for one whose signature is not of the issuer that it names."""
    payload = signed_payload(text)
    if payload is None or set(payload.document) != set(_MEMBERS):
        return None
    if not all(type(payload.document[name]) is kind for name, kind in _MEMBERS.items()):
        return None
    found = SimulatedCertificate(**payload.document)
    return found if payload.is_signed_by(keyring, found.issuer) else None


@attrs.frozen(kw_only=True)
class SignedPayload:
    text: str
    document: dict[str, Any]
    signature: bytes

    def is_signed_by(self, keyring: SimulatedKeyring, public_key: str) -> bool:
        return keyring.signature(public_key, self.text.encode()) == self.signature


def signed_payload(text: str | bytes) -> SignedPayload | None:
    """What stands in a signed text; ``None`` for what is none. The signature is not checked here."""
    try:
        outer = json.loads(text)
        document = json.loads(outer["payload"])
        signature = bytes.fromhex(outer["signature"])
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    if not isinstance(document, dict) or not isinstance(outer["payload"], str):
        return None
    return SignedPayload(text=outer["payload"], document=document, signature=signature)
