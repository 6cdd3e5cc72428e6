"""A simulated process's identity in mutual TLS, for the simulated network."""

import json
from collections.abc import Sequence

import attrs

from lunanexa_core.identity.certificate import PeerCertificate
from lunanexa_ports.clock import Clock
from lunanexa_ports.credentials import Credentials
from lunanexa_ports.errors import PortFault, PortUnavailable
from lunanexa_simulation.certificates import SimulatedCertificate, read_certificate
from lunanexa_simulation.rng import Stream
from lunanexa_simulation.signing import SimulatedKeyring, SimulatedSigner


@attrs.define(kw_only=True)
class IdentityFolder:
    """What outlives a process, and the fault of its disk: ``unavailable`` may be set at any time."""

    chain: str | None = None
    trusted: tuple[str, ...] = ()
    unavailable: bool = False


class SimulatedCredentials(Credentials):
    """One process's opening of ``folder``; without one it is in memory only. Who is shown a certificate judges its
    times by ``clock``, which is this machine's."""

    def __init__(
        self, keyring: SimulatedKeyring, stream: Stream, clock: Clock, folder: IdentityFolder | None = None
    ) -> None:
        self._keyring = keyring
        self._stream = stream
        self._clock = clock
        self._folder = IdentityFolder() if folder is None else folder
        self._waiting: SimulatedSigner | None = None

    @property
    def certificate(self) -> PeerCertificate | None:
        found = self._own()
        return None if found is None else found.peer

    @property
    def trusted(self) -> tuple[str, ...]:
        return tuple(root.fingerprint for root in self._roots())

    @property
    def shown(self) -> str | None:
        """What the other end of a connection is shown."""
        return self._folder.chain

    def verified(self, chain: str) -> PeerCertificate | None:
        """Who the other end of a connection is, as OpenSSL would say: issued by a trusted authority, good by now.
        ``None``: its certificate is refused."""
        found, now_s = read_certificate(self._keyring, chain), self._clock.now().wall_ms // 1_000
        if found is None or not self._is_trusted(found):
            return None
        return found.peer if found.not_before_s <= now_s < found.not_after_s else None

    def request(self) -> bytes:
        self._waiting = self._waiting or self._keyring.new_key(self._stream)
        payload = json.dumps({"request_key": self._waiting.public_key})
        signature = self._waiting.sign(payload.encode()).signature.hex()
        return json.dumps({"payload": payload, "signature": signature}).encode()

    def accept(self, chain: str) -> PeerCertificate:
        found = read_certificate(self._keyring, chain)
        if found is None or self._waiting is None or found.key != self._waiting.public_key:
            raise PortFault("the simulated certificate is not for the key that was asked for")
        if not self._is_trusted(found):
            raise PortFault("the simulated certificate does not lead to an authority that is trusted")
        self._check()
        self._folder.chain = chain
        self._waiting = None
        return found.peer

    def trust(self, certificates: Sequence[str]) -> None:
        found = [read_certificate(self._keyring, one) for one in certificates]
        if not all(one is not None and one.issuer == one.key and not one.identity for one in found):
            raise PortFault("what should be trusted is no simulated authority")
        self._check()
        self._folder.trusted = tuple(certificates)

    def forget(self) -> None:
        self._check()
        self._waiting = None
        self._folder.chain = None
        self._folder.trusted = ()

    def _own(self) -> SimulatedCertificate | None:
        chain = self._folder.chain
        return None if chain is None else read_certificate(self._keyring, chain)

    def _roots(self) -> list[SimulatedCertificate]:
        found = [read_certificate(self._keyring, one) for one in self._folder.trusted]
        return [one for one in found if one is not None]

    def _is_trusted(self, found: SimulatedCertificate) -> bool:
        return bool(found.identity) and any(found.issuer == root.key for root in self._roots())

    def _check(self) -> None:
        if self._folder.unavailable:
            raise PortUnavailable("the simulated folder of the identity is not there")
