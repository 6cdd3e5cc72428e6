"""The agent's talk with its controller: enrolment, heartbeats, the long poll and renewals, for as long as it lives.

A controller that can't be reached changes nothing of what is desired on this machine: the last accepted document is
followed, as far as the lease allows, and trying goes on.
"""

from typing import Final

import structlog
import trio

from lunanexa_apps.node.control import ControlChannel, ControlRefusal
from lunanexa_apps.node.enrolment import Admission, Enroller
from lunanexa_apps.node.lease import LeaseKeeper
from lunanexa_apps.node.pulse import Pulse
from lunanexa_apps.node.renewal import CertificateRenewal
from lunanexa_apps.node.replicas import Replicas
from lunanexa_apps.node.retry import Retry
from lunanexa_apps.node.settings import NodePorts, NodeSettings
from lunanexa_apps.node.trust import Trust
from lunanexa_core.ids import BootId
from lunanexa_core.southbound.documents import DocumentRefusal, SignedDocument
from lunanexa_core.southbound.heartbeat import Heartbeat
from lunanexa_core.southbound.skew import Skew, measured_skew
from lunanexa_ports.errors import PortError

LAST_HEARTBEAT_S: Final = 2.0
_FIRST_LOOK_S: Final = 1.0
_log = structlog.get_logger()


class ControllerSession:
    """One boot of one agent, in the controller's eyes."""

    def __init__(
        self,
        ports: NodePorts,
        settings: NodeSettings,
        trust: Trust,
        replicas: Replicas,
        lease: LeaseKeeper,
        changed: Pulse,
    ) -> None:
        self._ports = ports
        self._settings = settings
        self._trust = trust
        self._replicas = replicas
        self._lease = lease
        self._skew: Skew | None = None
        self._changed = changed
        self._control = ControlChannel(ports.control, ports.signer, settings)
        self._enroller = Enroller(ports, settings, trust, self._control)
        self._renewal = CertificateRenewal(ports, settings, trust, self._control)
        self._boot = BootId(ports.ids.new("boot"))
        self._sequence = 0
        self._heard = False
        self._refusal: DocumentRefusal | None = None

    async def run(self, admission: Admission | None = None) -> None:
        """Runs for ever. A node that is not enrolled needs an ``admission``."""
        # The controller believes what it hears: an engine that serves must not be told of as starting only
        # because this agent has not looked yet.
        with trio.move_on_after(_FIRST_LOOK_S):
            await self._replicas.wait_looked()
        await self._admit(admission)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._poll)
            nursery.start_soon(self._renewal.run)
            await self.beat()

    async def ask_once(self, admission: Admission | None = None) -> ControlRefusal | None:
        """A heartbeat, and the newest document if there is one. Raises ``PortUnavailable`` and ``PortFault`` as the
        controller's channel does."""
        await self._admit(admission)
        await self._replicas.wait_looked()
        refusal = await self._renewal.renew_if_due() or await self._report()
        if refusal is not None:
            return refusal
        accepted = self._trust.accepted
        answer = await self._control.desired((0, 0) if accepted is None else accepted.order, wait_ms=0)
        match answer:
            case SignedDocument():
                await self._offer(answer)
                return None
            case _:
                return answer

    async def _admit(self, admission: Admission | None) -> None:
        self._renewal.begin(await self._enroller.ensure(admission))
        # Not before: a token may be of another cluster than the document.
        if self._trust.accepted is not None:
            self._control.learn(self._trust.accepted.controllers)

    @property
    def refusal(self) -> DocumentRefusal | None:
        """Why the newest document is not followed."""
        return self._refusal

    async def last_heartbeat(self) -> None:
        """Says what is left, once, if the controller listens."""
        if self._heard:
            with trio.move_on_after(LAST_HEARTBEAT_S):
                try:
                    await self._report()
                except PortError as error:
                    _log.info("last_heartbeat_lost", reason=str(error))

    # --- heartbeats ---

    async def beat(self) -> None:
        """Runs for ever. A change is told at once, everything else at its interval."""
        # Never rarer than usual: a node that waited longer after an outage would be lost when it is over.
        heartbeat_ms, patience_ms = self._settings.heartbeat_ms, self._control.patience_ms
        retry = Retry(self._ports, self._settings, cap_ms=lambda: min(heartbeat_ms, patience_ms()))
        while True:
            try:
                refusal = await self._report()
            except PortError as error:
                retry.told("heartbeat_lost", str(error))
                if retry.failures > 1:
                    self._renewal.doubt()
                await retry.wait(self._changed)
                continue
            if refusal is not None:
                retry.told("heartbeat_refused", str(refusal))
                if refusal.stranger:
                    self._renewal.doubt()
                await retry.wait(self._changed)
                continue
            retry.worked("heartbeat_answered")
            with trio.move_on_after(self._settings.heartbeat_ms / 1_000):
                await self._changed.wait()

    async def _report(self) -> ControlRefusal | None:
        """A heartbeat; another one after the document that this node follows, where the controller must see that."""
        refusal = await self._send()
        if refusal is None or not refusal.wants_document:
            return refusal
        document = await self._trust.accepted_document()
        if document is None:
            return refusal
        answer = await self._control.show(document)
        if isinstance(answer, ControlRefusal):
            return answer
        _log.info("document_shown", epoch=answer.epoch, generation=answer.generation)
        return await self._send()

    async def _send(self) -> ControlRefusal | None:
        self._sequence += 1
        reports = self._replicas.reports()
        # What it does not have any more counts as gone from the generation on that its replicas go by.
        epoch, generation = (0, 0) if self._trust.accepted is None else self._replicas.order
        memory = self._ports.memory.read()
        shown = self._ports.credentials.certificate
        sent = self._ports.clock.now()
        answer = await self._control.heartbeat(
            Heartbeat(
                node=self._settings.node,
                boot=self._boot,
                sequence=self._sequence,
                epoch=epoch,
                generation=generation,
                agent_version=self._settings.version,
                replicas=reports,
                unstarted=self._replicas.unstarted(),
                available_mib=None if memory is None else memory.available_mib,
                total_mib=None if memory is None else memory.total_mib,
                leased=self._lease.live(sent),
                document_refusal=None if self._refusal is None else self._refusal.value,
                refused=self._replicas.refused,
                skew_ms=None if self._skew is None else self._skew.ms,
                skew_error_ms=None if self._skew is None else self._skew.error_ms,
                trust_version=self._trust.version,
                certificate=None if shown is None else shown.serial,
            )
        )
        if isinstance(answer, ControlRefusal):
            return answer
        self._heard = True
        self._renewal.heard()
        self._lease.answered(sent, answer)
        if answer.wall_ms is not None:
            self._skew = measured_skew(sent, self._ports.clock.now(), answer.wall_ms)
        self._replicas.told(reports)
        return None

    # --- documents ---

    async def _poll(self) -> None:
        retry = Retry(self._ports, self._settings, cap_ms=self._control.patience_ms)
        while True:
            accepted = self._trust.accepted
            try:
                answer = await self._control.desired((0, 0) if accepted is None else accepted.order)
                match answer:
                    case SignedDocument():
                        followed = await self._offer(answer)
                        if followed:
                            retry.worked("document_followed")
                            continue
                        retry.told("document_refused", self._refusal.value if self._refusal else "")
                    case ControlRefusal():
                        retry.told("document_not_given", str(answer))
                    case None:
                        retry.worked("controller_answers")
                        continue
            except PortError as error:
                retry.told("document_not_had", str(error))
            await retry.wait()

    async def _offer(self, document: SignedDocument) -> bool:
        desired = await self._trust.offer(document)
        before = self._refusal
        self._refusal = desired if isinstance(desired, DocumentRefusal) else None
        if self._refusal is not before:
            self._changed.set()
        if isinstance(desired, DocumentRefusal):
            return False
        _log.info("document_accepted", epoch=desired.epoch, generation=desired.generation)
        self._control.learn(desired.controllers)
        self._renewal.trust_changed()
        self._replicas.follow(desired)
        self._changed.set()
        return True
