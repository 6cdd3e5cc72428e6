"""Single requests as operators see them: in progress from the kernel's tables, ended from the ledger."""

from collections.abc import Mapping

from lunanexa_apps.codec import unstructure
from lunanexa_apps.controller.authority import find_operator
from lunanexa_apps.controller.kernel import Kernel
from lunanexa_apps.controller.ledger import find_receipt, where_it_begins
from lunanexa_apps.controller.status import receipt_document
from lunanexa_core.admission.queue import places_of
from lunanexa_core.canonical import JsonValue
from lunanexa_core.contract.insight import RequestDocument
from lunanexa_core.ids import WorkloadId
from lunanexa_core.keys import Role
from lunanexa_core.outcomes import Outcome, Refusal
from lunanexa_core.state import OpenWorkload
from lunanexa_core.workload import WorkloadState
from lunanexa_ports.errors import PortUnavailable
from lunanexa_ports.insight import Insight

REQUESTS_MAX = 500


class KernelInsight(Insight):
    """Reads what is committed; asks nothing of the kernel."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel

    async def requests(self, token: str | None, limit: int) -> JsonValue | Refusal:
        operator = find_operator(self._kernel, token, Role.OPERATOR, Role.AUDITOR)
        if isinstance(operator, Refusal):
            return operator
        if not 1 <= limit <= REQUESTS_MAX:
            return Refusal(
                outcome=Outcome.INVALID_REQUEST, message=f"limit must be 1 to {REQUESTS_MAX}.", param="limit"
            )
        state = self._kernel.state
        underway = list(state.open.values())[-limit:][::-1]
        ended = list(state.receipts.values())[-limit:][::-1]
        places = self._places()
        return {
            "open": [self._underway(workload, places) for workload in underway],
            "ended": [receipt_document(receipt) for receipt in ended],
        }

    async def explain(self, token: str | None, workload: str) -> JsonValue | Refusal:
        operator = find_operator(self._kernel, token, Role.OPERATOR, Role.AUDITOR)
        if isinstance(operator, Refusal):
            return operator
        name = WorkloadId(workload)
        underway = self._kernel.state.open.get(name)
        try:
            record = None if underway is not None else await find_receipt(self._kernel, name)
        except PortUnavailable:
            return Refusal(outcome=Outcome.STORE_UNAVAILABLE, message="The store can't be read at the moment.")
        if underway is None and record is None:
            hint = where_it_begins(self._kernel)
            return Refusal(outcome=Outcome.NOT_FOUND, message=f"There is no request {workload[:256]!r}.{hint}")
        decision = self._kernel.observed.decisions.get(name)
        return {
            "open": None if underway is None else self._underway(underway, self._places()),
            "ended": None if record is None else receipt_document(record.receipt),
            "decision": unstructure(decision),
        }

    def _places(self) -> Mapping[WorkloadId, int]:
        kernel = self._kernel
        return places_of(kernel.observed.queues.values(), kernel.now().mono_ms, kernel.policy.band_age_ms)

    def _underway(self, workload: OpenWorkload, places: Mapping[WorkloadId, int]) -> JsonValue:
        request, now = workload.request, self._kernel.now()
        place = places.get(request.workload)
        admitted_mono_ms = self._kernel.observed.admitted_mono_ms.get(request.workload)
        return unstructure(
            RequestDocument(
                workload=request.workload,
                request=request.request,
                tenant=workload.tenant,
                key=workload.key,
                alias=request.alias,
                deployment=workload.deployment,
                dialect=request.dialect,
                stream=request.stream,
                priority=request.priority,
                state=WorkloadState.RUNNING if place is None else WorkloadState.QUEUED,
                place=place,
                age_ms=None if admitted_mono_ms is None else now.mono_ms - admitted_mono_ms,
                deadline_ms=request.deadline_ms,
                body_bytes=request.body_bytes,
                reserved_tokens=request.reserved_tokens,
            )
        )
