"""One workload for one idempotency key: who comes again gets what became of the first, and nothing runs twice."""

from typing import Final

from lunanexa_core.binding import Ended, bound_key
from lunanexa_core.events import BindingsEnded
from lunanexa_core.ids import TenantId, WorkloadId
from lunanexa_core.outcomes import Outcome, Refusal
from lunanexa_core.policy import Policy
from lunanexa_core.state import State
from lunanexa_core.time import Instant
from lunanexa_core.workload import LedgerReceipt, WorkloadRequest

PARAM: Final = "idempotency_key"
_ASK_AGAIN_MS: Final = 1_000
_SWEEP_MAX: Final = 1_000
"""Keys that one event frees: the next tick frees more."""

MISMATCH: Final = Refusal(
    outcome=Outcome.IDEMPOTENCY_MISMATCH,
    message="This idempotency key was used for another request; use a new one.",
    param=PARAM,
)


def known_request(
    state: State, policy: Policy, tenant: TenantId, request: WorkloadRequest, now: Instant
) -> Ended | Refusal | None:
    """What became of the request that has this idempotency key; ``None``: there is none, or it may be made again."""
    if request.idempotency is None:
        return None
    binding = state.bindings.get(bound_key(tenant, request.idempotency))
    if binding is None:
        if state.bindings_of_tenant.get(tenant, 0) < policy.bindings_max:
            return None
        return Refusal(
            outcome=Outcome.QUOTA_EXCEEDED,
            message=f"{policy.bindings_max} idempotency keys are in use already; each is free again "
            f"{policy.idempotency_ms // 1000} s after its request has ended.",
            param=PARAM,
        )
    in_progress = binding.workload in state.open
    if not in_progress and binding.expired(now.wall_ms, policy.idempotency_ms):
        return None
    if binding.body != request.binding:
        return MISMATCH
    if in_progress:
        # No client shall repeat it by itself: there is one answer, and it goes to who asked first.
        return Refusal(
            outcome=Outcome.WORKLOAD_ACTIVE,
            message=f"The request with this idempotency key is in progress, as workload {binding.workload}.",
            param=PARAM,
            retry_after_ms=_ASK_AGAIN_MS,
        )
    return Ended(workload=binding.workload, kept=binding.answer_kept(now.wall_ms))


def output_gone(workload: WorkloadId, record: LedgerReceipt | None) -> Refusal:
    """The request was served, and its answer is not here to be given again; its receipt is."""
    return Refusal(
        outcome=Outcome.IDEMPOTENCY_OUTPUT_GONE,
        message="The request with this idempotency key has ended, and its answer was not kept.",
        param=PARAM,
        receipt={
            "workload_id": workload,
            "state": None if record is None else record.receipt.state.value,
            "sequence": None if record is None else record.place.sequence,
            "hash": None if record is None else record.place.hash,
            "previous_hash": None if record is None else record.place.previous,
        },
    )


def freed(state: State, policy: Policy, now: Instant) -> list[BindingsEnded]:
    """The end of the keys whose time is over. They stand in the order in which they were bound, or their workloads
    ended, so that only what is over is looked at."""
    found: list[str] = []
    for key, binding in state.bindings.items():
        if now.wall_ms - binding.since_wall_ms < policy.idempotency_ms or len(found) == _SWEEP_MAX:
            break
        if binding.workload not in state.open and binding.expired(now.wall_ms, policy.idempotency_ms):
            found.append(key)
    return [BindingsEnded(tuple(found))] if found else []
