"""What callers read of their own workloads, and of what they may ask for, as values and as documents.

The published schemas are generated from the values. A workload's members are those of the response document
(:mod:`lunanexa_core.contract.response`) but ``output``, which is told once, and what is known of it while it lives.
"""

from typing import Final

import attrs

from lunanexa_core.canonical import JsonValue
from lunanexa_core.contract.data_plane import Error
from lunanexa_core.contract.response import (
    LedgerPlaceDocument,
    ModelDocument,
    RuntimeDocument,
    TimingDocument,
    UsageDocument,
    receipt_members,
)
from lunanexa_core.ids import Alias, RequestId, WorkloadId
from lunanexa_core.outcomes import Outcome, Refusal, error_document
from lunanexa_core.state import OpenWorkload
from lunanexa_core.terms import LatencyClass
from lunanexa_core.workload import DataClass, Dialect, LedgerReceipt, Priority, Receipt, WorkloadState

PAGE_MAX: Final = 500


@attrs.frozen(kw_only=True)
class WorkloadDocument:
    """One workload. ``queue_position``: waiters before it, 0 is next. ``age_ms``: since it was admitted.
    ``deadline_ms``: what is left of its budget. Each is null where it does not wait, has ended, or was taken over from
    an earlier controller process; ``usage``, ``timing`` and ``receipt`` are null until it has ended."""

    workload_id: WorkloadId
    request_id: RequestId
    state: WorkloadState
    queue_position: int | None
    age_ms: int | None
    deadline_ms: int | None
    error: Error | None
    usage: UsageDocument | None
    timing: TimingDocument | None
    model: ModelDocument
    runtime: RuntimeDocument
    receipt: LedgerPlaceDocument | None


@attrs.frozen(kw_only=True)
class WorkloadPage:
    """Own workloads, newest first. ``next_cursor`` is null on the last page."""

    data: tuple[WorkloadDocument, ...]
    next_cursor: str | None


@attrs.frozen(kw_only=True)
class ServedDialect:
    """A dialect, and the models that this key can call in it now."""

    dialect: Dialect
    models: tuple[Alias, ...]


@attrs.frozen(kw_only=True)
class ServedCapability:
    """``dialects`` empty: understood, and served by no driver."""

    capability: str
    dialects: tuple[ServedDialect, ...]


@attrs.frozen(kw_only=True)
class RetentionOffer:
    """``retain_ms_max``: the longest ``RetainFor``, null where that is not on offer."""

    kinds: tuple[str, ...]
    retain_ms_max: int | None


@attrs.frozen(kw_only=True)
class KeyLimits:
    """Of this key; null: not limited. ``idempotency_ms``: how long an idempotency key stays bound."""

    concurrency: int | None
    requests_per_minute: int | None
    tokens_per_minute: int | None
    idempotency_ms: int
    workloads_page_max: int


@attrs.frozen(kw_only=True)
class CapabilitiesDocument:
    """What this key may ask for, now and here."""

    contract: str
    capabilities: tuple[ServedCapability, ...]
    priorities: tuple[Priority, ...]
    latency_classes: tuple[LatencyClass, ...]
    data_classes: tuple[DataClass, ...]
    retention: RetentionOffer
    limits: KeyLimits


def live_document(
    workload: OpenWorkload, state: WorkloadState, *, place: int | None, age_ms: int | None
) -> dict[str, JsonValue]:
    """A workload without a receipt."""
    request = workload.request
    return {
        "workload_id": request.workload,
        "request_id": request.request,
        "state": state.value,
        "queue_position": place,
        "age_ms": age_ms,
        "deadline_ms": None if age_ms is None else max(0, request.deadline_ms - age_ms),
        "error": None,
        **receipt_members(None),
        "model": {"alias": request.alias, "digest": None},
        "runtime": {"dialect": request.dialect.value, "digest": None},
    }


def ended_document(record: LedgerReceipt) -> dict[str, JsonValue]:
    """A workload by its receipt."""
    receipt = record.receipt
    error = failure(receipt)
    return {
        "workload_id": receipt.workload,
        "request_id": receipt.request,
        "state": receipt.state.value,
        "queue_position": None,
        "age_ms": None,
        "deadline_ms": None,
        "error": None if error is None else error_document(error, receipt.request)["error"],
        **receipt_members(record),
    }


def failure(receipt: Receipt) -> Refusal | None:
    """How a workload ended, if not with its answer; an engine's own refusal is none. What its caller was told may
    have said more."""
    outcome = receipt.settlement.outcome
    if outcome is Outcome.CANCELLED_BY_CALLER:
        return Refusal(outcome=outcome, message="The workload was cancelled, or its caller left.")
    if outcome is not None:
        return Refusal(outcome=outcome, message=f"The workload ended with {outcome.value}.")
    status = receipt.engine_refusal
    if status is None:
        return None
    return Refusal(
        outcome=Outcome.INVALID_REQUEST, message=f"The model server refused the request with status {status}."
    )
