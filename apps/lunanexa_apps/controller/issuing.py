"""The cluster's private keys as the controller uses them: what it signs and issues now, or why it can't.

Which are in use is the journal's word, and where they lie is the adapter's: a leader that was not given the newest ones
says so, and nodes ask the next controller.
"""

import hashlib
import itertools
from collections.abc import Mapping
from typing import Final

import attrs
import structlog

from lunanexa_apps.controller.batches import STORE_DOWN
from lunanexa_apps.controller.kernel import Kernel
from lunanexa_core.identity.certificate import VALID_MS, NodeCertificate, terms_at
from lunanexa_core.identity.names import Identity
from lunanexa_core.identity.trust import TrustSet
from lunanexa_core.keys import secret_digest
from lunanexa_core.outcomes import Outcome, Refusal
from lunanexa_ports.clock import Clock
from lunanexa_ports.errors import PortFault
from lunanexa_ports.fleet_keys import FleetKeys
from lunanexa_ports.ids import IdSource
from lunanexa_ports.signing import Signer

_log = structlog.get_logger()
LOOK_AGAIN_MS: Final = 5_000
"""A key that was missing is looked for again so often: it may have been copied there."""
LACKS_KEYS: Final = Refusal(
    outcome=Outcome.STORE_UNAVAILABLE, message="This controller can't use the keys of its cluster; see its log."
)
_BAD_REQUEST: Final = Refusal(
    outcome=Outcome.INVALID_REQUEST,
    message="certificate_request must be PKCS #10 (DER, hex) for a key of Ed25519 or P-256, signed with it.",
    param="certificate_request",
)
_SERIAL_DIGITS: Final = 32


@attrs.frozen(kw_only=True)
class Issued:
    """A certificate, by the authority that ``trust`` says issues."""

    chain: str
    certificate: NodeCertificate
    trust: TrustSet


def request_digest(request: bytes) -> str:
    """As a certificate's record keeps which request it answers."""
    return hashlib.sha256(request).hexdigest()


class ClusterKeys:
    """Every signature and certificate of the controller is made here."""

    def __init__(self, kernel: Kernel, keys: FleetKeys, clock: Clock, ids: IdSource) -> None:
        self._kernel = kernel
        self._keys = keys
        self._clock = clock
        self._ids = ids
        self._signers: dict[str, Signer] = {}
        self._missed: tuple[str, int] | None = None
        """Which signing key was looked for last in vain, and when."""
        self._verified_ms = -LOOK_AGAIN_MS
        """When a key was looked for last that others name: they may name any."""
        self.problem: str | None = None
        """Why the keys that are in use can't be used, as it was found last; ``None``: they can."""

    @property
    def wall_ms(self) -> int:
        """The wall clock of this machine, by which certificates are good."""
        return self._clock.now().wall_ms

    def signer(self) -> Signer | Refusal:
        """Who signs documents now. Raises ``PortUnavailable``."""
        trust = self._kernel.state.trust
        if trust is None:
            return STORE_DOWN
        found = self._signers.get(trust.signing.key_id) or self._look_for(trust.signing.key_id)
        if found is None:
            self._tell(f"the signing key {trust.signing.key_id} is not here")
            return LACKS_KEYS
        return found

    def verifying(self, key_id: str) -> Mapping[str, str]:
        """The public key of that name, by it, if it signs for the cluster: it is trusted, or was made after what is
        trusted and is here, as after a store was set back to before a rotation. Raises ``PortUnavailable``."""
        trust = self._kernel.state.trust
        trusted = {} if trust is None else trust.keys
        if key_id in trusted:
            return {key_id: trusted[key_id]}
        now_ms = self._clock.now().mono_ms
        if now_ms - self._verified_ms >= LOOK_AGAIN_MS:
            self._verified_ms = now_ms
            try:
                self._signers = dict(self._keys.signers())
            except PortFault as fault:
                self._tell(str(fault))
        newer = list(itertools.takewhile(lambda name: name not in trusted, reversed(self._signers)))
        return {key_id: self._signers[key_id].public_key} if key_id in newer else {}

    def issue(self, identity: Identity, request: bytes, *, again: NodeCertificate | None = None) -> Issued | Refusal:
        """A certificate for the key of a PKCS #10 request; ``again``: the one that answered this request before, to
        every word of it. Raises ``PortUnavailable``."""
        trust = self._kernel.state.trust
        if trust is None:
            return STORE_DOWN
        certificate = again or self._new(trust, request)
        terms = terms_at(identity.uri, certificate.serial, certificate.not_after_wall_ms - VALID_MS)
        try:
            chain = self._keys.issue(certificate.issuer, request, terms)
        except PortFault as fault:
            self._tell(str(fault))
            return LACKS_KEYS
        if chain is None:
            return _BAD_REQUEST
        self.problem = None
        return Issued(chain=chain, certificate=certificate, trust=trust)

    def _new(self, trust: TrustSet, request: bytes) -> NodeCertificate:
        return NodeCertificate(
            serial=secret_digest(self._ids.secret())[:_SERIAL_DIGITS].lstrip("0"),
            issuer=trust.issuing.fingerprint,
            # By the clock that both ends of a connection go by, not by that of events, which only leans towards it.
            not_after_wall_ms=self.wall_ms // 1_000 * 1_000 + VALID_MS,
            request=request_digest(request),
        )

    def forget_dropped(self, former: TrustSet, trust: TrustSet) -> None:
        """Removes the private keys that the cluster trusts no more. Raises as the port does."""
        dropped = [one.fingerprint for one in former.authorities if one not in trust.authorities]
        voided = [one.key_id for one in former.signing_keys if one not in trust.signing_keys]
        for fingerprint, key_id in zip(dropped, voided, strict=True):
            self._keys.forget(fingerprint, key_id)
            _log.info("cluster_keys_forgotten", authority=fingerprint, signing_key=key_id)

    def _look_for(self, key_id: str) -> Signer | None:
        now_ms = self._clock.now().mono_ms
        if self._missed is not None and self._missed[0] == key_id and now_ms - self._missed[1] < LOOK_AGAIN_MS:
            return None
        try:
            self._signers = dict(self._keys.signers())
        except PortFault as fault:
            self._tell(str(fault))
        found = self._signers.get(key_id)
        self._missed = None if found is not None else (key_id, now_ms)
        if found is not None:
            self.problem = None
        return found

    def _tell(self, problem: str) -> None:
        if problem != self.problem:
            fix = "copy what is newer in the folder controller/secrets of the controller that led before"
            _log.error("cluster_keys_unusable", problem=problem, fix=fix)
        self.problem = problem
