"""The controller's own part in mutual TLS: what its listener for nodes shows, and what its gateway shows to nodes.

It issues both to itself, with the keys of its cluster, so that no operator renews them. Neither outlives the process.
"""

from typing import Final

import structlog
import trio

from lunanexa_apps.controller.issuing import ClusterKeys
from lunanexa_apps.controller.kernel import Kernel
from lunanexa_core.identity.certificate import renew_after_ms
from lunanexa_core.identity.names import Identity, controller_identity, gateway_identity
from lunanexa_core.identity.trust import TrustSet
from lunanexa_core.outcomes import Refusal
from lunanexa_ports.credentials import Credentials
from lunanexa_ports.errors import PortError
from lunanexa_ports.ids import IdSource

_log = structlog.get_logger()
_LOOK_S: Final = 60.0
"""Timers stand still while a machine is suspended; its clock does not."""
_AGAIN_S: Final = 5.0


class ControllerIdentity:
    """Keeps both credentials good, and trusting what the cluster trusts; also while another controller leads."""

    def __init__(
        self,
        kernel: Kernel,
        keys: ClusterKeys,
        ids: IdSource,
        *,
        server: Credentials,
        gateway: Credentials,
    ) -> None:
        self._kernel = kernel
        self._keys = keys
        self._ids = ids
        self._server = server
        self._gateway = gateway
        self._followed: TrustSet | None = None
        self._issuer: str | None = None
        self._renew_at_mono_ms = 0

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Runs for ever. It has started when there is something to show, or nothing to be had now."""
        started = False
        while True:
            done = self._look()
            if not started:
                started = True
                task_status.started()
            wait_s = _AGAIN_S
            if done:
                left_ms = self._renew_at_mono_ms - self._kernel.now().mono_ms
                wait_s = min(max(left_ms, 0) / 1_000, _LOOK_S)
            with trio.move_on_after(wait_s):
                await self._kernel.wait_until(lambda: self._kernel.state.trust != self._followed)

    def _look(self) -> bool:
        """Does what is due; whether it could be done."""
        trust = self._kernel.state.trust
        if trust is None:
            return False
        try:
            if trust != self._followed:
                self._follow(trust)
            due = self._kernel.now().mono_ms >= self._renew_at_mono_ms
            return not (due or self._issuer != trust.issuing.fingerprint) or self._issue_all()
        except PortError as error:
            _log.error("own_certificates_failed", reason=str(error))
            return False

    def _follow(self, trust: TrustSet) -> None:
        certificates = [one.certificate for one in trust.authorities]
        for credentials in (self._server, self._gateway):
            credentials.trust(certificates)
        former, self._followed = self._followed, trust
        _log.info("trust_followed", version=trust.version, stage=trust.stage.value)
        if former is not None and self._kernel.leading:
            self._keys.forget_dropped(former, trust)

    def _issue_all(self) -> bool:
        state, holder = self._kernel.state, self._kernel.seat.holder
        assert state.cluster is not None, "trust comes after the cluster"
        began_ms, valid_ms = self._kernel.now().mono_ms, 0
        for credentials, identity in (
            (self._server, controller_identity(state.cluster, holder)),
            (self._gateway, gateway_identity(state.cluster, holder)),
        ):
            issued = self._issue(credentials, identity)
            if issued is None:
                return False
            valid_ms = issued
        self._renew_at_mono_ms = began_ms + renew_after_ms(valid_ms, self._ids.below(1_000))
        return True

    def _issue(self, credentials: Credentials, identity: Identity) -> int | None:
        """For how long the new certificate is good; ``None``: there is none, and the log says why."""
        issued = self._keys.issue(identity, credentials.request())
        if isinstance(issued, Refusal):
            return None
        credentials.accept(issued.chain)
        self._issuer = issued.certificate.issuer
        return issued.certificate.not_after_wall_ms - self._keys.wall_ms
