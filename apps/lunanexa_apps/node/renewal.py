"""The node's certificate is renewed within the agent, for as long as that lives.

Its time is counted on the monotonic clock from its receipt on, so that a wall clock that jumps changes nothing; only
an agent that starts must believe the wall clock once. Who is not let in any more, with whatever certificate, asks for
a new one by his signing key and a challenge."""

from typing import Final

import structlog
import trio

from lunanexa_apps.node.control import ControlChannel, ControlRefusal
from lunanexa_apps.node.pulse import Pulse
from lunanexa_apps.node.retry import Retry
from lunanexa_apps.node.settings import NodePorts, NodeSettings
from lunanexa_apps.node.trust import Trust
from lunanexa_core.identity.certificate import BACKDATED_MS, VALID_MS, renew_after_ms
from lunanexa_core.southbound.enrolment import Renewal
from lunanexa_ports.errors import PortError, PortFault, PortUnavailable

SPREAD_MS: Final = 10_000
"""Within which the nodes of a fleet renew that are told to at once."""
TURN_AGAIN_MS: Final = 60_000
"""Before another try when a renewal did not bring the new authority's certificate."""
_LOOK_S: Final = 60.0
"""Timers stand still while a machine is suspended; its clock does not."""
_CAP_MS: Final = 30_000
_CALM_MS: Final = 30_000
"""What is refused for another reason than the certificate is no reason to doubt that again and again."""
_NEVER: Final = (999_999_999, 0)
"""The order of a document that there will not be."""
_log = structlog.get_logger()


class CertificateRenewal:
    """Renews before half of what remains is over, and when the trusted set says so."""

    def __init__(self, ports: NodePorts, settings: NodeSettings, trust: Trust, control: ControlChannel) -> None:
        self._ports = ports
        self._settings = settings
        self._trust = trust
        self._control = control
        self._wake = Pulse()
        self._doubted = False
        self._turning = False
        self._good_until_ms = 0
        self._renew_at_ms = 0
        self._by_challenge = False
        self._calm_until_ms = 0

    @property
    def good_until_mono_ms(self) -> int:
        """When the certificate in force ends, by this machine's monotonic clock."""
        return self._good_until_ms

    def begin(self, valid_ms: int | None = None) -> None:
        """A certificate is in force, good for so long from now on; ``None``: as long as the wall clock says, but never
        longer than one can be. An agent that starts keeps the time of its predecessor."""
        now, certificate = self._ports.clock.now(), self._ports.credentials.certificate
        if valid_ms is not None:
            self._count_from(now.mono_ms, valid_ms)
        elif certificate is None:
            self._count_from(now.mono_ms, 0)
        else:
            left_ms = min(max(certificate.not_after_s * 1_000 - now.wall_ms, 0), VALID_MS)
            whole_ms = max(left_ms, (certificate.not_after_s - certificate.not_before_s) * 1_000 - BACKDATED_MS)
            self._count_from(now.mono_ms - (whole_ms - left_ms), whole_ms)

    def doubt(self) -> None:
        """A question of this node was refused, or did not get through, as it does not when a certificate is not
        accepted."""
        if not self._doubted and self._mono_ms() >= self._calm_until_ms:
            self._doubted = True
            self._wake.set()

    def heard(self) -> None:
        """The controller takes what this node shows."""
        self._doubted = self._by_challenge = False

    def trust_changed(self) -> None:
        """Another authority may issue certificates now."""
        self._wake.set()

    async def renew_if_due(self) -> ControlRefusal | None:
        """One try, if it is time for it."""
        now_ms = self._mono_ms()
        self._look_at_issuer(now_ms)
        return await self._renew() if self._turning or now_ms >= self._renew_at_ms else None

    async def run(self) -> None:
        """Runs for ever. The node is enrolled."""
        retry = Retry(self._ports, self._settings, cap_ms=lambda: _CAP_MS)
        while True:
            await self._until_due()
            try:
                refusal = await self._renew()
                if refusal is None:
                    retry.worked("certificate_good")
                    continue
                self._by_challenge = True
                node = self._settings.node
                fix = f"have a token minted (lunanexa node token {node} --again), then lunanexa-node enroll"
                retry.told("renewal_refused", str(refusal), fix=fix if refusal.stranger else "it is tried again")
            except PortUnavailable as error:
                # A certificate that is not accepted looks like a controller that is not there.
                self._by_challenge = not self._by_challenge
                retry.told("renewal_lost", str(error))
            except PortError as error:
                retry.told("renewal_lost", str(error))
            await retry.wait()

    def _count_from(self, mono_ms: int, valid_ms: int) -> None:
        valid_ms = min(max(valid_ms, 0), VALID_MS)
        self._good_until_ms = mono_ms + valid_ms
        self._renew_at_ms = mono_ms + renew_after_ms(valid_ms, self._ports.ids.below(1_000))

    def _mono_ms(self) -> int:
        return self._ports.clock.now().mono_ms

    async def _until_due(self) -> None:
        while not self._doubted:
            now_ms = self._mono_ms()
            self._look_at_issuer(now_ms)
            left_ms = self._renew_at_ms - now_ms
            if left_ms <= 0:
                return
            with trio.move_on_after(min(left_ms / 1_000, _LOOK_S)):
                await self._wake.wait()

    def _look_at_issuer(self, now_ms: int) -> None:
        if not self._of_former_issuer():
            self._turning = False
        elif not self._turning:
            self._turning = True
            self._renew_at_ms = min(self._renew_at_ms, now_ms + self._ports.ids.below(SPREAD_MS))

    def _of_former_issuer(self) -> bool:
        identity = self._trust.identity
        return identity is not None and identity.issuer != identity.trust.issuing.fingerprint

    async def _renew(self) -> ControlRefusal | None:
        """One try; ``None``: done, or there is no need."""
        doubted, challenge = self._doubted, None
        if doubted or self._by_challenge or self._mono_ms() >= self._good_until_ms:
            word = await self._control.challenge()
            if isinstance(word, ControlRefusal):
                return word
            if doubted and (not self._doubted or await self._taken_for_ours()):
                self.heard()
                self._calm_until_ms = self._mono_ms() + _CALM_MS
                return None
            challenge = word.challenge
        began_ms = self._mono_ms()
        identity, credentials = self._trust.identity, self._ports.credentials
        assert identity is not None
        answer = await self._control.renew(
            Renewal(
                node=identity.node,
                certificate_request=credentials.request().hex(),
                challenge=challenge,
                agent_version=self._settings.version,
            )
        )
        if isinstance(answer, ControlRefusal):
            return answer
        certificate = credentials.accept(answer.certificate)
        if answer.cluster != identity.cluster or certificate.identity != identity.uri:
            raise PortFault(f"the controller gave this node the certificate of {certificate.identity}")
        await self._trust.renewed(answer.trust.issuing.fingerprint, answer.data_address)
        self._count_from(began_ms, answer.valid_ms)
        if self._of_former_issuer():
            self._renew_at_ms = min(self._renew_at_ms, began_ms + TURN_AGAIN_MS)
        self._doubted = self._by_challenge = False
        _log.info("certificate_accepted", serial=certificate.serial, by_challenge=challenge is not None)
        return None

    async def _taken_for_ours(self) -> bool:
        """Whether a question with the certificate in force is answered: a controller that was away is no reason for a
        renewal that its journal must keep."""
        try:
            answer = await self._control.desired(_NEVER, wait_ms=0)
        except PortUnavailable:
            return False
        return not (isinstance(answer, ControlRefusal) and answer.stranger)
