"""A heartbeat against what is known: refused, or turned into events where a state changes."""

from typing import Final

import attrs

from lunanexa_core.commands import ReportHeartbeat
from lunanexa_core.events import Event, Liveness, LivenessChanged, NodeBooted, ReplicaChanged, ReplicasGone
from lunanexa_core.identity.checks import NOT_ENROLLED
from lunanexa_core.ids import AssignmentId, NodeId
from lunanexa_core.nodes.directive import RETIRED
from lunanexa_core.observed import Observed
from lunanexa_core.outcomes import Outcome, Refusal
from lunanexa_core.southbound.heartbeat import EngineReadings, Heartbeat, ReplicaReport, ReplicaState
from lunanexa_core.state import State

REPLICAS_MAX = 256
"""Reports that one heartbeat may carry."""
AHEAD_MAX: Final = 1 << 20
"""By how much a node may be ahead of what the store knows, which a recovery takes for rows that were lost. Who tells of
more lies: above that there would soon be no number that a document can hold."""


def journaled(report: ReplicaReport) -> ReplicaReport:
    """A report as an event keeps it: without readings, and without log lines, which may hold payloads."""
    exit_reason = None if report.exit is None else attrs.evolve(report.exit, last_lines=())
    return attrs.evolve(report, readings=EngineReadings(), exit=exit_reason)


def heartbeat_events(state: State, observed: Observed, command: ReportHeartbeat) -> list[Event] | Refusal:
    """What a heartbeat changes. Its node is known and its signature was verified."""
    heartbeat = command.heartbeat
    node = state.nodes[heartbeat.node]
    if node.retired:
        return RETIRED
    if node.public_key is None or node.public_key != command.public_key:
        return NOT_ENROLLED  # Also where another machine was let in by this name since the signature was verified.
    reading = observed.nodes.get(heartbeat.node)
    if reading is not None and reading.boot == heartbeat.boot and heartbeat.sequence <= reading.sequence:
        return Refusal(outcome=Outcome.STALE_GENERATION, message="The heartbeat is not newer than the last one.")
    if heartbeat.boot in node.past_boots:
        return Refusal(outcome=Outcome.STALE_GENERATION, message="The heartbeat is of a superseded boot.")
    if len(heartbeat.replicas) + len(heartbeat.unstarted) > REPLICAS_MAX:
        return Refusal(outcome=Outcome.INVALID_REQUEST, message=f"More than {REPLICAS_MAX} replicas in one heartbeat.")
    field = _too_far_ahead(state, heartbeat)
    if field is not None:
        message = f"{field} is more than {AHEAD_MAX} ahead of the store."
        return Refusal(outcome=Outcome.INVALID_REQUEST, message=message, param=field)
    events: list[Event] = []
    if node.boot != heartbeat.boot:
        events.append(NodeBooted(heartbeat.node, heartbeat.boot))
    if node.liveness is not Liveness.READY:
        events.append(LivenessChanged(heartbeat.node, Liveness.READY))
    events.extend(_replica_events(state, heartbeat))
    events.extend(_gone(state, heartbeat))
    return events


def _too_far_ahead(state: State, heartbeat: Heartbeat) -> str | None:
    """The first member that no store can have lost."""
    trust_version = 0 if state.trust is None else state.trust.version
    if heartbeat.epoch > max(state.epoch, state.rebased) + AHEAD_MAX:
        return "epoch"
    if heartbeat.generation > state.nodes[heartbeat.node].generation + AHEAD_MAX:
        return "generation"
    if (heartbeat.trust_version or 0) > trust_version + AHEAD_MAX:
        return "trust_version"
    for place, report in enumerate(heartbeat.replicas):
        assignment = state.assignments.get(report.assignment)
        if assignment is not None and report.generation > assignment.generation + AHEAD_MAX:
            return f"replicas[{place}].generation"
    return None


def _gone(state: State, heartbeat: Heartbeat) -> list[Event]:
    """What was taken from the node, which knows of it and has it no more."""
    leaving = [name for name, one in state.leaving.items() if one.node == heartbeat.node]
    if not leaving:
        return []
    there = {report.assignment for report in heartbeat.replicas if report.state is not ReplicaState.ABSENT}
    there |= {one.assignment for one in heartbeat.unstarted}
    gone = [name for name in leaving if name not in there and heartbeat.generation >= state.leaving[name].generation]
    return [ReplicasGone(heartbeat.node, tuple(sorted(gone)))] if gone else []


def reports_that_count(state: State, heartbeat: Heartbeat) -> list[ReplicaReport]:
    """The first report of each replica that the node may speak of: of what was assigned to it, and of what it has
    though nobody was assigned it."""
    counting: dict[AssignmentId, ReplicaReport] = {}
    for report in heartbeat.replicas:
        owner = state.replica_node.get(report.assignment)
        assignment = state.assignments.get(report.assignment)
        assigned_to: NodeId | None = owner if assignment is None else assignment.node
        unknown_and_gone = assigned_to is None and report.state is ReplicaState.ABSENT
        if assigned_to in (None, heartbeat.node) and not unknown_and_gone:
            counting.setdefault(report.assignment, report)
    return list(counting.values())


def _replica_events(state: State, heartbeat: Heartbeat) -> list[Event]:
    events: list[Event] = []
    seen = set()
    for report in reports_that_count(state, heartbeat):
        seen.add(report.assignment)
        kept = journaled(report)
        if state.replicas.get(report.assignment) != kept:
            events.append(ReplicaChanged(heartbeat.node, kept))
    # Each heartbeat passes over the replicas of the whole fleet here: a comprehension, for it takes half of a loop.
    for assignment_id in [name for name, node in state.replica_node.items() if node == heartbeat.node]:
        if assignment_id not in seen:
            gone = attrs.evolve(state.replicas[assignment_id], state=ReplicaState.ABSENT)
            events.append(ReplicaChanged(heartbeat.node, gone))
    return events
