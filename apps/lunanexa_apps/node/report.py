"""A replica as the controller shall see it."""

import attrs

from lunanexa_apps.node.sight import Readings
from lunanexa_core.lifecycle.record import ReplicaRecord
from lunanexa_core.southbound.heartbeat import EngineReadings, ReplicaReport, ReplicaState
from lunanexa_ports.processes import ManagedProcess


def describe(
    record: ReplicaRecord, readings: Readings | None, process: ManagedProcess | None, *, now_ms: int
) -> ReplicaReport | None:
    """``None`` before the first start has an id: there is nothing yet to know the replica by."""
    if record.last_start is None:
        return None
    preparing = record.state is ReplicaState.STARTING and record.start is None
    return ReplicaReport(
        assignment=record.assignment.assignment,
        generation=record.assignment.generation,
        start=record.last_start,
        state=ReplicaState.BACKOFF if preparing else record.state,
        identity=record.grade,
        host=record.host,
        port=record.port,
        served_name=record.assignment.engine.served_name,
        slots=record.assignment.engine.slots,
        pid=None if process is None else process.identity.pid,
        restarts=record.restarts,
        exit=record.exit,
        readings=attrs.evolve(
            EngineReadings() if readings is None else readings.aged(now_ms),
            resident_mib=None if process is None else process.resident_mib(),
        ),
    )


def same_report(one: ReplicaRecord, other: ReplicaRecord) -> bool:
    """Whether two records of a replica differ only in what no report shows."""
    return _shown(one) == _shown(other)


def _shown(record: ReplicaRecord) -> ReplicaRecord:
    return attrs.evolve(record, deadline_ms=None, unhealthy_since_ms=None, since_ms=0, available_mib=None)
