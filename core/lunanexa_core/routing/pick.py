"""Which replica gets a waiting request: grants while slots are free, in queue order."""

import attrs

from lunanexa_core.admission.queue import Waiter
from lunanexa_core.ids import DeploymentId, WorkloadId
from lunanexa_core.observed import Held, Observed
from lunanexa_core.outcomes import Outcome, Refusal
from lunanexa_core.policy import Policy
from lunanexa_core.routing.explain import explain_grant
from lunanexa_core.routing.rank import free_share, free_slots, rendezvous
from lunanexa_core.routing.routable import routable_replicas
from lunanexa_core.southbound.heartbeat import ReplicaReport
from lunanexa_core.state import State
from lunanexa_core.time import Instant


@attrs.frozen(kw_only=True)
class Granted:
    """A workload may go to this replica."""

    workload: WorkloadId
    deployment: DeploymentId
    report: ReplicaReport
    queued_ms: int


@attrs.frozen
class Denied:
    """A waiter's wait is over without a grant."""

    workload: WorkloadId
    refusal: Refusal


def pick(
    observed: Observed, policy: Policy, waiter: Waiter, replicas: list[ReplicaReport], now: Instant
) -> ReplicaReport | None:
    """The best replica with a free slot on which this waiter has not failed yet."""
    candidates = [
        report
        for report in replicas
        if report.start not in waiter.excluded and free_slots(observed, policy, report, now) > 0
    ]
    if not candidates:
        return None
    return max(
        candidates,
        key=lambda report: (free_share(observed, policy, report, now), rendezvous(waiter.workload, report.start)),
    )


def grant_waiting(state: State, observed: Observed, policy: Policy, now: Instant) -> list[Granted]:
    """Grants all that can be granted now, takes their slots and their places. Changes ``observed`` alone."""
    granted: list[Granted] = []
    for deployment, queue in observed.queues.items():
        if not queue:
            continue
        replicas = routable_replicas(state, observed, policy, deployment, now)
        if not any(free_slots(observed, policy, report, now) for report in replicas):
            continue
        for waiter in queue.ordered(now.mono_ms, policy.band_age_ms):
            report = pick(observed, policy, waiter, replicas, now)
            if report is None:
                # A waiter that may not use the free replica does not keep others from it.
                continue
            observed.decided(explain_grant(state, observed, policy, deployment, waiter, report.start, now))
            queue.remove(waiter.workload)
            observed.hold(waiter.workload, _held(state, report, now))
            granted.append(
                Granted(
                    workload=waiter.workload,
                    deployment=deployment,
                    report=report,
                    queued_ms=now.mono_ms - waiter.arrived_mono_ms,
                )
            )
    return granted


def _held(state: State, report: ReplicaReport, now: Instant) -> Held:
    assignment = state.assignments[report.assignment]
    return Held(
        start=report.start,
        deployment=assignment.deployment,
        node=assignment.node,
        by_door=state.nodes[assignment.node].data_address is not None,
        granted_mono_ms=now.mono_ms,
    )


def deny_waiting(state: State, observed: Observed, policy: Policy, now: Instant) -> list[Denied]:
    """Ends the wait of those whose time is over or who have no replica left to wait for."""
    denied: list[Denied] = []
    for deployment, queue in observed.queues.items():
        if not queue:
            continue
        replicas = routable_replicas(state, observed, policy, deployment, now)
        for waiter in queue.ordered(now.mono_ms, policy.band_age_ms):
            refusal = _why_give_up(waiter, replicas, policy, now)
            if refusal is not None:
                queue.remove(waiter.workload)
                denied.append(Denied(waiter.workload, refusal))
    return denied


def _why_give_up(waiter: Waiter, replicas: list[ReplicaReport], policy: Policy, now: Instant) -> Refusal | None:
    if now.mono_ms >= waiter.deadline_mono_ms:
        return Refusal(outcome=Outcome.DEADLINE_EXCEEDED, message="The deadline passed while the request waited.")
    if waiter.excluded and all(report.start in waiter.excluded for report in replicas):
        return Refusal(outcome=Outcome.ENGINE_FAILED, message="The engine failed and no other replica can serve.")
    waited_ms = now.mono_ms - waiter.arrived_mono_ms
    if waited_ms < policy.queue_wait_ms:
        return None
    if replicas:
        return Refusal(outcome=Outcome.QUEUE_FULL, message=f"No slot came free within {policy.queue_wait_ms} ms.")
    return Refusal(outcome=Outcome.NO_CAPACITY, message="No replica of this model is ready.")
