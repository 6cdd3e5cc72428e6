"""The one error shape, for every surface and for what the server itself refuses."""

import json
from collections.abc import Iterable
from typing import Final

import attrs

from lunanexa_core.outcomes import Outcome, Refusal, error_document

HeaderList = list[tuple[bytes, bytes]]

_SERVER_STATUS: Final = {
    400: Refusal(outcome=Outcome.INVALID_REQUEST, message="The request is not valid HTTP."),
    404: Refusal(outcome=Outcome.NOT_FOUND, message="There is no such address."),
    405: Refusal(outcome=Outcome.METHOD_NOT_ALLOWED, message="The method is not allowed here."),
    408: Refusal(outcome=Outcome.REQUEST_TIMEOUT, message="The request took too long to arrive."),
    413: Refusal(outcome=Outcome.PAYLOAD_TOO_LARGE, message="The request body is too large."),
    431: Refusal(outcome=Outcome.HEAD_TOO_LARGE, message="The request's head is too large."),
    503: Refusal(outcome=Outcome.NO_CAPACITY, message="The service has no room for another connection."),
}
INTERNAL: Final = Refusal(outcome=Outcome.INTERNAL, message="An internal error. The log of the service has it.")
UNAVAILABLE: Final = Refusal(outcome=Outcome.STORE_UNAVAILABLE, message="The service is not available right now.")


@attrs.frozen(kw_only=True)
class ErrorAnswer:
    """A whole error answer."""

    status: int
    headers: HeaderList
    body: bytes


def error_answer(refusal: Refusal, request_id: str, headers: Iterable[tuple[str, str]] = ()) -> ErrorAnswer:
    """What HTTP says of a refusal."""
    row = refusal.row
    body = json.dumps(error_document(refusal, request_id), separators=(",", ":")).encode()
    listed: HeaderList = [
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(body)),
        (b"cache-control", b"no-store"),
        (b"x-request-id", request_id.encode()),
        (b"x-should-retry", b"true" if row.retry else b"false"),
    ]
    wait_ms = refusal.wait_ms
    assert wait_ms is not None or row.http_status not in (429, 503), refusal.outcome
    if wait_ms is not None:
        # Whole seconds, rounded up: a client that comes early would only be refused again.
        listed += [(b"retry-after", b"%d" % -(-wait_ms // 1000)), (b"retry-after-ms", b"%d" % wait_ms)]
    listed += [(name.encode(), value.encode()) for name, value in headers]
    return ErrorAnswer(status=row.http_status, headers=listed, body=body)


def not_found(path: str, meant: str | None = None) -> Refusal:
    """No such address; ``meant`` is the one that is there."""
    hint = "" if meant is None else f" There is {_shown(meant)}: a base URL ends in /v1."
    return Refusal(outcome=Outcome.NOT_FOUND, message=f"There is no {_shown(path)} here.{hint}")


def method_not_allowed(method: str, allowed: str) -> Refusal:
    """The address is there, the method is not."""
    return Refusal(
        outcome=Outcome.METHOD_NOT_ALLOWED, message=f"{_shown(method)} is not allowed here; allowed: {allowed}."
    )


def too_large(limit_bytes: int) -> Refusal:
    """The body passes the limit."""
    return Refusal(outcome=Outcome.PAYLOAD_TOO_LARGE, message=f"The request body is larger than {limit_bytes} bytes.")


def invalid(message: str, param: str | None = None) -> Refusal:
    """Malformed."""
    return Refusal(outcome=Outcome.INVALID_REQUEST, message=message, param=param)


def render_error(status: int) -> tuple[HeaderList, bytes]:
    """Headers and body of an answer that the server makes without an application, which has no request id
    to show."""
    refusal = _SERVER_STATUS.get(status)
    if refusal is None:
        refusal = INTERNAL if status >= 500 else _SERVER_STATUS[400]
    answer = error_answer(refusal, "")
    left_out = (b"content-length", b"x-request-id")
    return [(name, value) for name, value in answer.headers if name not in left_out], answer.body


def _shown(text: str) -> str:
    return text[:200]
