"""Turns the inputs of a grant into its record."""

from lunanexa_core.admission.queue import Waiter
from lunanexa_core.ids import DeploymentId, StartId
from lunanexa_core.observed import Observed
from lunanexa_core.policy import Policy
from lunanexa_core.routing.decision import ALREADY_FAILED, NO_FREE_SLOT, Candidate, RoutingDecision
from lunanexa_core.routing.rank import free_share, free_slots, rendezvous
from lunanexa_core.routing.routable import replicas_of, why_not_routable
from lunanexa_core.southbound.heartbeat import ReplicaReport
from lunanexa_core.state import State
from lunanexa_core.time import Instant


def explain_grant(
    state: State,
    observed: Observed,
    policy: Policy,
    deployment: DeploymentId,
    waiter: Waiter,
    chosen: StartId,
    now: Instant,
) -> RoutingDecision:
    """The record of the grant of ``chosen``, before its slot is taken."""
    return RoutingDecision(
        workload=waiter.workload,
        deployment=deployment,
        wall_ms=now.wall_ms,
        queued_ms=now.mono_ms - waiter.arrived_mono_ms,
        waiting=len(observed.queue(deployment)),
        band=waiter.band_at(now.mono_ms, policy.band_age_ms),
        chosen=chosen,
        candidates=tuple(
            _candidate(state, observed, policy, waiter, report, now) for report in replicas_of(state, deployment)
        ),
    )


def _candidate(
    state: State, observed: Observed, policy: Policy, waiter: Waiter, report: ReplicaReport, now: Instant
) -> Candidate:
    not_routable = why_not_routable(state, observed, policy, report, now)
    free = free_slots(observed, policy, report, now)
    if not_routable is not None:
        refused: str | None = not_routable.value
    elif report.start in waiter.excluded:
        refused = ALREADY_FAILED
    else:
        refused = None if free else NO_FREE_SLOT
    newest, read_ms = observed.replicas.get(report.assignment), observed.read_mono_ms.get(report.assignment)
    return Candidate(
        assignment=report.assignment,
        node=state.replica_node.get(report.assignment),
        start=report.start,
        refused=refused,
        slots=report.slots,
        slots_held=observed.slots_held.get(report.start, 0),
        free_slots=free,
        free_share=free_share(observed, policy, report, now),
        running=None if newest is None or newest.start != report.start else newest.readings.running,
        reading_age_ms=None if read_ms is None else now.mono_ms - read_ms,
        tie_break=rendezvous(waiter.workload, report.start) >> 11,
    )
