"""Refusals of the engine in the shape in which OpenAI's API tells them.

Source: https://platform.openai.com/docs/guides/error-codes; types and codes as recorded from real servers.
"""

import attrs

INVALID_REQUEST = "invalid_request_error"


@attrs.frozen(kw_only=True)
class ApiError:
    status: int
    message: str
    type: str = INVALID_REQUEST
    param: str | None = None
    code: str | None = None
    headers: tuple[tuple[bytes, bytes], ...] = ()

    def document(self) -> dict[str, object]:
        return {"error": {"message": self.message, "type": self.type, "param": self.param, "code": self.code}}


def invalid(param: str, message: str, code: str | None = None) -> ApiError:
    return ApiError(status=400, message=message, param=param, code=code)


def unauthorised() -> ApiError:
    return ApiError(
        status=401,
        message="Incorrect or missing API key. Send it as 'Authorization: Bearer KEY'.",
        type="authentication_error",
        code="invalid_api_key",
        headers=((b"www-authenticate", b"Bearer"),),
    )


def unknown_route(path: str) -> ApiError:
    return ApiError(status=404, message=f"Unknown request URL: {path[:200]}.", code="not_found")


def wrong_method(method: str, allowed: str) -> ApiError:
    return ApiError(
        status=405,
        message=f"Method {method[:20]} is not allowed here; use {allowed}.",
        code="method_not_allowed",
        headers=((b"allow", allowed.encode("ascii")),),
    )


def unknown_model(model: str) -> ApiError:
    return ApiError(
        status=404, message=f"The model '{model[:200]}' does not exist.", param="model", code="model_not_found"
    )


def body_too_large(limit_bytes: int) -> ApiError:
    return ApiError(
        status=413,
        message=f"The request body is larger than {limit_bytes} bytes.",
        code="payload_too_large",
        headers=((b"connection", b"close"),),
    )


def context_exceeded(param: str, limit_tokens: int, used: str) -> ApiError:
    return invalid(
        param,
        f"This model's maximum context length is {limit_tokens} tokens. However, your request needs {used}.",
        "context_length_exceeded",
    )


def queue_full(waiting: int) -> ApiError:
    return ApiError(
        status=429,
        message=f"All slots are busy and {waiting} requests wait already. Try again later.",
        type="rate_limit_error",
        code="queue_full",
        headers=((b"retry-after", b"1"),),
    )


def told_to_refuse(status: int) -> ApiError:
    """The answer of the faults ``refuse`` and ``unhealthy``."""
    return ApiError(
        status=status,
        message="This engine was told to refuse.",
        type=INVALID_REQUEST if status < 500 else "server_error",
        code="injected_fault",
        headers=((b"retry-after", b"1"),) if status in (429, 503) else (),
    )


def told_to_fail() -> ApiError:
    """What the fault ``error-frame`` tells within a 200."""
    return ApiError(status=500, message="This engine was told to fail.", type="server_error", code="injected_fault")


_SERVER_REFUSALS = {
    400: "The request is not valid HTTP/1.1.",
    408: "The request did not arrive in time.",
    413: "The request body is too large.",
    431: "The request head is too large.",
    500: "The engine failed.",
    503: "Too many connections.",
    505: "Only HTTP/1.1 is served.",
}


def server_refusal(status: int) -> ApiError:
    """What the HTTP server refuses before the application sees it, in the same shape."""
    kind = INVALID_REQUEST if status < 500 else "server_error"
    return ApiError(status=status, message=_SERVER_REFUSALS.get(status, f"HTTP status {status}."), type=kind)
