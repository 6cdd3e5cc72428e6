"""The canonical envelope of a workload (contract ``lunanexa.v1``): what is asked, of what, on which terms.

The document is strict: an unknown member is refused, because a term that was misspelt would silently not hold.
"""

import enum
import re
from typing import Any, Final

import attrs

from lunanexa_core.contract.schema import rules
from lunanexa_core.ids import Alias, TenantId, WorkloadId, is_identifier
from lunanexa_core.openai.request import MAX_MODEL_CHARACTERS
from lunanexa_core.outcomes import Outcome, Refusal
from lunanexa_core.terms import (
    MILLISECONDS_MAX,
    DataPolicy,
    Ephemeral,
    EvaluationCapture,
    LatencyClass,
    ResourceCeiling,
    RetainFor,
    Retention,
    Terms,
)
from lunanexa_core.workload import DataClass, Dialect, Priority

CONTRACT: Final = "lunanexa.v1"
_IDENTIFIER: Final = "^[A-Za-z0-9_.:-]{1,256}$"
_UNITS_MAX: Final = 1_000_000_000
_TRACE: Final = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}\Z")


class Capability(enum.Enum):
    """What a workload is for. Those without a dialect are understood, and served by no driver."""

    TEXT_GENERATE = "TextGenerate"
    EMBEDDING_CREATE = "EmbeddingCreate"
    RERANK = "Rerank"
    IMAGE_GENERATE = "ImageGenerate"
    VIDEO_GENERATE = "VideoGenerate"
    AUDIO_GENERATE = "AudioGenerate"
    MODEL_EVALUATE = "ModelEvaluate"
    MODEL_TRAIN = "ModelTrain"

    @property
    def dialects(self) -> tuple[Dialect, ...]:
        """The dialects that its payload may be in; the first one is meant when none is named."""
        return _DIALECTS.get(self, ())


_DIALECTS: Final = {
    Capability.TEXT_GENERATE: (Dialect.CHAT, Dialect.COMPLETIONS, Dialect.RESPONSES, Dialect.MESSAGES),
    Capability.EMBEDDING_CREATE: (Dialect.EMBEDDINGS,),
    Capability.RERANK: (Dialect.RERANK,),
    Capability.AUDIO_GENERATE: (Dialect.AUDIO_SPEECH,),
}


class RetentionKind(enum.Enum):
    """How long what may be kept."""

    EPHEMERAL = "Ephemeral"
    RETAIN_FOR = "RetainFor"
    EVALUATION_CAPTURE = "EvaluationCapture"


class OutputFormat(enum.Enum):
    """How the output is written. ``Engine``: as the engine wrote it."""

    ENGINE = "Engine"


@attrs.frozen(kw_only=True)
class RetentionDocument:
    """``ms`` belongs to RetainFor, ``consent`` (a receipt) to EvaluationCapture."""

    kind: RetentionKind
    ms: int | None = attrs.field(default=None, metadata=rules(minimum=1, maximum=MILLISECONDS_MAX))
    consent: str | None = attrs.field(default=None, metadata=rules(pattern=_IDENTIFIER))


@attrs.frozen(kw_only=True)
class DataPolicyDocument:
    """What may be done with the data. What is left out allows nothing."""

    classification: DataClass = DataClass.INTERNAL
    retention: RetentionDocument = RetentionDocument(kind=RetentionKind.EPHEMERAL)
    allow_cache: bool = False
    allow_training_reuse: bool = False


@attrs.frozen(kw_only=True)
class CeilingDocument:
    """What the workload may use at most. Units are tokens where text is the payload."""

    input_units: int | None = attrs.field(default=None, metadata=rules(minimum=1, maximum=_UNITS_MAX))
    output_units: int | None = attrs.field(default=None, metadata=rules(minimum=1, maximum=_UNITS_MAX))
    runtime_ms: int | None = attrs.field(default=None, metadata=rules(minimum=1, maximum=MILLISECONDS_MAX))
    accelerator_memory_mib: int | None = attrs.field(default=None, metadata=rules(minimum=1, maximum=_UNITS_MAX))


@attrs.frozen(kw_only=True)
class WorkloadEnvelope:
    """One workload. ``payload`` is the request body of ``dialect``, without ``model`` and ``stream``; which dialect
    is meant when none is named, the capability says. ``deadline_ms`` is a budget from arrival. ``trace`` is a W3C
    ``traceparent``."""

    contract: str = attrs.field(default=CONTRACT, metadata=rules(const=CONTRACT))
    workload_id: WorkloadId | None = attrs.field(default=None, metadata=rules(pattern=_IDENTIFIER))
    idempotency_key: str | None = attrs.field(default=None, metadata=rules(pattern=_IDENTIFIER))
    tenant: TenantId | None = attrs.field(default=None, metadata=rules(pattern=_IDENTIFIER))
    capability: Capability
    model: Alias = attrs.field(metadata=rules(minLength=1, maxLength=MAX_MODEL_CHARACTERS))
    dialect: Dialect | None = None
    payload: dict[str, Any]
    data_policy: DataPolicyDocument = DataPolicyDocument()
    deadline_ms: int | None = attrs.field(default=None, metadata=rules(minimum=1, maximum=MILLISECONDS_MAX))
    priority: Priority = Priority.NORMAL
    latency_class: LatencyClass = LatencyClass.STANDARD
    resource_ceiling: CeilingDocument = CeilingDocument()
    output_format: OutputFormat = OutputFormat.ENGINE
    trace: str | None = attrs.field(default=None, metadata=rules(pattern="^" + _TRACE.pattern.replace(r"\Z", "$")))


def dialect_of(envelope: WorkloadEnvelope) -> Dialect | Refusal:
    """The dialect that the payload is in."""
    dialects = envelope.capability.dialects
    if not dialects:
        return Refusal(
            outcome=Outcome.UNSUPPORTED_ENDPOINT,
            message=f"No model server here serves {envelope.capability.value}.",
            param="capability",
        )
    if envelope.dialect is None:
        return dialects[0]
    if envelope.dialect not in dialects:
        allowed = ", ".join(dialect.value for dialect in dialects)
        return _invalid("dialect", f"must be one of {allowed} for {envelope.capability.value}")
    return envelope.dialect


def terms_of_envelope(envelope: WorkloadEnvelope, headers: Terms) -> Terms | Refusal:
    """The terms that the envelope states; what it leaves out is as the headers say. The first fault found is the
    refusal."""
    identifiers = {
        "workload_id": envelope.workload_id,
        "idempotency_key": envelope.idempotency_key,
        "tenant": envelope.tenant,
    }
    for param, value in identifiers.items():
        if value is not None and not is_identifier(value):
            return _invalid(param, "has 1 to 256 characters: letters, digits and '-_.:'")
    if envelope.contract != CONTRACT:
        return _invalid("contract", f"must be {CONTRACT!r}")
    if not 1 <= len(envelope.model) <= MAX_MODEL_CHARACTERS:
        return _invalid("model", f"must have from 1 to {MAX_MODEL_CHARACTERS} characters")
    if envelope.trace is not None and not _TRACE.match(envelope.trace):
        return _invalid("trace", "must be a W3C traceparent")
    keys = {headers.idempotency_key, envelope.idempotency_key} - {None}
    if len(keys) > 1:
        return _invalid("idempotency_key", "differs from the header Idempotency-Key")
    numbers = {"deadline_ms": envelope.deadline_ms, "resource_ceiling.runtime_ms": envelope.resource_ceiling.runtime_ms}
    for param, number in numbers.items():
        if number is not None and not 1 <= number <= MILLISECONDS_MAX:
            return _invalid(param, f"must be from 1 to {MILLISECONDS_MAX}")
    ceiling = _ceiling(envelope.resource_ceiling)
    if isinstance(ceiling, Refusal):
        return ceiling
    data = _data_policy(envelope.data_policy)
    if isinstance(data, Refusal):
        return data
    return Terms(
        workload=envelope.workload_id,
        tenant=envelope.tenant,
        idempotency_key=envelope.idempotency_key or headers.idempotency_key,
        deadline_ms=envelope.deadline_ms or headers.deadline_ms,
        priority=envelope.priority if envelope.priority is not Priority.NORMAL else headers.priority,
        latency=envelope.latency_class,
        data=data,
        ceiling=ceiling,
        trace=envelope.trace or headers.trace,
    )


def _ceiling(ceiling: CeilingDocument) -> ResourceCeiling | Refusal:
    units = {
        "resource_ceiling.input_units": ceiling.input_units,
        "resource_ceiling.output_units": ceiling.output_units,
        "resource_ceiling.accelerator_memory_mib": ceiling.accelerator_memory_mib,
    }
    for param, number in units.items():
        if number is not None and not 1 <= number <= _UNITS_MAX:
            return _invalid(param, f"must be from 1 to {_UNITS_MAX}")
    if ceiling.accelerator_memory_mib is not None:
        # A ceiling that nobody measures would be a promise that nobody keeps.
        return _invalid("resource_ceiling.accelerator_memory_mib", "can't be held yet; leave it out")
    return ResourceCeiling(
        input_units=ceiling.input_units, output_units=ceiling.output_units, runtime_ms=ceiling.runtime_ms
    )


def _data_policy(document: DataPolicyDocument) -> DataPolicy | Refusal:
    retention = _retention(document.retention)
    if isinstance(retention, Refusal):
        return retention
    if document.allow_cache and isinstance(retention, Ephemeral):
        return _invalid("data_policy.allow_cache", "contradicts the retention Ephemeral")
    if document.allow_training_reuse and not isinstance(retention, EvaluationCapture):
        return _invalid("data_policy.allow_training_reuse", "needs the retention EvaluationCapture, with its consent")
    return DataPolicy(
        classification=document.classification,
        retention=retention,
        allow_cache=document.allow_cache,
        allow_training_reuse=document.allow_training_reuse,
    )


def _retention(document: RetentionDocument) -> Retention | Refusal:
    match document.kind, document.ms, document.consent:
        case RetentionKind.EPHEMERAL, None, None:
            return Ephemeral()
        case RetentionKind.RETAIN_FOR, int(ms), None if 1 <= ms <= MILLISECONDS_MAX:
            return RetainFor(ms)
        case RetentionKind.EVALUATION_CAPTURE, None, str(consent) if is_identifier(consent):
            return EvaluationCapture(consent)
        case RetentionKind.RETAIN_FOR, _, None:
            return _invalid("data_policy.retention.ms", f"must be from 1 to {MILLISECONDS_MAX}")
        case RetentionKind.EVALUATION_CAPTURE, None, _:
            return _invalid("data_policy.retention.consent", "must be the identifier of a consent receipt")
        case _:
            return _invalid("data_policy.retention", "has a member that does not belong to its kind")


def _invalid(param: str, what: str) -> Refusal:
    return Refusal(outcome=Outcome.INVALID_REQUEST, message=f"{param} {what}.", param=param)
