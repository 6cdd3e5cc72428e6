"""``absorb``: what a command that took effect changes in ``observed``, after its events are durable."""

from lunanexa_core import commands
from lunanexa_core.admission.queue import Waiter
from lunanexa_core.admission.wait import measured
from lunanexa_core.binding import Ended
from lunanexa_core.commands import Command
from lunanexa_core.events import DeploymentApplied, DeploymentRemoved, Event, ReplicasGone, WorkloadSettled
from lunanexa_core.ids import NodeId
from lunanexa_core.kernel.decide import Decision
from lunanexa_core.nodes.budget import whole
from lunanexa_core.nodes.heartbeat import reports_that_count
from lunanexa_core.observed import NodeReading, Observed
from lunanexa_core.outcomes import Refusal
from lunanexa_core.placement.declined import note_declined
from lunanexa_core.policy import Policy
from lunanexa_core.recovery import DOCUMENT_WANTED
from lunanexa_core.southbound.heartbeat import Heartbeat
from lunanexa_core.state import State
from lunanexa_core.time import Instant
from lunanexa_core.workload import WorkloadRequest


def absorb(
    state: State, observed: Observed, policy: Policy, command: Command, decision: Decision, now: Instant
) -> None:
    """Changes ``observed`` by one decided command; ``state`` holds its events already."""
    for event in decision.events:
        _forget_ended(observed, event, now)
    if isinstance(decision.answer, Refusal | Ended):
        if isinstance(command, commands.ReportHeartbeat) and decision.answer == DOCUMENT_WANTED:
            observed.claiming.add(command.heartbeat.node)
        return
    match command:
        case commands.OpenSession(session=session):
            observed.sessions[session] = now.mono_ms + policy.session_lease_ms
        case commands.AdmitWorkload(request=request):
            _enqueue(state, observed, request, now)
        case commands.ReportHeartbeat(heartbeat=heartbeat):
            _hear(state, observed, policy, heartbeat, decision, now)
        case commands.ShowDocument(node=node, epoch=epoch, generation=generation):
            observed.shown[node] = max(observed.shown.get(node, (0, 0)), (epoch, generation))
        case commands.FailAttempt():
            _enqueue_again(state, observed, command, now)
        case commands.BeginDrain():
            observed.draining = True
        case commands.Tick():
            observed.drop_outdated(policy, now)
            observed.keep_only(
                assignments=state.assignments.keys() | state.replicas.keys(), deployments=state.deployments.keys()
            )
        case _:
            pass


def _forget_ended(observed: Observed, event: Event, now: Instant) -> None:
    if isinstance(event, DeploymentRemoved):
        # Another of this name counts its generations from the beginning.
        observed.declined = frozenset(one for one in observed.declined if one.deployment != event.deployment)
    if isinstance(event, WorkloadSettled):
        held = observed.held.get(event.receipt.workload)
        if held is not None:
            measured(observed, held.deployment, now.mono_ms - held.granted_mono_ms)
            observed.released_mono_ms[held.start] = now.mono_ms
        observed.forget(event.receipt.workload)


def _enqueue(state: State, observed: Observed, request: WorkloadRequest, now: Instant) -> None:
    observed.admissions += 1
    observed.admitted_mono_ms[request.workload] = now.mono_ms
    observed.queue(state.open[request.workload].deployment).offer(
        Waiter(
            workload=request.workload,
            band=request.priority.band,
            arrived_mono_ms=now.mono_ms,
            deadline_mono_ms=now.mono_ms + request.deadline_ms,
            order=observed.admissions,
        )
    )


def _enqueue_again(state: State, observed: Observed, command: commands.FailAttempt, now: Instant) -> None:
    """Back into the queue with its old arrival time, which puts it before those who came after it."""
    workload = state.open.get(command.workload)
    held = observed.release(command.workload)
    if workload is None or held is None:
        return
    observed.released_mono_ms[held.start] = now.mono_ms
    arrived_mono_ms = observed.admitted_mono_ms.get(command.workload, now.mono_ms)
    observed.queue(workload.deployment).offer(
        Waiter(
            workload=command.workload,
            band=workload.request.priority.band,
            arrived_mono_ms=arrived_mono_ms,
            deadline_mono_ms=arrived_mono_ms + workload.request.deadline_ms,
            order=0,
            excluded=frozenset({held.start, command.attempt.start}),
        )
    )


def _leased(before: NodeReading | None, policy: Policy, heartbeat: Heartbeat, now: Instant) -> bool | None:
    """What a heartbeat says may be long ago: where we answered the one before it ourselves, we know better."""
    if before is None or before.boot != heartbeat.boot:
        return heartbeat.leased
    return heartbeat.leased and before.may_be_leased(now.mono_ms, policy.node_lease_ms)


def _charge(observed: Observed, policy: Policy, node: NodeId, rows: int, now: Instant) -> None:
    budget = observed.budgets.get(node, whole(policy, now)).at(policy, now).less(rows)
    if rows or node in observed.budgets:
        observed.budgets[node] = budget


def _hear(
    state: State, observed: Observed, policy: Policy, heartbeat: Heartbeat, decision: Decision, now: Instant
) -> None:
    _charge(observed, policy, heartbeat.node, len(decision.events), now)
    observed.claiming.discard(heartbeat.node)
    renewed = (one.deployment.spec.deployment for one in decision.events if isinstance(one, DeploymentApplied))
    observed.renewed.update((state.rebased, heartbeat.node, name) for name in renewed)
    observed.nodes[heartbeat.node] = NodeReading(
        boot=heartbeat.boot,
        sequence=heartbeat.sequence,
        arrived_mono_ms=now.mono_ms,
        heartbeat=heartbeat,
        leased=_leased(observed.nodes.get(heartbeat.node), policy, heartbeat, now),
        withheld=decision.withheld,
    )
    note_declined(state, observed, heartbeat, gone=any(isinstance(one, ReplicasGone) for one in decision.events))
    for report in reports_that_count(state, heartbeat):
        observed.replicas[report.assignment] = report
        observed.read_mono_ms[report.assignment] = now.mono_ms - report.readings.age_ms
