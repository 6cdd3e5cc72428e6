"""The canonical response document: how a workload ended, with its output, usage, timing and receipt."""

import base64
import json
from typing import Any, Final

import attrs

from lunanexa_core.canonical import JsonValue
from lunanexa_core.contract.data_plane import Error
from lunanexa_core.ids import Alias, RequestId, WorkloadId
from lunanexa_core.outcomes import Outcome, Refusal, error_document
from lunanexa_core.workload import Dialect, LedgerReceipt, WorkloadState

JSON_TYPE: Final = "application/json"


@attrs.frozen(kw_only=True)
class UsageDocument:
    """Units are tokens where text is the payload. ``estimated``: the engine did not say, they were counted here.
    ``accelerator_ms`` is the time from the first engine asked to the end."""

    input: int
    output: int
    cached: int
    queue_ms: int
    accelerator_ms: int
    estimated: bool


@attrs.frozen(kw_only=True)
class TimingDocument:
    """Milliseconds since acceptance; ``None``: it never came to that."""

    started_ms: int | None
    first_output_ms: int | None
    completed_ms: int


@attrs.frozen(kw_only=True)
class ModelDocument:
    """Which model. ``digest`` is ``None`` for one that no registry knows."""

    alias: Alias
    digest: str | None


@attrs.frozen(kw_only=True)
class RuntimeDocument:
    """What ran it, and in which dialect it was asked. ``digest`` is ``None`` for one that no registry knows."""

    dialect: Dialect
    digest: str | None


@attrs.frozen(kw_only=True)
class LedgerPlaceDocument:
    """Where the receipt stands in the ledger. Hashes are SHA-256, hex."""

    sequence: int
    hash: str
    previous_hash: str


@attrs.frozen(kw_only=True)
class ResponseDocument:
    """How a workload ended. ``output`` is the engine's own JSON, or ``{content_type, data}`` with base64; ``None``
    where it went out as events. Without a receipt the workload was served and could not be recorded in time."""

    workload_id: WorkloadId
    state: WorkloadState
    error: Error | None
    usage: UsageDocument | None
    timing: TimingDocument | None
    model: ModelDocument | None
    runtime: RuntimeDocument | None
    receipt: LedgerPlaceDocument | None
    output: Any


@attrs.frozen(kw_only=True)
class Output:
    """An engine's whole answer, in its own bytes."""

    content_type: str
    body: bytes = attrs.field(repr=False)


@attrs.frozen(kw_only=True)
class WorkloadResponse:
    """``output`` is ``None`` when there was none or when it went out as events. ``error`` tells of any end but
    success, the engine's own refusal included. ``receipt`` is ``None`` when none was durable in time."""

    workload: WorkloadId
    request: RequestId
    output: Output | None
    error: Refusal | None
    receipt: LedgerReceipt | None

    @property
    def state(self) -> WorkloadState:
        if self.error is None:
            return WorkloadState.SUCCEEDED
        if self.error.outcome is Outcome.CANCELLED_BY_CALLER:
            return WorkloadState.CANCELLED
        return WorkloadState.FAILED


def response_json(response: WorkloadResponse) -> bytes:
    """The document as JSON text on one line. JSON of an engine stands in it as the engine wrote it; other output
    is base64 with its media type."""
    document = response_members(response)
    text = json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode(errors="backslashreplace")
    return text[:-1] + b',"output":' + _output(response.output) + b"}"


def response_members(response: WorkloadResponse) -> dict[str, JsonValue]:
    """All members but ``output``."""
    error = None if response.error is None else error_document(response.error, response.request)["error"]
    return {
        "workload_id": response.workload,
        "state": response.state.value,
        "error": error,
        **receipt_members(response.receipt),
    }


def receipt_members(record: LedgerReceipt | None) -> dict[str, JsonValue]:
    """What the ledger has to say; all ``null`` where it has nothing (yet)."""
    if record is None:
        return {"usage": None, "timing": None, "model": None, "runtime": None, "receipt": None}
    receipt, settlement = record.receipt, record.receipt.settlement
    usage = settlement.usage
    first_ms = settlement.first_output_ms
    return {
        "usage": {
            "input": usage.input_tokens,
            "output": usage.output_tokens,
            "cached": usage.cached_tokens,
            "queue_ms": settlement.queue_ms,
            "accelerator_ms": max(0, settlement.total_ms - settlement.queue_ms) if settlement.attempts else 0,
            "estimated": usage.estimated,
        },
        "timing": {
            "started_ms": settlement.queue_ms if settlement.attempts else None,
            "first_output_ms": first_ms,
            "completed_ms": settlement.total_ms,
        },
        "model": {"alias": receipt.alias, "digest": None},
        "runtime": {"dialect": receipt.dialect.value, "digest": None},
        "receipt": {
            "sequence": record.place.sequence,
            "hash": record.place.hash,
            "previous_hash": record.place.previous,
        },
    }


def _output(output: Output | None) -> bytes:
    if output is None:
        return b"null"
    if output.content_type.partition(";")[0].strip().lower() == JSON_TYPE:
        try:
            json.loads(output.body)
        except ValueError:
            pass
        else:
            # A line break between its tokens would end a frame early.
            return output.body.replace(b"\r", b" ").replace(b"\n", b" ").strip()
    encoded = {"content_type": output.content_type, "data": base64.b64encode(output.body).decode()}
    return json.dumps(encoded, separators=(",", ":")).encode()
