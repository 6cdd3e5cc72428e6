"""The agent's talk with its controller: enrolment, then heartbeats and the long poll, for as long as it lives.

A controller that can't be reached changes nothing on this machine: the last accepted document is followed,
and trying goes on.
"""

from collections.abc import Callable
from typing import Final

import structlog
import trio

from lunanexa_apps.node.control import ControlChannel, ControlRefusal
from lunanexa_apps.node.pulse import Pulse
from lunanexa_apps.node.replicas import Replicas
from lunanexa_apps.node.settings import NodePorts, NodeSettings
from lunanexa_apps.node.trust import OtherCluster, Trust
from lunanexa_core.ids import BootId
from lunanexa_core.lifecycle.backoff import backoff_ms
from lunanexa_core.southbound.documents import DocumentRefusal, SignedDocument
from lunanexa_core.southbound.heartbeat import Heartbeat
from lunanexa_ports.errors import PortError

LAST_HEARTBEAT_S: Final = 2.0
_FIRST_LOOK_S: Final = 1.0
_log = structlog.get_logger()


class ControllerSession:
    """One boot of one agent, in the controller's eyes."""

    def __init__(
        self, ports: NodePorts, settings: NodeSettings, trust: Trust, replicas: Replicas, changed: Pulse
    ) -> None:
        self._ports = ports
        self._settings = settings
        self._trust = trust
        self._replicas = replicas
        self._changed = changed
        self._control = ControlChannel(ports.http, ports.signer, settings)
        self._boot = BootId(ports.ids.new("boot"))
        self._sequence = 0
        self._enrolled = False
        self._refusal: DocumentRefusal | None = None

    async def run(self) -> None:
        """Runs for ever."""
        # The controller believes what it hears: an engine that serves must not be told of as starting only
        # because this agent has not looked yet.
        with trio.move_on_after(_FIRST_LOOK_S):
            await self._replicas.wait_looked()
        unknown = _Retry(self._ports, self._settings)
        while True:
            await self._enrol()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._poll)
                heard = await self._beat()
                nursery.cancel_scope.cancel("the controller knows this node no more")
            if heard:
                unknown.worked("enrolment_held")
            else:
                unknown.told("enrolled_and_unknown", "the controller takes the enrolment and refuses the heartbeat")
                await unknown.wait()

    async def last_heartbeat(self) -> None:
        """Says what is left, once, if the controller listens."""
        if self._enrolled:
            with trio.move_on_after(LAST_HEARTBEAT_S):
                try:
                    await self._send()
                except PortError as error:
                    _log.info("last_heartbeat_lost", reason=str(error))

    # --- enrolment ---

    async def _enrol(self) -> None:
        self._enrolled = False
        retry = _Retry(self._ports, self._settings)
        while not self._enrolled:
            try:
                answer = await self._control.enrol()
                if isinstance(answer, ControlRefusal):
                    retry.told("enrolment_refused", f"{answer.status} {answer.code}")
                else:
                    other = await self._trust.enrol(answer)
                    if isinstance(other, OtherCluster):
                        retry.told("other_cluster", f"this node is of {other.ours}, the controller of {other.theirs}")
                    else:
                        self._enrolled = True
                        _log.info("enrolled", cluster=answer.cluster, epoch=answer.epoch)
            except PortError as error:
                retry.told("controller_unreachable", str(error))
            if not self._enrolled:
                await retry.wait()

    # --- heartbeats ---

    async def _beat(self) -> bool:
        """Returns when the node must enrol again: whether it was heard before. A change is told at once,
        everything else at its interval."""
        # Never rarer than usual: a node that waited longer after an outage would be lost when it is over.
        cap_ms = min(self._settings.heartbeat_ms, self._settings.patience_ms)
        retry = _Retry(self._ports, self._settings, cap_ms=cap_ms)
        heard = False
        while True:
            try:
                refusal = await self._send()
            except PortError as error:
                retry.told("heartbeat_lost", str(error))
                await retry.wait(self._changed)
                continue
            if refusal is not None:
                if refusal.unknown_node:
                    return heard
                retry.told("heartbeat_refused", f"{refusal.status} {refusal.code}")
                await retry.wait(self._changed)
                continue
            retry.worked("heartbeat_answered")
            heard = True
            with trio.move_on_after(self._settings.heartbeat_ms / 1_000):
                await self._changed.wait()

    async def _send(self) -> ControlRefusal | None:
        self._sequence += 1
        reports = self._replicas.reports()
        accepted = self._trust.accepted
        memory = self._ports.memory.read()
        answer = await self._control.heartbeat(
            Heartbeat(
                node=self._settings.node,
                boot=self._boot,
                sequence=self._sequence,
                epoch=0 if accepted is None else accepted.epoch,
                generation=0 if accepted is None else accepted.generation,
                agent_version=self._settings.version,
                replicas=reports,
                available_mib=None if memory is None else memory.available_mib,
                total_mib=None if memory is None else memory.total_mib,
                document_refusal=None if self._refusal is None else self._refusal.value,
                refused=self._replicas.refused,
            )
        )
        if isinstance(answer, ControlRefusal):
            return answer
        self._replicas.told(reports)
        return None

    # --- documents ---

    async def _poll(self) -> None:
        retry = _Retry(self._ports, self._settings)
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
                        retry.told("document_not_given", f"{answer.status} {answer.code}")
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
        self._replicas.follow(desired)
        self._changed.set()
        return True


class _Retry:
    """Failures in a row: told at the first and then ever more seldom, waited for ever longer."""

    def __init__(self, ports: NodePorts, settings: NodeSettings, *, cap_ms: int | None = None) -> None:
        self._below: Callable[[int], int] = ports.ids.below
        self._base_ms = settings.retry_base_ms
        self._cap_ms = cap_ms or settings.patience_ms
        self._failures = 0

    def told(self, event: str, reason: str) -> None:
        self._failures += 1
        # At powers of two: an outage of hours is a few lines.
        if self._failures & (self._failures - 1) == 0:
            _log.warning(event, reason=reason, failures=self._failures)

    def worked(self, event: str) -> None:
        if self._failures:
            _log.info(event, after_failures=self._failures)
        self._failures = 0

    async def wait(self, sooner: Pulse | None = None) -> None:
        """A new leader's document ends the wait ``sooner`` too: it serves nothing before it was told what runs."""
        delay_ms = backoff_ms(self._failures, self._below(1_000), base_ms=self._base_ms, cap_ms=self._cap_ms)
        if sooner is None:
            await trio.sleep(delay_ms / 1_000)
            return
        with trio.move_on_after(delay_ms / 1_000):
            await sooner.wait()
