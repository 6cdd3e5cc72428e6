"""What a look at an engine means: how sure the node is of who answers there."""

import attrs

from lunanexa_apps.node.probe import Look, ProbeTarget, look
from lunanexa_apps.node.settings import LocalPorts
from lunanexa_core.drivers.catalog import DRIVERS
from lunanexa_core.drivers.driver import Health, IdentityFinding, IdentityQuestion
from lunanexa_core.drivers.specification import EngineAddress
from lunanexa_core.lifecycle.observations import Probed
from lunanexa_core.lifecycle.record import ReplicaRecord
from lunanexa_core.southbound.heartbeat import EngineReadings, IdentityGrade
from lunanexa_ports.processes import Processes, ProcessIdentity


class Sight:
    """Looks at one start, and remembers who owned its listener."""

    def __init__(
        self, ports: LocalPorts, record: ReplicaRecord, process: ProcessIdentity | None, engine_key: str | None
    ) -> None:
        assert record.start is not None
        assert record.host is not None
        assert record.port is not None
        engine = record.assignment.engine
        adopted = engine.url is not None
        self._http = ports.http
        self._processes: Processes = ports.processes
        self._start = record.start
        self._address = EngineAddress(record.host, record.port)
        self._process = process
        self._owner: ProcessIdentity | None = None
        self._target = ProbeTarget(
            driver=DRIVERS[engine.driver],
            host=record.host,
            port=record.port,
            engine_key=engine_key,
            question=IdentityQuestion(served_name=engine.served_name, start=None if adopted else record.start),
        )

    async def probe(self, timeout_ms: int) -> Probed:
        """One look, judged."""
        seen = await look(self._http, self._target, timeout_ms)
        grade, wrong = self._judge(seen)
        return Probed(
            start=self._start,
            health=seen.health,
            grade=grade,
            wrong=wrong,
            readings=seen.readings or EngineReadings(),
        )

    def _judge(self, seen: Look) -> tuple[IdentityGrade, bool]:
        match seen.finding:
            case IdentityFinding.PROVEN:
                return IdentityGrade.PROVEN, False
            case IdentityFinding.WRONG:
                return IdentityGrade.NONE, True
            case IdentityFinding.NO_SLOT:
                return self._judge_owner()
            case IdentityFinding.UNREADABLE | None:
                return IdentityGrade.NONE, False

    def _judge_owner(self) -> tuple[IdentityGrade, bool]:
        """Without a slot the owner of the listening socket stands for the identity: our process, or for an
        adopted engine whoever it was at first. A remote engine is what an operator declared."""
        owner = self._processes.owner_of_listener(self._address.port) if self._address.on_this_machine else None
        if self._process is not None:
            return (IdentityGrade.BOUND, False) if owner == self._process else (IdentityGrade.NONE, False)
        if self._owner is not None and owner is not None and owner != self._owner:
            return IdentityGrade.NONE, True
        self._owner = owner or self._owner
        return (IdentityGrade.DECLARED if owner is None else IdentityGrade.BOUND), False


@attrs.frozen
class Readings:
    """What the engine said last of itself, and when."""

    values: EngineReadings
    at_ms: int

    def aged(self, now_ms: int) -> EngineReadings:
        return attrs.evolve(self.values, age_ms=max(0, now_ms - self.at_ms))


def fresh_readings(probed: Probed, before: Readings | None, now_ms: int) -> Readings | None:
    """A look that could not read keeps the last good reading, which ages."""
    known = probed.health is Health.READY and probed.readings != EngineReadings()
    return Readings(probed.readings, now_ms) if known else before
