"""A workload: what a caller asks for, what admission reads of it, and the receipt that ends it."""

import enum

import attrs

from lunanexa_core.ids import Alias, DeploymentId, KeyId, RequestId, SessionId, StartId, TenantId, WorkloadId
from lunanexa_core.outcomes import Outcome


class Dialect(enum.Enum):
    """An endpoint dialect that an engine may speak. The value is its path under ``/v1``."""

    CHAT = "chat/completions"
    COMPLETIONS = "completions"
    EMBEDDINGS = "embeddings"
    RESPONSES = "responses"
    MESSAGES = "messages"
    """Anthropic's."""
    RERANK = "rerank"
    AUDIO_SPEECH = "audio/speech"
    AUDIO_TRANSCRIPTIONS = "audio/transcriptions"
    AUDIO_TRANSLATIONS = "audio/translations"

    @property
    def path(self) -> str:
        return f"/v1/{self.value}"


class Priority(enum.Enum):
    """Bands of the service queue, lowest first."""

    BACKGROUND = "Background"
    NORMAL = "Normal"
    INTERACTIVE = "Interactive"
    CRITICAL = "Critical"

    @property
    def band(self) -> int:
        return list(Priority).index(self)


class DataClass(enum.Enum):
    """How far data may travel, least restricted first."""

    PUBLIC = "Public"
    INTERNAL = "Internal"
    CONFIDENTIAL = "Confidential"
    RESTRICTED = "Restricted"

    @property
    def rank(self) -> int:
        return list(DataClass).index(self)


@attrs.frozen(kw_only=True)
class Usage:
    """What a workload used, in tokens. ``estimated``: the engine did not say, we counted."""

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    estimated: bool = False

    def plus(self, other: "Usage") -> "Usage":
        return Usage(
            input_tokens=self.input_tokens + other.input_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            cached_tokens=self.cached_tokens + other.cached_tokens,
            estimated=self.estimated or other.estimated,
        )


@attrs.frozen(kw_only=True)
class WorkloadRequest:
    """What admission reads of one request. ``key_digest`` is the SHA-256 (hex) of the presented key;
    ``body_digest`` the ``sha256:`` digest of the raw body. No payload is in it."""

    workload: WorkloadId
    request: RequestId
    session: SessionId
    key_digest: str
    alias: Alias
    dialect: Dialect
    stream: bool
    body_digest: str
    body_bytes: int
    reserved_tokens: int
    priority: Priority = Priority.NORMAL
    deadline_ms: int
    """Budget from arrival: queue and run together."""
    tenant: TenantId | None = None
    """Whose the caller says that it is."""
    classification: DataClass = DataClass.INTERNAL
    retain_ms: int | None = None
    """For how long the answer may be kept for its idempotency key."""
    idempotency: str | None = None
    """SHA-256 (hex) of the caller's idempotency key; once admitted, of that and the tenant."""
    binding: str | None = None
    """SHA-256 (hex) of route, content type and raw body, where there is such a key."""


class WorkloadState(enum.Enum):
    """States as callers see them; the last three are terminal."""

    SUBMITTED = "Submitted"
    ADMITTED = "Admitted"
    REJECTED = "Rejected"
    QUEUED = "Queued"
    RUNNING = "Running"
    STREAMING = "Streaming"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    CANCELLED = "Cancelled"


@attrs.frozen(kw_only=True)
class Attempt:
    """One try on one replica. ``failure`` says why it was given up; ``None``: its output counts."""

    start: StartId
    failure: str | None = None
    status: int | None = None
    """The engine's HTTP status, where one came."""


@attrs.frozen(kw_only=True)
class Settlement:
    """How a workload ended, as the gateway that relayed it tells. Times are milliseconds since admission."""

    workload: WorkloadId
    outcome: Outcome | None
    """``None``: the engine's answer was relayed whole (its own 4xx included)."""
    detail: str | None = None
    """A short fixed reason for operators (``gateway_lost``, ``overdue``, ``engine_cut``…)."""
    usage: Usage = Usage()
    queue_ms: int = 0
    first_output_ms: int | None = None
    total_ms: int = 0
    attempts: tuple[Attempt, ...] = ()
    kept: bool = False
    """Whether the answer was put aside for its idempotency key."""


@attrs.frozen(kw_only=True)
class Receipt:
    """The one terminal record of a workload: the settlement, and for whom it was."""

    workload: WorkloadId
    request: RequestId
    tenant: TenantId
    key: KeyId
    alias: Alias
    deployment: DeploymentId
    dialect: Dialect
    settlement: Settlement

    @property
    def engine_refusal(self) -> int | None:
        """The status with which the engine refused what was relayed whole."""
        attempts = self.settlement.attempts
        status = attempts[-1].status if attempts and self.settlement.outcome is None else None
        return status if status is not None and status >= 400 else None

    @property
    def state(self) -> WorkloadState:
        match self.settlement.outcome:
            case None if self.engine_refusal is None:
                return WorkloadState.SUCCEEDED
            case Outcome.CANCELLED_BY_CALLER:
                return WorkloadState.CANCELLED
            case _:
                return WorkloadState.FAILED


@attrs.frozen(kw_only=True)
class LedgerPlace:
    """Where a record stands in the ledger. Hashes are SHA-256, hex."""

    sequence: int
    previous: str
    hash: str


@attrs.frozen
class LedgerReceipt:
    """A receipt and where it stands."""

    receipt: Receipt
    place: LedgerPlace
