"""``/openapi.json``: the routes and the contract's types as an OpenAPI 3.1 document.

Nothing is written twice: routes come from ``routes``, schemas from the attrs values, statuses and codes of errors
from the outcome table. Source: https://spec.openapis.org/oas/v3.1.1
"""

from typing import Any, Final

from lunanexa_adapters.asgi.call import FORM_TYPE
from lunanexa_adapters.asgi.route import Parameter, Plane, Route
from lunanexa_core.contract.catalog import STRICT
from lunanexa_core.contract.data_plane import ErrorDocument, NotReady
from lunanexa_core.contract.schema import SchemaBook
from lunanexa_core.deployment import DeploymentSpec
from lunanexa_core.outcomes import TABLE, Outcome

_DESCRIPTION: Final = """\
An error has one shape everywhere. A route that is asked with another method answers 405 `method_not_allowed` with \
`Allow`; HEAD is answered wherever GET is; other dialects of the OpenAI API answer 400 `unsupported_endpoint`. \
In documents of the operator and node planes an integer is written without a fraction."""
_SERVER: Final = (
    *(Outcome.INVALID_REQUEST, Outcome.REQUEST_TIMEOUT, Outcome.HEAD_TOO_LARGE, Outcome.PAYLOAD_TOO_LARGE),
    *(Outcome.NO_CAPACITY, Outcome.INTERNAL),
)
"""What any route may be refused with, mostly before it is reached."""
_SECURITY: Final = {
    Plane.PROBES: (),
    Plane.DATA: ("apiKey", "apiKeyHeader"),
    Plane.OPERATOR: ("operatorToken",),
    Plane.NODE: ("nodeCertificate",),
}
_SCHEMES: Final = {
    "apiKey": {"type": "http", "scheme": "bearer", "description": "A key that holds the role *inference*."},
    "apiKeyHeader": {"type": "apiKey", "in": "header", "name": "x-api-key", "description": "The same key."},
    "operatorToken": {"type": "http", "scheme": "bearer", "description": "The operator token."},
    "nodeCertificate": {"type": "mutualTLS", "description": "A certificate of the node that the path names."},
}
_TEXT: Final = {"type": "string"}
_COUNT: Final = {"type": "integer", "minimum": 0}
_HEADERS: Final[dict[str, Any]] = {
    "x-request-id": (_TEXT, "The caller's own where it is an identifier, else a new one."),
    "x-lunanexa-workload-id": (_TEXT, "The admitted workload."),
    "x-lunanexa-queue-ms": (_COUNT, "Time in the queue."),
    "x-lunanexa-overhead-ms": ({"type": "number", "minimum": 0}, "Time that the service itself added."),
    "x-lunanexa-key-id": (_TEXT, "Who signed the body."),
    "x-lunanexa-signature": (_TEXT, "Ed25519 over the body as sent, hexadecimal."),
    "x-ratelimit-limit-requests": (_COUNT, "Requests a minute of a key that has such a limit."),
    "x-ratelimit-remaining-requests": (_COUNT, "What is left of them."),
    "x-ratelimit-reset-requests": (_TEXT, "When all of them are there again, as in `61s`."),
    "x-ratelimit-limit-tokens": (_COUNT, "Tokens a minute of a key that has such a limit."),
    "x-ratelimit-remaining-tokens": (_COUNT, "What is left of them."),
    "x-ratelimit-reset-tokens": (_TEXT, "When all of them are there again, as in `61s`."),
    "x-should-retry": ({"enum": ["true", "false"]}, "Whether the same request may succeed later."),
    "retry-after": (_COUNT, "Seconds until a repetition makes sense."),
    "retry-after-ms": (_COUNT, "The same in milliseconds."),
}
_RATES: Final = tuple(name for name in _HEADERS if name.startswith("x-ratelimit-"))
_ALWAYS: Final = ("x-request-id",)
_ON_ERROR: Final = (*_ALWAYS, "x-should-retry")
_ON_WAIT: Final = (*_ON_ERROR, "retry-after", "retry-after-ms")
_ON_INFERENCE: Final = (
    *(*_ALWAYS, "x-lunanexa-workload-id", "x-lunanexa-queue-ms", "x-lunanexa-overhead-ms"),
    *_RATES,
)
_ON_SIGNED: Final = (*_ALWAYS, "x-lunanexa-key-id", "x-lunanexa-signature")


def openapi_document(version: str, routes: tuple[Route, ...]) -> dict[str, Any]:
    """The document of these routes."""
    book = SchemaBook(closed=STRICT)
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method] = _operation(route, book)
    return {
        "openapi": "3.1.0",
        "info": {"title": "LunaNexa", "version": version, "description": _DESCRIPTION},
        "servers": [{"url": "/"}],
        "tags": [{"name": plane.value} for plane in Plane],
        "paths": paths,
        "components": {
            "schemas": book.schemas,
            "headers": {name: {"schema": schema, "description": told} for name, (schema, told) in _HEADERS.items()},
            "securitySchemes": _SCHEMES,
        },
    }


def _operation(route: Route, book: SchemaBook) -> dict[str, Any]:
    words = route.path.replace("{", "").replace("}", "").strip("/").replace(".", "/").split("/")
    operation: dict[str, Any] = {
        "operationId": "_".join((route.method, *words)),
        "summary": route.summary,
        "tags": [route.plane.value],
        "security": [] if route.anonymous else [{scheme: []} for scheme in _SECURITY[route.plane]],
        "responses": {**_answers(route, book), **_errors(route, book)},
    }
    if route.parameters:
        operation["parameters"] = [_parameter(parameter) for parameter in route.parameters]
    if route.body is not None:
        schema = _body(route.body, book)
        content = {FORM_TYPE: {"schema": schema}} if route.form else _json(schema)
        operation["requestBody"] = {"required": True, "content": content}
    return operation


def _parameter(parameter: Parameter) -> dict[str, Any]:
    told = {"description": parameter.described} if parameter.described else {}
    return {
        "name": parameter.name,
        "in": parameter.place,
        "required": parameter.required or parameter.place == "path",
        "schema": parameter.schema,
        **told,
    }


def _body(kind: type, book: SchemaBook) -> dict[str, Any]:
    schema: dict[str, Any] = dict(book.of(kind))
    if kind is not DeploymentSpec:
        return schema
    # The address names it; the body may leave it out.
    inline: Any = book.schemas[kind.__name__]
    return {**inline, "required": [name for name in inline["required"] if name != "deployment"]}


def _answers(route: Route, book: SchemaBook) -> dict[str, Any]:
    if route.engine:
        others: dict[str, Any] = {media_type: {"schema": {}} for media_type in ("text/event-stream", *route.media)}
        content = {**_json({"type": "object"}), **others}
        return {"200": _response("The engine's own answer, unchanged.", content, _ON_INFERENCE)}
    text = isinstance(route.answer, str)
    # A schema of server-sent events would be that of each event's data.
    schema = {} if route.answer == "text/event-stream" else _TEXT
    content = {route.answer: {"schema": schema}} if text else _json(dict(book.of(route.answer)))
    found = {"200": _response(route.summary + ".", content, _ON_SIGNED if route.signed_answer else _ALWAYS)}
    if route.nothing:
        found["204"] = _response("Nothing new.", None, _ALWAYS)
    return found


def _errors(route: Route, book: SchemaBook) -> dict[str, Any]:
    """By status, with the codes that it may bear."""
    error, codes = dict(book.of(ErrorDocument)), dict[int, list[str]]()
    # A value with a slash in it leads elsewhere.
    elsewhere = (Outcome.NOT_FOUND,) if "{" in route.path else ()
    for outcome in dict.fromkeys((*route.refusals, *_SERVER, *elsewhere)):
        codes.setdefault(TABLE[outcome].http_status, []).append(f"`{outcome.value}`")
    found: dict[str, Any] = {}
    for status, listed in sorted(codes.items()):
        schema = error
        if route.path == "/ready" and status == 503:
            schema = dict(book.of(NotReady))
        elif route.fails_with is not None:
            schema = {"anyOf": [error, dict(book.of(route.fails_with))]}
        elif route.engine and status in (400, 404, 409, 413, 429):
            # Also the engine's own refusal, in its own shape.
            schema = {"anyOf": [error, {"type": "object"}]}
        headers: tuple[str, ...] = _ON_WAIT if status in (429, 503) else _ON_ERROR
        if route.engine and status == 429:
            headers += _RATES
        found[str(status)] = _response(", ".join(listed) + ".", _json(schema), headers)
    if route.engine:
        found["4XX"] = _response("The engine's own refusal, as it is.", _json({}), _ON_ERROR)
    return found


def _response(told: str, content: dict[str, Any] | None, headers: tuple[str, ...]) -> dict[str, Any]:
    listed = {name: {"$ref": f"#/components/headers/{name}"} for name in headers}
    response: dict[str, Any] = {"description": told, "headers": listed}
    return response if content is None else {**response, "content": content}


def _json(schema: dict[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}
