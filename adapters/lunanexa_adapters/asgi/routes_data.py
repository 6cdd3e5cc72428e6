"""Routes of the probes and of the data plane."""

from typing import Any, Final

from lunanexa_adapters.asgi.route import IDENTIFIER, KEY_REFUSALS, LIMIT, Parameter, Plane, Route, identifier
from lunanexa_core.contract import data_plane, workloads
from lunanexa_core.contract.envelope import WorkloadEnvelope
from lunanexa_core.contract.response import ResponseDocument
from lunanexa_core.openai.request_rules import request_rules
from lunanexa_core.outcomes import Outcome
from lunanexa_core.workload import DataClass, Dialect, Priority

METRICS_TYPE: Final = "text/plain"
_INFERENCE: Final = (
    Parameter(
        name="x-lunanexa-deadline-ms",
        place="header",
        schema={"type": "integer", "minimum": 1},
        described="Budget from arrival, queue and run together.",
    ),
    Parameter(name="x-lunanexa-priority", place="header", schema={"enum": [priority.value for priority in Priority]}),
    Parameter(
        name="x-lunanexa-data-class",
        place="header",
        schema={"enum": [known.value for known in DataClass], "default": DataClass.INTERNAL.value},
    ),
    Parameter(
        name="x-lunanexa-retain-ms",
        place="header",
        schema={"type": "integer", "minimum": 1},
        described="The answer may be kept so long for its idempotency key.",
    ),
    Parameter(
        name="idempotency-key",
        place="header",
        schema={"type": "string", "pattern": IDENTIFIER},
        described="The same key with the same body is run once.",
    ),
)
_ADMISSION: Final = (
    *KEY_REFUSALS,
    *(Outcome.UNSUPPORTED_ENDPOINT, Outcome.MODEL_NOT_FOUND, Outcome.WORKLOAD_ACTIVE, Outcome.PAYLOAD_TOO_LARGE),
    *(Outcome.QUOTA_EXCEEDED, Outcome.RATE_LIMITED, Outcome.QUEUE_FULL, Outcome.DEADLINE_UNREACHABLE),
    *(Outcome.ENGINE_FAILED, Outcome.NO_PLACEMENT, Outcome.STARTING, Outcome.DRAINING, Outcome.NOT_LEADER),
    *(Outcome.RECEIPT_UNAVAILABLE, Outcome.DEADLINE_EXCEEDED, Outcome.RETENTION_UNAVAILABLE),
    *(Outcome.IDEMPOTENCY_MISMATCH, Outcome.IDEMPOTENCY_OUTPUT_GONE),
)


def _probe(path: str, summary: str, answer: Any) -> Route:
    return Route(method="get", path=path, summary=summary, plane=Plane.PROBES, answer=answer)


def _infer(dialect: Dialect, summary: str, body: type, *media: str) -> Route:
    return Route(
        method="post",
        path=dialect.path,
        summary=summary,
        plane=Plane.DATA,
        body=body,
        form=request_rules(dialect).form,
        parameters=_INFERENCE,
        refusals=_ADMISSION,
        engine=True,
        media=media,
    )


DATA_ROUTES: Final[tuple[Route, ...]] = (
    _probe("/health", "Alive; asks nobody", data_plane.Alive),
    Route(
        method="get",
        path="/ready",
        summary="Whether requests would be admitted",
        plane=Plane.PROBES,
        answer=data_plane.Ready,
        refusals=(Outcome.STARTING, Outcome.STORE_UNAVAILABLE, Outcome.DRAINING),
    ),
    _probe("/version", "Version and contract", data_plane.Version),
    _probe("/metrics", "Prometheus text", METRICS_TYPE),
    _probe("/openapi.json", "This document", dict[str, Any]),
    Route(
        method="get",
        path="/v1/models",
        summary="Aliases that can be called now with this key",
        plane=Plane.DATA,
        answer=data_plane.ModelList,
        refusals=KEY_REFUSALS,
    ),
    Route(
        method="get",
        path="/v1/models/{id}",
        summary="One of them",
        plane=Plane.DATA,
        answer=data_plane.Model,
        parameters=(Parameter(name="id", place="path", schema={"type": "string", "minLength": 1}),),
        refusals=(*KEY_REFUSALS, Outcome.MODEL_NOT_FOUND),
    ),
    _infer(Dialect.CHAT, "Chat, answered by an engine", data_plane.ChatRequest),
    _infer(Dialect.COMPLETIONS, "Text completion, answered by an engine", data_plane.CompletionRequest),
    _infer(Dialect.EMBEDDINGS, "Embeddings, answered by an engine", data_plane.EmbeddingRequest),
    _infer(Dialect.RESPONSES, "A response, answered by an engine", data_plane.ResponseRequest),
    _infer(Dialect.MESSAGES, "Anthropic's messages, answered by an engine", data_plane.MessageRequest),
    _infer(Dialect.RERANK, "Documents ranked by an engine", data_plane.RerankRequest),
    _infer(Dialect.AUDIO_SPEECH, "Speech, spoken by an engine", data_plane.SpeechRequest, "audio/*"),
    _infer(Dialect.AUDIO_TRANSCRIPTIONS, "What an engine hears", data_plane.SoundForm, "text/*"),
    _infer(Dialect.AUDIO_TRANSLATIONS, "What an engine hears, in English", data_plane.SoundForm, "text/*"),
    Route(
        method="post",
        path="/v1/workloads",
        summary="Runs a canonical workload and answers with its response",
        plane=Plane.DATA,
        answer=ResponseDocument,
        body=WorkloadEnvelope,
        parameters=_INFERENCE,
        refusals=(*_ADMISSION, Outcome.CANCELLED_BY_CALLER),
        fails_with=ResponseDocument,
    ),
    Route(
        method="post",
        path="/v1/workloads:stream",
        summary="Runs a canonical workload: events `accepted`, `output`, then `completed` or `failed`",
        plane=Plane.DATA,
        answer="text/event-stream",
        body=WorkloadEnvelope,
        parameters=_INFERENCE,
        refusals=_ADMISSION,
    ),
    Route(
        method="get",
        path="/v1/workloads",
        summary="Own workloads, newest first",
        plane=Plane.DATA,
        answer=workloads.WorkloadPage,
        parameters=(
            LIMIT,
            Parameter(
                name="cursor",
                place="query",
                schema={"type": "string", "pattern": "^[0-9]{1,16}$"},
                described="`next_cursor` of the page before.",
            ),
        ),
        refusals=KEY_REFUSALS,
    ),
    Route(
        method="get",
        path="/v1/workloads/{id}",
        summary="One own workload: its live state, or its receipt",
        plane=Plane.DATA,
        answer=workloads.WorkloadDocument,
        parameters=(identifier("id"),),
        refusals=(*KEY_REFUSALS, Outcome.NOT_FOUND),
    ),
    Route(
        method="post",
        path="/v1/workloads/{id}:cancel",
        summary="Ends an own workload, in whatever phase it is",
        plane=Plane.DATA,
        answer=workloads.WorkloadDocument,
        parameters=(identifier("id"),),
        refusals=(*KEY_REFUSALS, Outcome.NOT_FOUND),
    ),
    Route(
        method="get",
        path="/v1/capabilities",
        summary="What this key may ask for, now and here",
        plane=Plane.DATA,
        answer=workloads.CapabilitiesDocument,
        refusals=KEY_REFUSALS,
    ),
)
