"""How the control application reads requests and answers them: JSON values, and refusals in the one shape."""

import json
from collections.abc import Iterable
from typing import Any, Final

from quart import Response, request
from werkzeug.exceptions import HTTPException

from lunanexa_adapters.asgi.errors import INTERNAL, error_answer, invalid, method_not_allowed, not_found, too_large
from lunanexa_adapters.asgi.headers import bearer, is_number, request_id, text_header
from lunanexa_core.canonical import JsonValue, NotCanonical, strict_json
from lunanexa_core.ids import RequestId, is_identifier
from lunanexa_core.outcomes import Outcome, Refusal
from lunanexa_ports.asgi import Scope
from lunanexa_ports.ids import IdSource

BODY_BYTES_MAX: Final = 1024 * 1024
LIMIT_DEFAULT: Final = 50


class Refused(Exception):  # Quart's own way to end a handler early, with our value in it
    """What a request's form alone decides; the application's error handler makes the answer."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal


def secret() -> str | None:
    """The presented bearer secret."""
    found = bearer(_scope())
    if isinstance(found, Refusal):
        raise Refused(found)
    return found


def own_header(name: str) -> str | None:
    """A header as text."""
    found = text_header(_scope(), name.encode())
    if isinstance(found, Refusal):
        raise Refused(found)
    return found


async def read_body() -> bytes:
    """The whole body; over the limit Quart refuses."""
    data = await request.get_data(cache=False, as_text=False)
    assert isinstance(data, bytes)
    return data


def json_document(body: bytes) -> JsonValue:
    """The value that a body holds."""
    try:
        document: JsonValue = strict_json(body)
    except NotCanonical as error:
        raise Refused(invalid(f"The body is not a document of ours: {error}.")) from None
    return document


def identifier(text: str, param: str) -> str:
    """``text`` if it is an identifier."""
    if not is_identifier(text):
        raise Refused(invalid(f"'{param}' must be an identifier.", param))
    return text


def query_number(name: str, default: int | None = None) -> int | None:
    """A number in the address; ``default`` when it is not there."""
    text = request.args.get(name)
    if text is None:
        return default
    if not is_number(text):
        raise Refused(invalid(f"'{name}' must be a number.", name))
    return int(text)


def if_match() -> int | None:
    """The generation that a caller changes, where it names one."""
    text = request.headers.get("if-match")
    if text is None:
        return None
    digits = text.strip().removeprefix('"').removesuffix('"')
    if not is_number(digits):
        raise Refused(invalid("The header If-Match must be a generation.", "if-match"))
    return int(digits)


def query_limit() -> int:
    """How long a page shall be."""
    limit = query_number("limit", LIMIT_DEFAULT)
    assert limit is not None
    return limit


def _scope() -> Scope:
    scope: Any = request.scope
    assert isinstance(scope, dict)
    return scope


class Answers:
    """Makes responses to the current request."""

    def __init__(self, ids: IdSource) -> None:
        self._ids = ids

    @property
    def request(self) -> RequestId:
        return request_id(_scope(), self._ids)

    def reply(self, result: "JsonValue | Refusal") -> Response:
        """A driving port's answer."""
        if isinstance(result, Refusal):
            return self.refuse(result)
        return Response(json.dumps(result, separators=(",", ":")).encode(), content_type="application/json")

    def reply_bytes(self, result: bytes | Refusal) -> Response:
        """The same, where the answer is encoded already."""
        if isinstance(result, Refusal):
            return self.refuse(result)
        return Response(result, content_type="application/json")

    def refuse(self, refusal: Refusal, headers: Iterable[tuple[str, str]] = ()) -> Response:
        """A whole error answer."""
        answer = error_answer(refusal, self.request, headers)
        response = Response(answer.body, status=answer.status)
        for name, value in answer.headers:
            response.headers[name.decode()] = value.decode("latin-1")
        return response

    def refuse_http(self, error: HTTPException) -> Response:
        """What Quart itself refuses."""
        match error.code:
            case 404:
                return self.refuse(not_found(request.path))
            case 405:
                allowed = ", ".join(sorted(getattr(error, "valid_methods", None) or ()))
                return self.refuse(method_not_allowed(request.method, allowed), [("allow", allowed)])
            case 408:
                message = "The request took too long to arrive."
                return self.refuse(Refusal(outcome=Outcome.REQUEST_TIMEOUT, message=message))
            case 413:
                return self.refuse(too_large(BODY_BYTES_MAX), [("connection", "close")])
            case int(code) if 400 <= code < 500:
                return self.refuse(invalid("The request is not valid."))
            case _:
                return self.refuse(INTERNAL)
