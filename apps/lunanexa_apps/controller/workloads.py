"""Callers' view of their own workloads, over the kernel and, for what has left memory, the ledger."""

from collections.abc import Mapping
from typing import Final

import trio

from lunanexa_apps.controller.dispatch import KernelDispatch
from lunanexa_apps.controller.kernel import Kernel
from lunanexa_apps.controller.ledger import find_receipt, where_it_begins
from lunanexa_core.admission.admit import authorise
from lunanexa_core.admission.queue import places_of
from lunanexa_core.admission.settle import no_workload
from lunanexa_core.canonical import JsonValue
from lunanexa_core.commands import CancelWorkload
from lunanexa_core.contract.envelope import CONTRACT, Capability
from lunanexa_core.contract.workloads import PAGE_MAX, ended_document, live_document
from lunanexa_core.ids import WorkloadId
from lunanexa_core.keys import ApiKey, Role, secret_digest
from lunanexa_core.outcomes import Outcome, Refusal
from lunanexa_core.state import OpenWorkload
from lunanexa_core.terms import LatencyClass
from lunanexa_core.workload import DataClass, LedgerReceipt, Priority, WorkloadState
from lunanexa_ports.errors import PortUnavailable
from lunanexa_ports.workloads import WorkloadPlane

CANCEL_WAIT_S: Final = 2.0
_STORE_DOWN: Final = Refusal(outcome=Outcome.STORE_UNAVAILABLE, message="The ledger can't be read at the moment.")


class KernelWorkloads(WorkloadPlane):
    """Workloads of whoever asks; ``dispatch`` knows what a key can call, and what streams."""

    def __init__(self, kernel: Kernel, dispatch: KernelDispatch) -> None:
        self._kernel = kernel
        self._dispatch = dispatch

    async def workload(self, api_key: str | None, workload: str) -> JsonValue | Refusal:
        key = self._caller(api_key)
        return key if isinstance(key, Refusal) else await self._document(key, WorkloadId(workload))

    async def workloads(self, api_key: str | None, limit: int, cursor: str | None) -> JsonValue | Refusal:
        key = self._caller(api_key)
        if isinstance(key, Refusal):
            return key
        if not 1 <= limit <= PAGE_MAX:
            return _invalid("limit", f"must be from 1 to {PAGE_MAX}")
        if cursor is not None and not (cursor.isascii() and cursor.isdigit() and len(cursor) <= 16):
            return _invalid("cursor", "must be the next_cursor of a page")
        state = self._kernel.state
        # By admission: an order that the end of a workload does not change between two pages.
        own = sorted(
            (
                (state.admitted.get(workload, 0), workload)
                for table in (state.open, state.receipts)
                for workload, known in table.items()
                if known.key == key.key
            ),
            reverse=True,
        )
        left = own if cursor is None else [one for one in own if one[0] < int(cursor)]
        page, places = left[:limit], self._places()
        return {
            "data": [self._at_hand(workload, places) for _, workload in page],
            "next_cursor": str(page[-1][0]) if len(left) > limit else None,
        }

    async def cancel(self, api_key: str | None, workload: str) -> JsonValue | Refusal:
        key = self._caller(api_key)
        if isinstance(key, Refusal):
            return key
        workload_id, state = WorkloadId(workload), self._kernel.state
        if workload_id in state.open:
            try:
                answer = await self._kernel.ask(CancelWorkload(workload_id, key.key), key.key)
            except PortUnavailable:
                return Refusal(outcome=Outcome.STORE_UNAVAILABLE, message="The controller is ending.")
            if isinstance(answer, Refusal):
                return answer
            with trio.move_on_after(CANCEL_WAIT_S):
                while workload_id in self._kernel.state.open and self._kernel.leading:
                    await self._kernel.wait_changed()
        return await self._document(key, workload_id)

    async def capabilities(self, api_key: str | None) -> JsonValue | Refusal:
        key = self._caller(api_key)
        if isinstance(key, Refusal):
            return key
        cards = await self._dispatch.models(key.digest)
        if isinstance(cards, Refusal):
            return cards
        policy = self._kernel.policy
        kinds = ["Ephemeral", "RetainFor"] if policy.retain_ms_max else ["Ephemeral"]
        return {
            "contract": CONTRACT,
            "capabilities": [
                {
                    "capability": capability.value,
                    "dialects": [
                        {
                            "dialect": dialect.value,
                            "models": [card.alias for card in cards if dialect.value in card.dialects],
                        }
                        for dialect in capability.dialects
                    ],
                }
                for capability in Capability
            ],
            "priorities": [known.value for known in Priority if known.band <= key.priority_max.band],
            "latency_classes": [known.value for known in LatencyClass],
            "data_classes": [known.value for known in DataClass if known.rank <= key.data_class_max.rank],
            "retention": {"kinds": kinds, "retain_ms_max": policy.retain_ms_max or None},
            "limits": {
                "concurrency": key.concurrency,
                "requests_per_minute": key.requests_per_minute,
                "tokens_per_minute": key.tokens_per_minute,
                "idempotency_ms": policy.idempotency_ms,
                "workloads_page_max": PAGE_MAX,
            },
        }

    def _caller(self, api_key: str | None) -> ApiKey | Refusal:
        kernel = self._kernel
        return kernel.suspended() or authorise(kernel.state, secret_digest(api_key or ""), Role.INFERENCE, kernel.now())

    async def _document(self, key: ApiKey, workload: WorkloadId) -> JsonValue | Refusal:
        state = self._kernel.state
        known = state.open.get(workload) or state.receipts.get(workload)
        if known is not None:
            return self._at_hand(workload, self._places()) if known.key == key.key else no_workload(workload)
        try:
            record = await find_receipt(self._kernel, workload)
        except PortUnavailable:
            return _STORE_DOWN
        if record is None or record.receipt.key != key.key:
            return no_workload(workload, hint=where_it_begins(self._kernel))
        return ended_document(record)

    def _places(self) -> Mapping[WorkloadId, int]:
        kernel = self._kernel
        return places_of(kernel.observed.queues.values(), kernel.now().mono_ms, kernel.policy.band_age_ms)

    def _at_hand(self, workload: WorkloadId, places: Mapping[WorkloadId, int]) -> JsonValue:
        state = self._kernel.state
        known = state.open.get(workload)
        if known is None:
            return ended_document(LedgerReceipt(state.receipts[workload], state.places[workload]))
        return self._live(known, places.get(workload))

    def _live(self, workload: OpenWorkload, place: int | None) -> JsonValue:
        observed, workload_id = self._kernel.observed, workload.request.workload
        admitted_mono_ms = observed.admitted_mono_ms.get(workload_id)
        if workload_id in observed.held:
            streams = self._dispatch.streaming(workload_id)
            found = WorkloadState.STREAMING if streams else WorkloadState.RUNNING
        elif place is not None:
            found = WorkloadState.QUEUED
        else:
            found = WorkloadState.ADMITTED  # Between two of these, or taken over from an earlier leader.
        age_ms = None if admitted_mono_ms is None else self._kernel.now().mono_ms - admitted_mono_ms
        return live_document(workload, found, place=place, age_ms=age_ms)


def _invalid(param: str, what: str) -> Refusal:
    return Refusal(outcome=Outcome.INVALID_REQUEST, message=f"{param} {what}.", param=param)
