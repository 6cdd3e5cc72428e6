"""What is said of one workload that does not run, or ran and failed."""

from typing import Any, Final

from lunanexa_core.contract.frames import RESUME_GONE, JsonObject
from lunanexa_core.ids import RequestId, WorkloadId
from lunanexa_core.outcomes import Outcome, Refusal, error_document

INTERNAL: Final = Refusal(outcome=Outcome.INTERNAL, message="An internal error. The log of the service has it.")
DRAINING: Final = Refusal(
    outcome=Outcome.DRAINING, message="The service is stopping and takes no new workloads on this connection."
)
TOO_MANY: Final = Refusal(
    outcome=Outcome.RATE_LIMITED, message="Too many workloads are in progress on this connection."
)


def invalid(message: str, param: str | None) -> Refusal:
    """A frame that is wrong about one workload."""
    return Refusal(outcome=Outcome.INVALID_REQUEST, message=message, param=param)


IN_USE: Final = invalid("id: names a workload that is in progress on this connection", "id")


def error_of(
    refusal: Refusal,
    request: RequestId,
    workload: WorkloadId | None = None,
    receipt: JsonObject | str | None = None,
) -> JsonObject:
    """The one error shape, and beside it what HTTP says in headers."""
    error: Any = error_document(refusal, request)["error"]
    beside = {"retry_after_ms": refusal.wait_ms, "workload_id": workload, "receipt": receipt}
    return {**error, **{name: value for name, value in beside.items() if value is not None}}


def resume_gone(workload: WorkloadId | None, request: RequestId) -> JsonObject:
    """A code of this protocol alone, with the address of the receipt where a workload is known."""
    refusal = Refusal(
        outcome=Outcome.INVALID_REQUEST,
        message="What followed is not kept here; the receipt tells how the workload ended.",
        param="token",
    )
    address = None if workload is None else f"/v1/workloads/{workload}"
    return {**error_of(refusal, request, workload, address), "code": RESUME_GONE}
