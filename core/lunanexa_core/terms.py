"""What a caller asks of us beside the payload: the same from the headers of a dialect and from an envelope."""

import enum
import re
from collections.abc import Mapping
from typing import Final, TypeAlias

import attrs

from lunanexa_core.ids import TenantId, WorkloadId, is_identifier
from lunanexa_core.outcomes import Outcome, Refusal
from lunanexa_core.workload import DataClass, Priority

DEADLINE_HEADER: Final = "x-lunanexa-deadline-ms"
PRIORITY_HEADER: Final = "x-lunanexa-priority"
DATA_CLASS_HEADER: Final = "x-lunanexa-data-class"
RETAIN_HEADER: Final = "x-lunanexa-retain-ms"
IDEMPOTENCY_HEADER: Final = "idempotency-key"
TRACE_HEADER: Final = "traceparent"
TERM_HEADERS: Final = (
    DEADLINE_HEADER,
    PRIORITY_HEADER,
    DATA_CLASS_HEADER,
    RETAIN_HEADER,
    IDEMPOTENCY_HEADER,
    TRACE_HEADER,
)
MILLISECONDS_MAX: Final = 10**12 - 1
# https://www.w3.org/TR/trace-context/#traceparent-header
_TRACE: Final = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}\Z")


class LatencyClass(enum.Enum):
    """How soon an answer is wanted."""

    BATCH = "Batch"
    STANDARD = "Standard"
    REALTIME = "Realtime"


@attrs.frozen
class Ephemeral:
    """Nothing of input or output is kept."""


@attrs.frozen
class RetainFor:
    """The answer may be kept, and given again to the same idempotency key, for so long."""

    ms: int


@attrs.frozen
class EvaluationCapture:
    """Input and output may be kept for evaluation, by the consent that this receipt proves."""

    consent: str


Retention: TypeAlias = Ephemeral | RetainFor | EvaluationCapture


@attrs.frozen(kw_only=True)
class DataPolicy:
    """What may be done with a workload's data. The defaults allow nothing."""

    classification: DataClass = DataClass.INTERNAL
    retention: Retention = Ephemeral()
    allow_cache: bool = False
    allow_training_reuse: bool = False


@attrs.frozen(kw_only=True)
class ResourceCeiling:
    """What a workload may use at most; ``None``: not said. Units are tokens where text is the payload."""

    input_units: int | None = None
    output_units: int | None = None
    runtime_ms: int | None = None
    accelerator_memory_mib: int | None = None


@attrs.frozen(kw_only=True)
class Terms:
    """``None``: the caller did not say. ``deadline_ms`` is a budget from arrival, never an absolute time."""

    workload: WorkloadId | None = None
    tenant: TenantId | None = None
    idempotency_key: str | None = None
    deadline_ms: int | None = None
    priority: Priority = Priority.NORMAL
    latency: LatencyClass = LatencyClass.STANDARD
    data: DataPolicy = DataPolicy()
    ceiling: ResourceCeiling = ResourceCeiling()
    trace: str | None = None
    """W3C ``traceparent``, as it came."""


_PRIORITIES: Final = {priority.value.lower(): priority for priority in Priority}
_CLASSES: Final = {known.value.lower(): known for known in DataClass}


def terms_of_headers(headers: Mapping[str, str]) -> Terms | Refusal:
    """The terms that a request's headers state; the first fault found is the refusal. Names are lower case."""
    deadline_ms = _milliseconds(headers, DEADLINE_HEADER)
    if isinstance(deadline_ms, Refusal):
        return deadline_ms
    retain_ms = _milliseconds(headers, RETAIN_HEADER)
    if isinstance(retain_ms, Refusal):
        return retain_ms
    priority = _PRIORITIES.get(headers.get(PRIORITY_HEADER, Priority.NORMAL.value).lower())
    if priority is None:
        return _one_of(PRIORITY_HEADER, [known.value for known in Priority])
    classification = _CLASSES.get(headers.get(DATA_CLASS_HEADER, DataPolicy().classification.value).lower())
    if classification is None:
        return _one_of(DATA_CLASS_HEADER, [known.value for known in DataClass])
    key = headers.get(IDEMPOTENCY_HEADER)
    if key is not None and not is_identifier(key):
        return _invalid(IDEMPOTENCY_HEADER, "has 1 to 256 characters: letters, digits and '-_.:'")
    trace = headers.get(TRACE_HEADER)
    return Terms(
        idempotency_key=key,
        deadline_ms=deadline_ms,
        priority=priority,
        data=DataPolicy(
            classification=classification, retention=Ephemeral() if retain_ms is None else RetainFor(retain_ms)
        ),
        # By its standard a trace that can't be read is dropped, and the request goes on without.
        trace=trace if trace is not None and _TRACE.match(trace) else None,
    )


def _milliseconds(headers: Mapping[str, str], name: str) -> int | Refusal | None:
    text = headers.get(name)
    if text is None:
        return None
    if text.isascii() and text.isdigit() and len(text) <= len(str(MILLISECONDS_MAX)) and int(text) > 0:
        return int(text)
    return _invalid(name, "must be a positive number of milliseconds")


def _one_of(header: str, values: list[str]) -> Refusal:
    return _invalid(header, f"must be one of {', '.join(values)}")


def _invalid(header: str, what: str) -> Refusal:
    return Refusal(outcome=Outcome.INVALID_REQUEST, message=f"The header {header} {what}.", param=header)
