"""What can go wrong, one exception class a family of the outcome table."""

from collections.abc import Mapping
from typing import ClassVar, Final

import attrs

from lunanexa_client.receipts import Receipt
from lunanexa_core.outcomes import Outcome


@attrs.frozen(kw_only=True)
class ErrorFacts:
    """What is known of one error beside its class."""

    code: str
    """``error.code`` as the server sent it, or a code of this library's; empty where there was none."""
    param: str | None = None
    """The field at fault."""
    retryable: bool = False
    """Whether the same request may succeed later; for a refusal, the server's own word."""
    status: int | None = None
    """The HTTP status, where an answer came."""
    request_id: str | None = None
    workload_id: str | None = None
    retry_after_ms: int | None = None
    receipt: Receipt | None = None
    """What the server says of the workload's receipt, or where it can be read."""


class LunaNexaError(Exception):
    """Base of all of them; catch it to catch each."""

    default_code: ClassVar[str] = ""

    def __init__(self, message: str, facts: ErrorFacts | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.facts = facts or ErrorFacts(code=self.default_code)

    @property
    def code(self) -> str:
        return self.facts.code

    @property
    def outcome(self) -> Outcome | None:
        """The row of the outcome table; ``None`` where the code is not in it."""
        return known_outcome(self.facts.code)

    @property
    def param(self) -> str | None:
        return self.facts.param

    @property
    def retryable(self) -> bool:
        return self.facts.retryable

    @property
    def status(self) -> int | None:
        return self.facts.status

    @property
    def request_id(self) -> str | None:
        return self.facts.request_id

    @property
    def workload_id(self) -> str | None:
        return self.facts.workload_id

    @property
    def retry_after_s(self) -> float | None:
        return None if self.facts.retry_after_ms is None else self.facts.retry_after_ms / 1000

    @property
    def receipt(self) -> Receipt | None:
        return self.facts.receipt


class AuthenticationError(LunaNexaError):
    """The key is missing, unknown, expired or revoked."""


class PermissionDenied(LunaNexaError):
    """The key does not hold the role, alias or data class."""


class NotFound(LunaNexaError):
    """No such model for this key, no such workload, no such address."""


class InvalidRequest(LunaNexaError):
    """The request itself is at fault: :attr:`~LunaNexaError.param` names the field where one is."""


class Conflict(LunaNexaError):
    """Something stands against it: the same workload runs, the idempotency key is taken, or the deployment is at
    another generation."""


class RateLimited(LunaNexaError):
    """Capacity exists but is contended, or a limit of the key is used up (HTTP 429)."""


class EngineFailed(LunaNexaError):
    """The model server broke or cut its answer."""


class Unavailable(LunaNexaError):
    """There is no capacity now (HTTP 503)."""


class DeadlineExceeded(LunaNexaError):
    """Queue and run together passed the deadline; without a status it was this program's own clock."""

    default_code = Outcome.DEADLINE_EXCEEDED.value


class WorkloadCancelled(LunaNexaError):
    """The workload was cancelled, by this caller or by another one of the same key."""

    default_code = Outcome.CANCELLED_BY_CALLER.value


class InternalError(LunaNexaError):
    """A fault of the service; its log has it."""


class ResumeGone(LunaNexaError):
    """The events that followed are kept no more; :attr:`~LunaNexaError.receipt` says how the workload ended."""


class ConnectionFailed(LunaNexaError):
    """No connection, or it broke. Whether the server has seen the request is not known, unless ``retryable``."""

    default_code = "connection_failed"


class StreamCut(ConnectionFailed):
    """A stream ended before its end was announced."""

    default_code = "stream_cut"


class ProtocolError(LunaNexaError):
    """What answers does not keep to the protocol, or passed a limit of this client."""

    default_code = "protocol_error"


CLASSES: Final[Mapping[Outcome, type[LunaNexaError]]] = {
    Outcome.INVALID_REQUEST: InvalidRequest,
    Outcome.UNSUPPORTED_ENDPOINT: InvalidRequest,
    Outcome.METHOD_NOT_ALLOWED: InvalidRequest,
    Outcome.REQUEST_TIMEOUT: InvalidRequest,
    Outcome.PAYLOAD_TOO_LARGE: InvalidRequest,
    Outcome.HEAD_TOO_LARGE: InvalidRequest,
    Outcome.INVALID_API_KEY: AuthenticationError,
    Outcome.PERMISSION_DENIED: PermissionDenied,
    Outcome.NODE_RETIRED: PermissionDenied,
    Outcome.MODEL_NOT_FOUND: NotFound,
    Outcome.NOT_FOUND: NotFound,
    Outcome.WORKLOAD_ACTIVE: Conflict,
    Outcome.IDEMPOTENCY_MISMATCH: Conflict,
    Outcome.IDEMPOTENCY_OUTPUT_GONE: Conflict,
    Outcome.STALE_GENERATION: Conflict,
    Outcome.DOCUMENT_WANTED: Conflict,
    Outcome.QUOTA_EXCEEDED: RateLimited,
    Outcome.RATE_LIMITED: RateLimited,
    Outcome.QUEUE_FULL: RateLimited,
    Outcome.DEADLINE_UNREACHABLE: RateLimited,
    Outcome.CANCELLED_BY_CALLER: WorkloadCancelled,
    Outcome.ENGINE_FAILED: EngineFailed,
    Outcome.NO_CAPACITY: Unavailable,
    Outcome.NO_PLACEMENT: Unavailable,
    Outcome.STARTING: Unavailable,
    Outcome.DRAINING: Unavailable,
    Outcome.NOT_LEADER: Unavailable,
    Outcome.STORE_UNAVAILABLE: Unavailable,
    Outcome.RECEIPT_UNAVAILABLE: Unavailable,
    Outcome.RETENTION_UNAVAILABLE: Unavailable,
    Outcome.DEADLINE_EXCEEDED: DeadlineExceeded,
    Outcome.INTERNAL: InternalError,
}
"""The class of each row; a test holds it complete."""


def known_outcome(code: str) -> Outcome | None:
    """The row that ``code`` names."""
    try:
        return Outcome(code)
    except ValueError:
        return None
