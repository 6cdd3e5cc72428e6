"""What the books say of grants: none went to a start id that was not to be granted any more."""

from collections.abc import Iterable
from typing import Final

from lunanexa_core.events import Event, Liveness, LivenessChanged, ReplicaChanged, WorkloadAdmitted, WorkloadSettled
from lunanexa_core.ids import AssignmentId, NodeId, StartId, WorkloadId
from lunanexa_core.southbound.heartbeat import ReplicaReport, ReplicaState

_NEVER: Final = 1 << 62


class _Grantable:
    """From which row to which each start id may be granted requests."""

    def __init__(self) -> None:
        self._over: dict[StartId, list[tuple[int, int]]] = {}
        self._since: dict[StartId, int] = {}
        self._current: dict[AssignmentId, StartId] = {}
        self._on: dict[StartId, NodeId] = {}

    def report(self, at: int, node: NodeId, report: ReplicaReport) -> None:
        serves = report.state is ReplicaState.READY
        before = self._current.get(report.assignment)
        if before is not None and not (serves and before == report.start):
            self._end(before, at)
        if serves:
            self._current[report.assignment], self._on[report.start] = report.start, node
            self._since.setdefault(report.start, at)
        else:
            self._current.pop(report.assignment, None)

    def judge(self, at: int, node: NodeId, liveness: Liveness) -> None:
        for start in [start for start in self._current.values() if self._on[start] == node]:
            if liveness is Liveness.LOST:
                self._end(start, at)
            elif liveness is Liveness.READY:
                self._since.setdefault(start, at)

    def at_some_time(self, start: StartId, begin: int, end: int) -> bool:
        times = [*self._over.get(start, ()), *([(self._since[start], _NEVER)] if start in self._since else [])]
        return any(since <= end and until >= begin for since, until in times)

    def _end(self, start: StartId, at: int) -> None:
        if start in self._since:
            self._over.setdefault(start, []).append((self._since.pop(start), at))


def grants_to_old_starts(events: Iterable[tuple[int, Event]]) -> list[WorkloadId]:
    """The requests that went to a start id which at no time from their admission to their receipt was to be granted:
    it was not reported ready yet, was reported as something else by then, or its machine was lost and not heard
    since."""
    grantable = _Grantable()
    admitted: dict[WorkloadId, int] = {}
    settled: list[tuple[int, WorkloadSettled]] = []
    for at, event in events:
        match event:
            case ReplicaChanged(node=node, report=report):
                grantable.report(at, node, report)
            case LivenessChanged(node=node, liveness=liveness):
                grantable.judge(at, node, liveness)
            case WorkloadAdmitted(request=request):
                admitted[request.workload] = at
            case WorkloadSettled():
                settled.append((at, event))
            case _:
                pass
    return [
        event.receipt.workload
        for at, event in settled
        for attempt in event.receipt.settlement.attempts
        if not grantable.at_some_time(attempt.start, admitted[event.receipt.workload], at)
    ]
