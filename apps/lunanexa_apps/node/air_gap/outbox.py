"""What an air-gapped node says of itself: a signed report when something has changed, and now and then."""

from typing import Final

import attrs
import structlog

from lunanexa_apps.codec import encode
from lunanexa_apps.node.air_gap.bundles import Bundles, worst_of
from lunanexa_apps.node.replicas import Replicas
from lunanexa_apps.node.settings import LocalPorts, NodeSettings
from lunanexa_core.ids import BootId
from lunanexa_core.southbound.heartbeat import EngineReadings, Heartbeat
from lunanexa_core.southbound.outbox import OutboxReport, SignedReport
from lunanexa_ports.errors import PortError
from lunanexa_ports.inbox import Inbox

AGAIN_MS: Final = 600_000
"""So often at least a report is written."""
_FACT: Final = "outbox_number"
_log = structlog.get_logger()


class Outbox:
    """Of one agent process."""

    def __init__(
        self, ports: LocalPorts, settings: NodeSettings, inbox: Inbox, bundles: Bundles, replicas: Replicas
    ) -> None:
        self._ports = ports
        self._settings = settings
        self._inbox = inbox
        self._bundles = bundles
        self._replicas = replicas
        self._boot = BootId(ports.ids.new("boot"))
        self._sequence = 0
        self._said: object = None
        self._again_at_ms = 0

    async def say(self) -> None:
        """Writes a report if there is news, or the last one is old. Raises as the ports do."""
        heartbeat, now = self._heartbeat(), self._ports.clock.now()
        news = self._news(heartbeat)
        if news == self._said and now.mono_ms < self._again_at_ms:
            return
        number = int(await self._ports.store.get(_FACT) or b"0") + 1
        # Before the report: a number is never used twice.
        await self._ports.store.put(_FACT, str(number).encode())
        report = OutboxReport(
            node=self._settings.node,
            cluster=self._bundles.cluster,
            number=number,
            wall_ms=now.wall_ms,
            bundle=self._bundles.digest,
            refused=self._bundles.refused,
            heartbeat=heartbeat,
        )
        signed = self._ports.signer.sign(encode(report))
        envelope = SignedReport(
            public_key=self._ports.signer.public_key,
            key_id=signed.key_id,
            signature=signed.signature,
            payload=signed.payload,
        )
        await self._inbox.report(number, encode(envelope))
        self._replicas.told(heartbeat.replicas)
        self._sequence = heartbeat.sequence
        self._said, self._again_at_ms = news, now.mono_ms + AGAIN_MS

    async def say_last(self) -> None:
        """What is left as the agent goes; that it can't be written is only told."""
        try:
            await self.say()
        except PortError as error:
            _log.warning("last_report_lost", reason=str(error))

    def _heartbeat(self) -> Heartbeat:
        epoch, generation = self._replicas.order
        memory = self._ports.memory.read()
        return Heartbeat(
            node=self._settings.node,
            boot=self._boot,
            sequence=self._sequence + 1,
            epoch=epoch,
            generation=generation,
            agent_version=self._settings.version,
            replicas=self._replicas.reports(),
            unstarted=self._replicas.unstarted(),
            available_mib=None if memory is None else memory.available_mib,
            total_mib=None if memory is None else memory.total_mib,
            document_refusal=worst_of(self._bundles.refused),
            refused=self._replicas.refused,
        )

    def _news(self, heartbeat: Heartbeat) -> object:
        """What is worth a report: neither readings nor counts."""
        replicas = tuple(attrs.evolve(one, readings=EngineReadings()) for one in heartbeat.replicas)
        steady = attrs.evolve(heartbeat, sequence=1, available_mib=None, total_mib=None, replicas=replicas)
        return (self._bundles.digest, self._bundles.refused, steady)
