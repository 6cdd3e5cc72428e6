"""How a machine becomes a node of a cluster: an operator's token, and a controller that proves whose it is before the
token's secret leaves this machine."""

from collections.abc import Callable
from typing import Final

import attrs
import structlog
import trio

from lunanexa_apps.node.control import ControlChannel, ControlRefusal
from lunanexa_apps.node.identity import NodeIdentity
from lunanexa_apps.node.retry import Retry
from lunanexa_apps.node.settings import NodePorts, NodeSettings
from lunanexa_apps.node.trust import Trust
from lunanexa_core.identity.token import EnrolmentToken
from lunanexa_core.southbound.controllers import controller_url
from lunanexa_core.southbound.enrolment import Authorities, Enrolled, Enrolment
from lunanexa_ports.credentials import Credentials
from lunanexa_ports.errors import PortError, PortFault

_WAIT: Final = 429
_AGAIN_MS: Final = 5_000
"""Where the controller does not say when."""
_log = structlog.get_logger()


@attrs.frozen
class NotEnrolled:
    """Why a token was of no use, and what mends it."""

    reason: str
    fix: str
    again_ms: int | None = None
    """The token is good, and the same question makes sense again in so long."""


@attrs.frozen(kw_only=True)
class Admission:
    """A token, and what is asked for with it."""

    token: EnrolmentToken
    data_address: str | None = None
    """Where gateways shall reach this node's data listener."""
    used: Callable[[], None] = lambda: None
    """Called once the node is enrolled: the token is of no use any more."""
    look: Callable[[], EnrolmentToken | None] = lambda: None
    """The token that lies there now; ``None``: none. Raises ``PortError``."""

    def as_it_is_now(self) -> "Admission":
        """With a token that was put in the place of this one, which let nobody in, if it is for the same node."""
        try:
            token = self.look()
        except PortError:
            return self  # Somebody writes it now; it is looked at again.
        return self if token is None or token.node != self.token.node else attrs.evolve(self, token=token)


@attrs.frozen
class Admitted:
    """The node is enrolled."""

    identity: NodeIdentity
    valid_ms: int
    """How long its certificate is good from the moment of the question on."""


class Enroller:
    """Enrols one node. Nothing of the node's present identity is lost by a try that fails."""

    def __init__(self, ports: NodePorts, settings: NodeSettings, trust: Trust, control: ControlChannel) -> None:
        self._ports = ports
        self._settings = settings
        self._trust = trust
        self._control = control

    async def ensure(self, admission: Admission | None) -> int | None:
        """Returns once the node is enrolled, and tries until then: for how long its certificate is good from now on,
        where it is new. A token that did not let it in before is used also by a node that is enrolled already; one
        that is refused leaves such a node as it is."""
        identity = self._trust.identity
        if admission is not None and (identity is None or identity.token != admission.token.token):
            valid_ms = await self._enrol_by(admission)
            if valid_ms is not None:
                admission.used()
                return valid_ms
        elif admission is not None:
            admission.used()  # An agent that used it died before it could say so.
        assert identity is not None, "a node without an identity needs a token"
        self._control.cluster = identity.cluster
        return None

    async def _enrol_by(self, admission: Admission) -> int | None:
        retry = Retry(self._ports, self._settings, cap_ms=self._control.patience_ms)
        while True:
            try:
                answer = await self.enrol(admission)
                if isinstance(answer, Admitted):
                    return answer.valid_ms
                retry.told("enrolment_refused", answer.reason, fix=answer.fix)
                if self._trust.identity is not None and answer.again_ms is None:
                    return None
                admission = admission.as_it_is_now()
            except PortError as error:
                retry.told("enrolment_lost", str(error))
            await retry.wait()

    async def enrol_in_time(self, admission: Admission, limit_ms: int) -> Admitted | NotEnrolled:
        """:meth:`enrol`, and again when the controller says, while that is within ``limit_ms``: who did not hear an
        answer and asks anew at once is told to wait."""
        until_ms = self._ports.clock.now().mono_ms + limit_ms
        while True:
            answer = await self.enrol(admission)
            if not isinstance(answer, NotEnrolled) or answer.again_ms is None:
                return answer
            if self._ports.clock.now().mono_ms + answer.again_ms > until_ms:
                return answer
            _log.info("enrolment_waits", reason=answer.reason, again_ms=answer.again_ms)
            await trio.sleep(answer.again_ms / 1_000)

    async def enrol(self, admission: Admission) -> Admitted | NotEnrolled:
        """Raises ``PortUnavailable`` and ``PortFault`` as the controller's channel and the credentials do."""
        token = admission.token
        shown = await self._control.authorities()
        if isinstance(shown, ControlRefusal):
            return NotEnrolled(f"the controller does not say whose it is: {shown}", "ask its operator")
        try:
            if not trust_only(self._ports.credentials, shown, token.authority):
                return NotEnrolled(
                    "who answers there does not have the authority that the token names",
                    "check --controller; nothing of the token was sent",
                )
            return await self._introduce(admission, shown)
        finally:
            self._restore()

    async def _introduce(self, admission: Admission, shown: Authorities) -> Admitted | NotEnrolled:
        token, credentials = admission.token, self._ports.credentials
        self._control.cluster = shown.cluster
        enrolment = Enrolment(
            node=token.node,
            public_key=self._ports.signer.public_key,
            agent_version=self._settings.version,
            token=token.token,
            secret=token.secret,
            certificate_request=credentials.request().hex(),
            data_address=admission.data_address,
        )
        answer = await self._control.enrol(enrolment)
        if isinstance(answer, ControlRefusal) and answer.status == _WAIT:
            again_ms = _AGAIN_MS if answer.again_ms is None else answer.again_ms
            fix = f"repeat the same command in {-(-again_ms // 1_000)} s: the token is good still"
            return NotEnrolled(f"the controller says to wait: {answer}", fix, again_ms)
        if isinstance(answer, ControlRefusal):
            fix = (
                f"have a new token minted: lunanexa node token {token.node}; --again if the node is enrolled already."
                " Of several only the last one is good"
            )
            return NotEnrolled(f"the controller refuses the token: {answer}", fix)
        if answer.cluster != shown.cluster or token.authority not in [
            one.fingerprint for one in answer.trust.authorities
        ]:
            raise PortFault("the controller let the node into another cluster than the token's")
        identity = self._identity(admission, answer)
        credentials.trust([one.certificate for one in answer.trust.authorities])
        certificate = credentials.accept(answer.certificate)
        if certificate.identity != identity.uri:
            raise PortFault(f"the controller gave this node the certificate of {certificate.identity}")
        await self._trust.enrolled(identity)
        _log.info("enrolled", node=identity.node, cluster=identity.cluster, epoch=identity.epoch)
        return Admitted(identity, answer.valid_ms)

    def _identity(self, admission: Admission, answer: Enrolled) -> NodeIdentity:
        return NodeIdentity(
            node=admission.token.node,
            cluster=answer.cluster,
            epoch=answer.epoch,
            trust=answer.trust,
            issuer=answer.trust.issuing.fingerprint,
            token=admission.token.token,
            controllers=tuple(controller_url(one) for one in self._settings.controllers),
            data_address=answer.data_address,
        )

    def _restore(self) -> None:
        """After a try that failed this process trusts whom it trusted before: nobody, if it is not enrolled."""
        identity, credentials = self._trust.identity, self._ports.credentials
        self._control.cluster = None if identity is None else identity.cluster
        if identity is None:
            credentials.forget()
            return
        authorities = identity.trust.authorities
        if set(credentials.trusted) != {one.fingerprint for one in authorities}:
            credentials.trust([one.certificate for one in authorities])


def trust_only(credentials: Credentials, shown: Authorities, fingerprint: str) -> bool:
    """Trusts the shown authority that has that fingerprint, and no other: who shows two has one of them from somebody
    else, perhaps."""
    for certificate in shown.certificates:
        try:
            credentials.trust([certificate])
        except PortFault:
            continue  # No certificate: whoever answers may say what he likes.
        if credentials.trusted == (fingerprint,):
            return True
    return False
