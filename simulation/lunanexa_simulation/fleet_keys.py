"""The keys by which simulated controllers speak for their cluster."""

import json
from collections.abc import Mapping, Sequence
from typing import Final

import attrs

from lunanexa_core.identity.certificate import CertificateTerms
from lunanexa_core.identity.trust import Authority, SigningKey
from lunanexa_ports.errors import PortFault, PortUnavailable
from lunanexa_ports.fleet_keys import FleetKeys, Revoked
from lunanexa_ports.signing import Signer
from lunanexa_simulation.certificates import SimulatedCertificate, signed_payload
from lunanexa_simulation.rng import Stream
from lunanexa_simulation.signing import SimulatedKeyring, SimulatedSigner

_FOR_EVER_S: Final = 1 << 40
_DAY_S: Final = 86_400


class SimulatedFleetKeys(FleetKeys):
    """A folder of keys, drawn from ``stream``; it outlives crashes. ``unavailable`` is its fault, and may be set at
    any time."""

    def __init__(self, keyring: SimulatedKeyring, stream: Stream) -> None:
        self._keyring = keyring
        self._stream = stream
        self._authorities: dict[str, tuple[Authority, SimulatedSigner]] = {}
        self._signers: dict[str, SimulatedSigner] = {}
        self.unavailable = False

    def authorities(self) -> Mapping[str, Authority]:
        self._check()
        if not self._authorities:
            self._make_authority()
        return {fingerprint: authority for fingerprint, (authority, _) in self._authorities.items()}

    def signers(self) -> Mapping[str, Signer]:
        self._check()
        if not self._signers:
            self._make_signer()
        return dict(self._signers)

    def make(self) -> tuple[Authority, SigningKey]:
        self._check()
        return self._make_authority(), self._make_signer()

    def issue(self, fingerprint: str, request: bytes, terms: CertificateTerms) -> str | None:
        issuer = self._issuer(fingerprint)
        payload = signed_payload(request)
        key = None if payload is None else payload.document.get("request_key")
        if payload is None or not isinstance(key, str) or not payload.is_signed_by(self._keyring, key):
            return None
        return SimulatedCertificate(**attrs.asdict(terms), key=key, issuer=issuer.public_key).signed(issuer)

    def revocation_list(self, fingerprint: str, revoked: Sequence[Revoked], *, number: int, now_s: int) -> str:
        issuer = self._issuer(fingerprint)
        serials = [one.serial for one in revoked]
        payload = json.dumps({"number": number, "serials": serials, "now_s": now_s, "next_s": now_s + _DAY_S})
        return json.dumps({"payload": payload, "signature": issuer.sign(payload.encode()).signature.hex()})

    def forget(self, authority: str, signing_key: str) -> None:
        self._check()
        self._authorities.pop(authority, None)
        self._signers.pop(signing_key, None)

    def copy_to(self, other: "SimulatedFleetKeys") -> None:
        """The folder is copied over another one, of which nothing is left."""
        other._authorities, other._signers = dict(self._authorities), dict(self._signers)

    def _make_authority(self) -> Authority:
        key = self._keyring.new_key(self._stream)
        root = SimulatedCertificate(
            identity="", serial="1", not_before_s=0, not_after_s=_FOR_EVER_S, key=key.public_key, issuer=key.public_key
        )
        authority = Authority(fingerprint=root.fingerprint, certificate=root.signed(key))
        self._authorities[authority.fingerprint] = (authority, key)
        return authority

    def _make_signer(self) -> SigningKey:
        key = self._keyring.new_key(self._stream)
        self._signers[key.key_id] = key
        return SigningKey(key_id=key.key_id, public_key=key.public_key)

    def _issuer(self, fingerprint: str) -> SimulatedSigner:
        self._check()
        if fingerprint not in self._authorities:
            raise PortFault(f"the key of the authority {fingerprint} is not in the simulated folder")
        return self._authorities[fingerprint][1]

    def _check(self) -> None:
        if self.unavailable:
            raise PortUnavailable("the simulated folder of the fleet's keys is not there")
