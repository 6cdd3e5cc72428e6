"""Reads errors as servers tell of them, and chooses their class.

``error.code`` chooses it. A code that this version does not know, an engine's own for example, is classed by the
HTTP status, so that a newer server is still understood.
"""

from collections.abc import Mapping
from typing import Any, Final

from lunanexa_client.errors import (
    CLASSES,
    AuthenticationError,
    Conflict,
    DeadlineExceeded,
    EngineFailed,
    ErrorFacts,
    InternalError,
    InvalidRequest,
    LunaNexaError,
    NotFound,
    PermissionDenied,
    ProtocolError,
    RateLimited,
    ResumeGone,
    Unavailable,
    WorkloadCancelled,
    known_outcome,
)
from lunanexa_client.receipts import receipt_of
from lunanexa_core.contract.frames import RESUME_GONE
from lunanexa_core.outcomes import TABLE, Outcome

_BY_STATUS: Final[Mapping[int, type[LunaNexaError]]] = {
    401: AuthenticationError,
    403: PermissionDenied,
    404: NotFound,
    409: Conflict,
    429: RateLimited,
    499: WorkloadCancelled,
    502: EngineFailed,
    503: Unavailable,
    504: DeadlineExceeded,
}
_BY_TYPE: Final[Mapping[str, int]] = {
    row.error_type: row.http_status for row in TABLE.values() if row.error_type != "server_error"
} | {"invalid_request_error": 400}


def class_of(code: str, status: int | None) -> type[LunaNexaError]:
    """The class of an error with this code, and this HTTP status where there was one."""
    outcome = known_outcome(code)
    if outcome is not None:
        return CLASSES[outcome]
    if code == RESUME_GONE:
        return ResumeGone
    if status is None or status >= 500:
        return _BY_STATUS.get(status or 500, InternalError)
    if status < 400:  # A redirect, which is not followed.
        return ProtocolError
    return _BY_STATUS.get(status, InvalidRequest)


def _implied_status(error: Mapping[str, Any]) -> int | None:
    """Engines put their status into ``code``, or say by ``type`` who is at fault."""
    code = error.get("code")
    if isinstance(code, int) and 400 <= code <= 599:
        return code
    return _BY_TYPE.get(_text(error.get("type")) or "")


def error_of(document: object, *, status: int | None = None, headers: Mapping[str, str] | None = None) -> LunaNexaError:
    """The error that an ``error`` object (or whatever came in its place) tells of. Header names are lower case."""
    headers = {} if headers is None else headers
    error = document if isinstance(document, dict) else {}
    code = _text(error.get("code")) or ""
    outcome = known_outcome(code)
    message = _text(error.get("message")) or (f"HTTP status {status}" if status else "an error without a message")
    facts = ErrorFacts(
        code=code,
        param=_text(error.get("param")),
        retryable=_retryable(headers.get("x-should-retry"), error.get("retryable"), outcome),
        status=status,
        request_id=_text(error.get("request_id")) or headers.get("x-request-id"),
        workload_id=headers.get("x-lunanexa-workload-id") or _text(error.get("workload_id")),
        retry_after_ms=_retry_after_ms(headers, error.get("retry_after_ms")),
        receipt=receipt_of(error.get("receipt")),
    )
    return class_of(code, _implied_status(error) if status is None else status)(message, facts)


def error_of_answer(
    document: object, *, status: int | None = None, headers: Mapping[str, str] | None = None
) -> LunaNexaError:
    """The error in an error document, or in the response document of a workload, which has its receipt beside it."""
    if not isinstance(document, dict) or not isinstance(document.get("error"), dict):
        return error_of(None, status=status, headers=headers)
    error, beside = document["error"], {}
    if document.get("receipt") is not None:  # How it ended and what it used stand beside its place in the ledger.
        beside["receipt"] = {name: value for name, value in document.items() if name not in ("error", "output")}
    if document.get("workload_id") is not None:
        beside["workload_id"] = document["workload_id"]
    return error_of(beside | error, status=status, headers=headers)


def _retryable(header: str | None, member: object, outcome: Outcome | None) -> bool:
    if header is not None:
        return header == "true"
    if isinstance(member, bool):
        return member
    return outcome is not None and TABLE[outcome].retry


def _retry_after_ms(headers: Mapping[str, str], member: object) -> int | None:
    exact, seconds = headers.get("retry-after-ms", ""), headers.get("retry-after", "")
    if _is_count(exact):
        return int(exact)
    if _is_count(seconds):
        return int(seconds) * 1000
    # The other form of Retry-After is a date, which would compare the clocks of two machines.
    return member if isinstance(member, int) and not isinstance(member, bool) and member >= 0 else None


def _is_count(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 12


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None
