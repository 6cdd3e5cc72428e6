"""What the data plane reads and answers, as values: the published schemas are generated from these.

They tell the form; the answers are written where the facts are, and tests hold the two together.
"""

from typing import Any

import attrs

from lunanexa_core.contract.schema import rules
from lunanexa_core.ids import Alias, WorkloadId
from lunanexa_core.openai.request import MAX_CHOICES, MAX_MODEL_CHARACTERS
from lunanexa_core.outcomes import Outcome
from lunanexa_core.workload import WorkloadState

_MODEL = rules(minLength=1, maxLength=MAX_MODEL_CHARACTERS)
_CHOICES = rules(anyOf=[{"type": "integer", "minimum": 1, "maximum": MAX_CHOICES}, {"type": "null"}])


@attrs.frozen(kw_only=True)
class StreamOptions:
    """Only allowed with ``stream``."""

    include_usage: bool | None = None


@attrs.frozen(kw_only=True)
class ChatRequest:
    """As far as it is read here; all else, and every further member, is the engine's to judge."""

    model: str = attrs.field(metadata=_MODEL)
    messages: tuple[dict[str, Any], ...]
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    n: int | None = attrs.field(default=None, metadata=_CHOICES)


@attrs.frozen(kw_only=True)
class CompletionRequest:
    """As far as it is read here; all else, and every further member, is the engine's to judge."""

    model: str = attrs.field(metadata=_MODEL)
    prompt: Any
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    n: int | None = attrs.field(default=None, metadata=_CHOICES)


@attrs.frozen
class EmbeddingRequest:
    """As far as it is read here; all else, and every further member, is the engine's to judge."""

    model: str = attrs.field(metadata=_MODEL)
    input: Any


_NEVER = rules(enum=[None])
"""Members that would need an answer to be kept."""


@attrs.frozen(kw_only=True)
class ResponseRequest:
    """As far as it is read here; all else, and every further member, is the engine's to judge."""

    model: str = attrs.field(metadata=_MODEL)
    input: Any
    stream: bool | None = None
    max_output_tokens: int | None = None
    previous_response_id: None = attrs.field(default=None, metadata=_NEVER)
    conversation: None = attrs.field(default=None, metadata=_NEVER)
    background: bool | None = attrs.field(default=None, metadata=rules(enum=[False, None]))


@attrs.frozen(kw_only=True)
class MessageRequest:
    """Anthropic's, as far as it is read here; all else, and every further member, is the engine's to judge."""

    model: str = attrs.field(metadata=_MODEL)
    messages: tuple[dict[str, Any], ...]
    max_tokens: int
    stream: bool | None = None


@attrs.frozen
class RerankRequest:
    """As far as it is read here; all else, and every further member, is the engine's to judge."""

    model: str = attrs.field(metadata=_MODEL)
    query: Any
    documents: Any


@attrs.frozen(kw_only=True)
class SpeechRequest:
    """As far as it is read here; all else, and every further member, is the engine's to judge."""

    model: str = attrs.field(metadata=_MODEL)
    input: Any
    voice: Any = None
    stream_format: str | None = attrs.field(default=None, metadata=rules(enum=["audio", "sse", None]))


@attrs.frozen(kw_only=True)
class SoundForm:
    """A form, as far as it is read here; all other fields are the engine's to judge."""

    model: str = attrs.field(metadata=_MODEL)
    file: str = attrs.field(metadata=rules(type="string", format="binary"))
    stream: bool | None = None


@attrs.frozen(kw_only=True)
class EndedWorkload:
    """The workload that an idempotency key stands for, and its record in the ledger, where that can be read.
    ``GET /v1/workloads/{id}`` has more."""

    workload_id: WorkloadId
    state: WorkloadState | None
    sequence: int | None
    hash: str | None
    previous_hash: str | None


@attrs.frozen(kw_only=True)
class Error:
    """One refusal or failure. ``code`` is a row of the outcome table; ``receipt`` comes with
    ``idempotency_output_gone`` alone, ``leader_node_url`` with ``not_leader`` on the node plane alone: where the
    controller that leads answers nodes, as far as this one knows."""

    message: str
    type: str
    param: str | None
    code: Outcome
    retryable: bool
    request_id: str
    receipt: EndedWorkload | None = None
    leader_node_url: str | None = None


@attrs.frozen
class ErrorDocument:
    """The one shape of errors."""

    error: Error


@attrs.frozen(kw_only=True)
class NotReady:
    """Why no request would be admitted; the server's own refusal has the error alone."""

    error: Error
    ready: bool = False
    blockers: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


@attrs.frozen
class Ready:
    """Requests would be admitted."""

    ready: bool
    blockers: tuple[str, ...]
    warnings: tuple[str, ...]


@attrs.frozen
class Alive:
    """The process answers."""

    status: str


@attrs.frozen
class Version:
    """Of the program and of the contract."""

    version: str
    contract: str


@attrs.frozen(kw_only=True)
class ModelMeta:
    """What is known of an alias beside OpenAI's members."""

    state: str
    context_length: int | None
    capabilities: tuple[str, ...]


@attrs.frozen(kw_only=True)
class Model:
    """An alias that can be called now."""

    id: Alias
    object: str
    created: int
    owned_by: str
    meta: ModelMeta


@attrs.frozen
class ModelList:
    """All of them."""

    object: str
    data: tuple[Model, ...]
