"""What a new agent makes of what an earlier one left: every replica record, proven or closed."""

import attrs
import structlog

from lunanexa_apps.codec import CodecError, decode
from lunanexa_apps.node.launch import log_name
from lunanexa_apps.node.replica import LOG_LINES
from lunanexa_apps.node.settings import LocalPorts
from lunanexa_core.ids import AssignmentId
from lunanexa_core.lifecycle.observations import Step
from lunanexa_core.lifecycle.record import ReplicaRecord, rules_for
from lunanexa_core.lifecycle.replica import recover
from lunanexa_ports.errors import PortFault
from lunanexa_ports.processes import ManagedProcess

_log = structlog.get_logger()


@attrs.frozen
class Recovered:
    """One replica as it goes on: its first step, and its process if one was proven."""

    step: Step
    process: ManagedProcess | None


async def recover_replicas(ports: LocalPorts) -> dict[AssignmentId, Recovered]:
    """All replicas of the store. Raises ``PortFault`` for a record that can't be read: an engine may run
    under it, so that going on without it could start a second one."""
    recovered: dict[AssignmentId, Recovered] = {}
    for assignment, stored in (await ports.store.replicas()).items():
        try:
            record = decode(ReplicaRecord, stored)
        except CodecError as error:
            raise PortFault(f"the record of replica {assignment} can't be read: {error}") from error
        recovered[assignment] = _recover(ports, record)
    return recovered


def _recover(ports: LocalPorts, record: ReplicaRecord) -> Recovered:
    process = ports.processes.adopt(record.start) if record.launched and record.start is not None else None
    taken = recover(
        record,
        alive=process is not None,
        # Asked after the adoption, which revokes what was never taken.
        recorded=record.start in ports.processes.recorded(),
        now_ms=ports.clock.now().mono_ms,
        rules=rules_for(record.assignment),
        jitter_per_mille=ports.ids.below(1_000),
    )
    found = taken.record
    if found.exit is not None and found.exit.kind == "unobserved" and found.exit != record.exit:
        lines = ports.processes.last_lines(log_name(record.assignment), LOG_LINES)
        taken = attrs.evolve(taken, record=attrs.evolve(found, exit=attrs.evolve(found.exit, last_lines=lines)))
    _log.info(
        "replica_recovered",
        assignment=record.assignment.assignment,
        start=record.start,
        before=record.state.value,
        state=taken.record.state.value,
        process_found=process is not None,
    )
    return Recovered(taken, process)
