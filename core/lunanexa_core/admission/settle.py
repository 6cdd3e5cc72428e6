"""How a workload ends: exactly one receipt, from its gateway or from the janitor in its place."""

from typing import Final

from lunanexa_core.events import WorkloadAdmitted, WorkloadSettled
from lunanexa_core.ids import KeyId, WorkloadId
from lunanexa_core.observed import Observed
from lunanexa_core.outcomes import Outcome, Refusal
from lunanexa_core.policy import Policy
from lunanexa_core.state import OpenWorkload, State
from lunanexa_core.time import Instant
from lunanexa_core.workload import Receipt, Settlement

CANCELLED: Final = Refusal(outcome=Outcome.CANCELLED_BY_CALLER, message="The caller cancelled this workload.")


def no_workload(workload: str, *, hint: str = "") -> Refusal:
    """There is none of this name, or it is another key's. ``hint`` follows, the same in both cases."""
    message = f"There is no workload {workload[:256]!r}.{hint}"
    return Refusal(outcome=Outcome.NOT_FOUND, message=message, param="workload_id")


def settled(state: State, settlement: Settlement) -> WorkloadSettled:
    """The receipt of an open workload."""
    return settled_as(state.open[settlement.workload], settlement)


def settled_as(workload: OpenWorkload | WorkloadAdmitted, settlement: Settlement) -> WorkloadSettled:
    """The receipt of what was admitted so."""
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
    """Receipts for workloads that no gateway will settle: its session has lapsed, or their deadline has passed
    long ago."""
    return [
        settled(state, given_up(workload_id, detail, observed, now))
        for workload_id, workload in state.open.items()
        if (detail := _why_abandoned(state, observed, policy, workload, now)) is not None
    ]


def _why_abandoned(
    state: State, observed: Observed, policy: Policy, workload: OpenWorkload, now: Instant
) -> str | None:
    """A workload of an earlier leader gets one session lease in which a gateway may present it again."""
    lives = observed.sessions.get(workload.request.session, -1) > now.mono_ms
    if lives and workload.request.workload not in observed.left:
        return "overdue" if _overdue(observed, policy, workload, now) else None
    if workload.epoch == state.epoch:
        return "gateway_lost"
    lease_over = now.mono_ms - observed.began_mono_ms >= policy.session_lease_ms
    return "controller_restarted" if lease_over else None


def _overdue(observed: Observed, policy: Policy, workload: OpenWorkload, now: Instant) -> bool:
    """What an earlier leader admitted has its whole deadline from the beginning of this one. The grace begins anew
    after the kernel stood still: the gateway's settlement may be on its way."""
    request = workload.request
    admitted_mono_ms = observed.admitted_mono_ms.get(request.workload, observed.began_mono_ms)
    due_mono_ms = max(admitted_mono_ms + request.deadline_ms, observed.stood_still_until_mono_ms)
    return now.mono_ms - due_mono_ms >= policy.overdue_ms


def cancelled(
    state: State, observed: Observed, workload_id: WorkloadId, key: KeyId, now: Instant
) -> WorkloadSettled | Refusal | None:
    """What a cancellation decides: the receipt where no gateway is left that would tell how it ended; ``None`` where
    one is, or where the workload has ended."""
    workload = state.open.get(workload_id)
    if workload is None:
        return None
    if workload.key != key:
        return no_workload(workload_id)
    if observed.sessions.get(workload.request.session, -1) > now.mono_ms:
        return None
    return settled(state, given_up(workload_id, "gateway_lost", observed, now, CANCELLED.outcome))


def given_up(
    workload: WorkloadId, detail: str, observed: Observed, now: Instant, outcome: Outcome = Outcome.INTERNAL
) -> Settlement:
    """How a workload ends of which no gateway tells, or of which none can be believed: nothing is booked."""
    admitted_mono_ms = observed.admitted_mono_ms.get(workload, now.mono_ms)
    return Settlement(
        workload=workload,
        outcome=outcome,
        detail=detail,
        total_ms=now.mono_ms - admitted_mono_ms,
    )
