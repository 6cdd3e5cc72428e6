"""What a node does next so that its document becomes true. Level-triggered: the same question may be asked
at any time, and asking twice does no harm.

A newer generation of an assignment is no action of its own: the old replica is stopped, and the new one
starts once the old is absent.
"""

import enum
from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

import attrs

from lunanexa_core.ids import AssignmentId, StartId, is_identifier
from lunanexa_core.lifecycle.permission import judge
from lunanexa_core.lifecycle.record import Ending, ReplicaRecord
from lunanexa_core.nodes.policy import NO_RULES, NodePolicy, PolicyRefusal
from lunanexa_core.southbound.documents import DesiredAssignment, DesiredState, Directive
from lunanexa_core.southbound.heartbeat import ReplicaState

MAX_ASSIGNMENTS: Final = 256


class StopCause(enum.Enum):
    """Why a replica is stopped."""

    NOT_DESIRED = "not_desired"
    REPLACED = "replaced"
    DIRECTIVE = "directive"
    POLICY = "policy"
    """The machine's owner does not let it run."""
    SHUTDOWN = "shutdown"


class AssignmentRefusal(enum.Enum):
    """Why one assignment of an accepted document is not followed; the others are."""

    BAD_IDENTIFIER = "bad_identifier"
    DUPLICATE = "duplicate"
    TOO_MANY = "too_many"
    ROLLED_BACK = "rolled_back"
    CONTENT_CHANGED = "content_changed"


@attrs.frozen
class StopStray:
    """Ends what runs under a recorded start that no replica knows: ours, and unwanted."""

    start: StartId


@attrs.frozen
class StopReplica:
    """Drains and stops one replica."""

    assignment: AssignmentId
    cause: StopCause


@attrs.frozen
class RefuseAssignment:
    """Reports an assignment that is not followed. Its replica, if there is one, goes on as it is, unless the owner's
    policy forbids that too."""

    assignment: AssignmentId
    refusal: AssignmentRefusal | PolicyRefusal


@attrs.frozen
class StartReplica:
    """Makes a replica where there is none."""

    assignment: DesiredAssignment


NodeAction: TypeAlias = StopStray | StopReplica | RefuseAssignment | StartReplica


def reconcile(
    desired: DesiredState | None,
    records: Mapping[AssignmentId, ReplicaRecord],
    recorded: Sequence[StartId],
    *,
    policy: NodePolicy = NO_RULES,
    shutdown: bool = False,
) -> tuple[NodeAction, ...]:
    """The next actions: strays and stops first, then refusals, then starts. ``desired`` is ``None`` before
    the first document: what was found goes on, as far as ``policy`` lets it. Assignments are kept in order, so that
    equal worlds act alike."""
    known = {record.start for record in records.values()}
    strays = [StopStray(start) for start in sorted(recorded) if start not in known]
    if shutdown:
        return (*strays, *_stop_all(records, StopCause.SHUTDOWN))
    if desired is not None and desired.directive in (Directive.DRAIN, Directive.RETIRE):
        return (*strays, *_stop_all(records, StopCause.DIRECTIVE))
    wanted, refusals = _acceptable(() if desired is None else desired.assignments, records)
    forbidden, refused = judge(policy, wanted, records)
    for name, refusal in refused.items():
        refusals.append(RefuseAssignment(name, refusal))
        del wanted[name]
    named = set(records) if desired is None else {assignment.assignment for assignment in desired.assignments}
    stops: list[StopReplica] = []
    for name, record in sorted(records.items()):
        if name in forbidden:
            stops.extend(_stop(record, StopCause.POLICY))
        elif name not in named:
            stops.extend(_stop(record, StopCause.NOT_DESIRED))
        elif name in wanted and wanted[name].generation > record.assignment.generation:
            stops.extend(_stop(record, StopCause.REPLACED))
    starts = [StartReplica(assignment) for name, assignment in sorted(wanted.items()) if name not in records]
    return (*strays, *stops, *refusals, *starts)


def _acceptable(
    assignments: Sequence[DesiredAssignment], records: Mapping[AssignmentId, ReplicaRecord]
) -> tuple[dict[AssignmentId, DesiredAssignment], list[RefuseAssignment]]:
    wanted: dict[AssignmentId, DesiredAssignment] = {}
    refusals: list[RefuseAssignment] = []
    for assignment in assignments:
        refusal = _refusal(assignment, wanted, records.get(assignment.assignment))
        if refusal is None:
            wanted[assignment.assignment] = assignment
        else:
            refusals.append(RefuseAssignment(assignment.assignment, refusal))
    return wanted, refusals


def _refusal(
    assignment: DesiredAssignment,
    wanted: Mapping[AssignmentId, DesiredAssignment],
    record: ReplicaRecord | None,
) -> AssignmentRefusal | None:
    if not is_identifier(assignment.assignment):
        return AssignmentRefusal.BAD_IDENTIFIER
    if assignment.assignment in wanted:
        return AssignmentRefusal.DUPLICATE
    if len(wanted) >= MAX_ASSIGNMENTS:
        return AssignmentRefusal.TOO_MANY
    if record is None or assignment.generation > record.assignment.generation:
        return None
    if assignment.generation < record.assignment.generation:
        return AssignmentRefusal.ROLLED_BACK
    return None if assignment == record.assignment else AssignmentRefusal.CONTENT_CHANGED


def _stop(record: ReplicaRecord, cause: StopCause) -> list[StopReplica]:
    ending = record.ending is Ending.ABSENT or record.state is ReplicaState.ABSENT
    return [] if ending else [StopReplica(record.assignment.assignment, cause)]


def _stop_all(records: Mapping[AssignmentId, ReplicaRecord], cause: StopCause) -> list[StopReplica]:
    return [stop for _, record in sorted(records.items()) for stop in _stop(record, cause)]
