"""The end of an engine whose node was cut off for too long, whatever else stands still."""

from typing import Final

import structlog
import trio

from lunanexa_core.lifecycle.record import ReplicaRules
from lunanexa_core.southbound.documents import DesiredAssignment
from lunanexa_ports.processes import ManagedProcess

_REPEAT_S: Final = 1.0
_log = structlog.get_logger()


async def end_in_time(process: ManagedProcess, assignment: DesiredAssignment, rules: ReplicaRules) -> None:
    """Returns when nothing of ``process`` is left. It has been asked to go; once its time for that is over, it is
    killed."""
    _log.warning("replica_cut_off", assignment=assignment.assignment, kept_ms=rules.cut_off_keep_ms)
    with trio.move_on_after(rules.stop_timeout_ms / 1_000):
        await process.wait_group_gone()
        return
    while True:
        process.kill()
        with trio.move_on_after(_REPEAT_S):
            await process.wait_group_gone()
            return
