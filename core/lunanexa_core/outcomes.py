"""The outcome table: each refusal and failure, once, with everything that any surface says of it.

HTTP, WebSocket, the command line, metrics and logs all read this table, so that they can't disagree.
429 says that capacity exists but is contended; 503 that none exists now. Overload is never a 401, 404
or 500.
"""

import enum

import attrs

from lunanexa_core.allowance import UNLIMITED, Allowances
from lunanexa_core.canonical import JsonValue


class Outcome(enum.Enum):
    """How a request ended, other than with its answer. The value is ``error.code`` on every surface."""

    INVALID_REQUEST = "invalid_request"
    UNSUPPORTED_ENDPOINT = "unsupported_endpoint"
    INVALID_API_KEY = "invalid_api_key"
    PERMISSION_DENIED = "permission_denied"
    NODE_RETIRED = "node_retired"
    MODEL_NOT_FOUND = "model_not_found"
    NOT_FOUND = "not_found"
    METHOD_NOT_ALLOWED = "method_not_allowed"
    REQUEST_TIMEOUT = "request_timeout"
    WORKLOAD_ACTIVE = "workload_active"
    IDEMPOTENCY_MISMATCH = "idempotency_mismatch"
    IDEMPOTENCY_OUTPUT_GONE = "idempotency_output_gone"
    STALE_GENERATION = "stale_generation"
    DOCUMENT_WANTED = "document_wanted"
    PAYLOAD_TOO_LARGE = "payload_too_large"
    HEAD_TOO_LARGE = "head_too_large"
    QUOTA_EXCEEDED = "quota_exceeded"
    RATE_LIMITED = "rate_limited"
    QUEUE_FULL = "queue_full"
    DEADLINE_UNREACHABLE = "deadline_unreachable"
    CANCELLED_BY_CALLER = "cancelled_by_caller"
    ENGINE_FAILED = "engine_failed"
    NO_CAPACITY = "no_capacity"
    NO_PLACEMENT = "no_placement"
    STARTING = "starting"
    DRAINING = "draining"
    NOT_LEADER = "not_leader"
    STORE_UNAVAILABLE = "store_unavailable"
    RECEIPT_UNAVAILABLE = "receipt_unavailable"
    RETENTION_UNAVAILABLE = "retention_unavailable"
    DEADLINE_EXCEEDED = "deadline_exceeded"
    INTERNAL = "internal"

    @property
    def row(self) -> "OutcomeRow":
        return TABLE[self]


class WebSocketFrame(enum.Enum):
    """The server frame that tells a WebSocket client of an outcome."""

    FAILED = "failed"
    CANCELLED = "cancelled"


@attrs.frozen(kw_only=True)
class OutcomeRow:
    """What each surface says. ``exit_code`` is the command line's (BSD sysexits where one fits)."""

    http_status: int
    error_type: str
    retry: bool
    exit_code: int
    retry_after_ms: int | None = None
    """Default of ``Retry-After`` when the refusal itself doesn't know better; set on each 429 and 503."""
    frame: WebSocketFrame = WebSocketFrame.FAILED


_BAD = "invalid_request_error"
_SERVER = "server_error"


def _row(
    status: int, error_type: str, exit_code: int, *, retry: bool = False, retry_after_ms: int | None = None
) -> OutcomeRow:
    return OutcomeRow(
        http_status=status, error_type=error_type, retry=retry, exit_code=exit_code, retry_after_ms=retry_after_ms
    )


TABLE: dict[Outcome, OutcomeRow] = {
    Outcome.INVALID_REQUEST: _row(400, _BAD, 65),
    Outcome.UNSUPPORTED_ENDPOINT: _row(400, _BAD, 65),
    Outcome.INVALID_API_KEY: _row(401, "authentication_error", 77),
    Outcome.PERMISSION_DENIED: _row(403, "permission_error", 77),
    Outcome.NODE_RETIRED: _row(403, "permission_error", 77),
    Outcome.MODEL_NOT_FOUND: _row(404, _BAD, 66),
    Outcome.NOT_FOUND: _row(404, _BAD, 66),
    Outcome.METHOD_NOT_ALLOWED: _row(405, _BAD, 65),
    Outcome.REQUEST_TIMEOUT: _row(408, _BAD, 65),
    Outcome.WORKLOAD_ACTIVE: _row(409, _BAD, 75),
    Outcome.IDEMPOTENCY_MISMATCH: _row(409, _BAD, 65),
    Outcome.IDEMPOTENCY_OUTPUT_GONE: _row(409, _BAD, 65),
    Outcome.STALE_GENERATION: _row(409, _BAD, 65),
    Outcome.DOCUMENT_WANTED: _row(409, _BAD, 65),
    Outcome.PAYLOAD_TOO_LARGE: _row(413, _BAD, 65),
    Outcome.HEAD_TOO_LARGE: _row(431, _BAD, 65),
    Outcome.QUOTA_EXCEEDED: _row(429, "insufficient_quota", 75, retry=True, retry_after_ms=60_000),
    Outcome.RATE_LIMITED: _row(429, "rate_limit_error", 75, retry=True, retry_after_ms=1_000),
    Outcome.QUEUE_FULL: _row(429, "rate_limit_error", 75, retry=True, retry_after_ms=1_000),
    Outcome.DEADLINE_UNREACHABLE: _row(429, "rate_limit_error", 75, retry=True, retry_after_ms=1_000),
    Outcome.CANCELLED_BY_CALLER: OutcomeRow(
        http_status=499,
        error_type=_BAD,
        retry=False,
        exit_code=130,
        frame=WebSocketFrame.CANCELLED,
    ),
    Outcome.ENGINE_FAILED: _row(502, _SERVER, 69, retry=True),
    Outcome.NO_CAPACITY: _row(503, _SERVER, 75, retry=True, retry_after_ms=5_000),
    Outcome.NO_PLACEMENT: _row(503, _SERVER, 75, retry=True, retry_after_ms=30_000),
    Outcome.STARTING: _row(503, _SERVER, 75, retry=True, retry_after_ms=2_000),
    Outcome.DRAINING: _row(503, _SERVER, 75, retry=True, retry_after_ms=5_000),
    Outcome.NOT_LEADER: _row(503, _SERVER, 75, retry=True, retry_after_ms=2_000),
    Outcome.STORE_UNAVAILABLE: _row(503, _SERVER, 75, retry=True, retry_after_ms=2_000),
    Outcome.RECEIPT_UNAVAILABLE: _row(503, _SERVER, 75, retry_after_ms=2_000),
    Outcome.RETENTION_UNAVAILABLE: _row(503, _SERVER, 75, retry=True, retry_after_ms=30_000),
    Outcome.DEADLINE_EXCEEDED: _row(504, _SERVER, 75),
    Outcome.INTERNAL: _row(500, _SERVER, 70),
}


@attrs.frozen(kw_only=True)
class Refusal:
    """One refusal, ready to be told: the outcome, fixed text with the caller's own values, the field
    at fault, and when to come back. It never holds a host, path, container, stack or topology; where the
    leader answers nodes is told to nodes alone."""

    outcome: Outcome
    message: str
    param: str | None = None
    retry_after_ms: int | None = None
    allowances: Allowances = UNLIMITED
    """What is left of the limits that refused."""
    receipt: JsonValue = None
    """Of the workload that stands in the way, where that has ended."""
    leader_node_url: str | None = None
    """On the node plane alone: where the controller that leads answers nodes, as far as this one knows."""

    @property
    def row(self) -> OutcomeRow:
        return self.outcome.row

    @property
    def wait_ms(self) -> int | None:
        """What ``Retry-After`` says: the refusal's own knowledge, else the table's default."""
        return self.row.retry_after_ms if self.retry_after_ms is None else self.retry_after_ms


def error_document(refusal: Refusal, request_id: str) -> dict[str, JsonValue]:
    """The one error shape of every surface."""
    receipt: dict[str, JsonValue] = {} if refusal.receipt is None else {"receipt": refusal.receipt}
    leader: dict[str, JsonValue] = (
        {} if refusal.leader_node_url is None else {"leader_node_url": refusal.leader_node_url}
    )
    return {
        "error": {
            "message": refusal.message,
            "type": refusal.row.error_type,
            "param": refusal.param,
            "code": refusal.outcome.value,
            "retryable": refusal.row.retry,
            "request_id": request_id,
            **receipt,
            **leader,
        }
    }
