"""A controller as its callers see it: JSON questions with a bearer token, over the ``http_client`` port."""

import json
from typing import Any, Final

import attrs

from lunanexa_core.canonical import JsonValue
from lunanexa_core.outcomes import TABLE, Outcome
from lunanexa_ports.errors import PortFault
from lunanexa_ports.http_client import HttpClient, HttpRequest

ANSWER_LIMIT_BYTES: Final = 16 << 20
HEAD_TIMEOUT_MS: Final = 15_000
UNNAMED_EXIT_CODE: Final = 69
"""sysexits' EX_UNAVAILABLE, for a refusal whose code this version does not know."""
_REQUEST_AT_FAULT: Final = frozenset({400, 413, 422})
"""An engine's own refusals pass through with codes of their own."""


@attrs.frozen(kw_only=True)
class PlaneRefusal:
    """The controller's answer was an error. ``code`` is a code of the outcome table, where it is one of ours."""

    status: int
    code: str
    message: str
    param: str | None = None
    """The field at fault."""

    @property
    def text(self) -> str:
        """The message, with the field where the message itself does not name it."""
        return self.message if self.param is None or self.param in self.message else f"{self.param}: {self.message}"

    @property
    def exit_code(self) -> int:
        try:
            return TABLE[Outcome(self.code)].exit_code
        except ValueError:
            at_fault = self.status in _REQUEST_AT_FAULT
            return TABLE[Outcome.INVALID_REQUEST].exit_code if at_fault else UNNAMED_EXIT_CODE


@attrs.frozen(kw_only=True)
class Plane:
    """One controller's address, and the token to show there."""

    http: HttpClient
    host: str
    port: int
    token: str | None = attrs.field(default=None, repr=False)

    async def ask(
        self, method: str, target: str, document: JsonValue = None, *, timeout_ms: int = HEAD_TIMEOUT_MS
    ) -> Any:
        """The JSON answer, or a :class:`PlaneRefusal`. Raises ``PortUnavailable`` when nothing answers and
        ``PortFault`` when what answers is no controller."""
        async with self.http.exchange(self.request(method, target, document, timeout_ms=timeout_ms)) as response:
            body = await response.read(ANSWER_LIMIT_BYTES)
            status = response.status
        answer = parse_json(body)
        if 200 <= status < 300 and answer is not None:
            return answer
        if status >= 400:
            return refusal_of(status, answer)
        raise PortFault(f"{self.host}:{self.port}{target}: answer {status} is not a controller's")

    def request(
        self, method: str, target: str, document: JsonValue = None, *, timeout_ms: int | None = HEAD_TIMEOUT_MS
    ) -> HttpRequest:
        """The request, for callers that stream its answer."""
        headers: list[tuple[bytes, bytes]] = [(b"accept", b"application/json")]
        if self.token is not None:
            headers.append((b"authorization", b"Bearer " + self.token.encode()))
        if document is not None:
            headers.append((b"content-type", b"application/json"))
        return HttpRequest(
            method=method,
            host=self.host,
            port=self.port,
            target=target,
            headers=tuple(headers),
            body=b"" if document is None else json.dumps(document, ensure_ascii=False).encode(),
            head_timeout_ms=timeout_ms,
        )


def parse_json(body: bytes | str) -> Any:
    """The value, or ``None`` when it is no JSON."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


def refusal_of(status: int, answer: object) -> PlaneRefusal:
    """The error document's content; what is no error document of ours is named by its status."""
    error = answer.get("error") if isinstance(answer, dict) else None
    if not isinstance(error, dict):
        return PlaneRefusal(status=status, code="", message=f"HTTP status {status}")
    code, message, param = error.get("code"), error.get("message"), error.get("param")
    return PlaneRefusal(
        status=status,
        code=code if isinstance(code, str) else "",
        message=message if isinstance(message, str) else f"HTTP status {status}",
        param=param if isinstance(param, str) else None,
    )
