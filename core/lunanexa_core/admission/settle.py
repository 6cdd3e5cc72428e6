"""How a workload ends: exactly one receipt, from its gateway or from the janitor in its place."""

from lunanexa_core.events import WorkloadSettled
from lunanexa_core.ids import WorkloadId
from lunanexa_core.observed import Observed
from lunanexa_core.outcomes import Outcome
from lunanexa_core.policy import Policy
from lunanexa_core.state import State
from lunanexa_core.time import Instant
from lunanexa_core.workload import Receipt, Settlement


def settled(state: State, settlement: Settlement) -> WorkloadSettled:
    """The receipt of an open workload."""
    workload = state.open[settlement.workload]
    request = workload.request
    return WorkloadSettled(
        Receipt(
            workload=request.workload,
            request=request.request,
            tenant=workload.tenant,
            key=workload.key,
            alias=request.alias,
            deployment=workload.deployment,
            dialect=request.dialect,
            settlement=settlement,
        )
    )


def abandoned(state: State, observed: Observed, policy: Policy, now: Instant) -> list[WorkloadSettled]:
    """Receipts for workloads whose gateway is gone. Those of an earlier leader get one session lease in
    which a gateway may present them again."""
    events: list[WorkloadSettled] = []
    for workload_id, workload in state.open.items():
        if observed.sessions.get(workload.request.session, -1) > now.mono_ms:
            continue
        if workload.epoch < state.epoch:
            if now.mono_ms - observed.began_mono_ms < policy.session_lease_ms:
                continue
            detail = "controller_restarted"
        else:
            detail = "gateway_lost"
        events.append(settled(state, _failed(workload_id, detail, observed, now)))
    return events


def _failed(workload: WorkloadId, detail: str, observed: Observed, now: Instant) -> Settlement:
    admitted_mono_ms = observed.admitted_mono_ms.get(workload, now.mono_ms)
    return Settlement(
        workload=workload,
        outcome=Outcome.INTERNAL,
        detail=detail,
        total_ms=now.mono_ms - admitted_mono_ms,
    )
