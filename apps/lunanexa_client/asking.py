"""One call: requests and retries until there is an answer, an error that stays, or the deadline."""

import json
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from typing import Any, Final, TypeVar
from urllib.parse import quote

import attrs
import trio

from lunanexa_client.answers import Answer, AnswerHead, head_of
from lunanexa_client.deadline import Deadline, deadline_in
from lunanexa_client.errors import ConnectionFailed, ErrorFacts, LunaNexaError, ProtocolError
from lunanexa_client.events import EventStream, StreamEnd
from lunanexa_client.refusals import error_of_answer
from lunanexa_client.retries import wait_ms
from lunanexa_client.settings import DEADLINE_MS_MAX, CallOptions, ClientSettings
from lunanexa_core.terms import DEADLINE_HEADER, IDEMPOTENCY_HEADER
from lunanexa_ports.http_client import (
    Headers,
    HttpBroken,
    HttpClient,
    HttpRequest,
    HttpResponse,
    HttpUnreachable,
)
from lunanexa_ports.ids import IdSource

T = TypeVar("T")

EVENT_STREAM: Final = "text/event-stream"
_ERROR_BYTES: Final = 1 << 20


@attrs.frozen(kw_only=True)
class Question:
    """A request as the caller means it. ``target`` is below the base URL (``/v1/models``)."""

    method: str
    target: str
    document: Any = None
    options: CallOptions = attrs.Factory(CallOptions)
    accept: str = "application/json"
    repeatable: bool = False
    """Whether it may be sent again although the server may have seen it."""


class Asker:
    """Asks one service with one key, over any ``http_client`` port."""

    def __init__(self, http: HttpClient, settings: ClientSettings, ids: IdSource) -> None:
        self.settings = settings
        self._http = http
        self._ids = ids

    async def ask(self, question: Question) -> Answer:
        """The whole answer, JSON. Raises :class:`LunaNexaError`."""
        head, body = await self.whole(question)
        try:
            return Answer(head, json.loads(body))
        except (ValueError, RecursionError):
            raise ProtocolError(f"{question.target}: the answer is no JSON", _facts(head)) from None

    async def whole(self, question: Question) -> tuple[AnswerHead, bytes]:
        """The whole answer, whatever it is made of. Raises :class:`LunaNexaError`."""
        deadline = self._deadline(question)

        async def attempt(request: HttpRequest) -> tuple[AnswerHead, bytes]:
            async with self._http.exchange(request) as response:
                head = head_of(response.status, response.headers)
                body = await _read(response, self.settings.limits.answer_bytes)
            if not 200 <= head.status < 300:
                raise _error(head, body)
            return head, body

        with deadline.enforced():
            return await self._retried(question, deadline, attempt)

    async def stream(self, question: Question, *, end: StreamEnd) -> EventStream:
        """The events of the answer, once its head is there. Until then it is retried like any call, after that
        never. The caller closes what it gets. Raises :class:`LunaNexaError`."""
        deadline = self._deadline(question)

        async def attempt(request: HttpRequest) -> EventStream:
            async with AsyncExitStack() as exchange:
                response = await exchange.enter_async_context(self._http.exchange(request))
                head = head_of(response.status, response.headers)
                if not 200 <= head.status < 300:
                    raise _error(head, await _read(response, _ERROR_BYTES))
                kind = head.headers.get("content-type", EVENT_STREAM)
                if kind.partition(";")[0].strip().lower() != EVENT_STREAM:
                    raise ProtocolError(f"{question.target}: the answer is no stream of events", _facts(head))
                return EventStream(
                    head=head,
                    response=response,
                    exchange=exchange.pop_all(),
                    deadline=deadline,
                    limits=self.settings.limits,
                    end=end,
                )

        with deadline.enforced():
            return await self._retried(question, deadline, attempt)

    def new_key(self) -> str:
        """A fresh idempotency key."""
        return self._ids.new("idem")

    def _deadline(self, question: Question) -> Deadline:
        budget_ms = question.options.get("deadline_ms", self.settings.deadline_ms)
        if not 1 <= budget_ms <= DEADLINE_MS_MAX:
            raise ValueError(f"deadline_ms: must be from 1 to {DEADLINE_MS_MAX}")
        return deadline_in(budget_ms, grace_ms=self.settings.grace_ms, request=question.target)

    async def _retried(
        self, question: Question, deadline: Deadline, attempt: Callable[[HttpRequest], Awaitable[T]]
    ) -> T:
        done = 0
        error: LunaNexaError
        while True:
            remaining_ms = deadline.remaining_ms()
            try:
                return await attempt(self._request(question, remaining_ms))
            except HttpUnreachable as unreachable:
                error = _connection_failed(unreachable, repeatable=True)
            except HttpBroken as broken:
                error = _connection_failed(broken, repeatable=question.repeatable)
            except LunaNexaError as refused:
                error = refused
            wait = wait_ms(
                self.settings.retries,
                done=done,
                error=error,
                remaining_ms=deadline.remaining_ms(),
                below=self._ids.below,
            )
            if wait is None:
                raise error
            await trio.sleep(wait / 1000)
            done += 1

    def _request(self, question: Question, remaining_ms: int) -> HttpRequest:
        address = self.settings.address
        return HttpRequest(
            method=question.method,
            host=address.host,
            port=address.port,
            target=f"{address.prefix}{question.target}",
            headers=request_headers(self.settings, question, max(1, remaining_ms)),
            body=b"" if question.document is None else body_of(question.document),
            connect_timeout_ms=self.settings.connect_timeout_ms,
        )


def request_headers(settings: ClientSettings, question: Question, remaining_ms: int) -> Headers:
    """Ours, and the caller's own, which win. Raises ``ValueError`` for what no header can hold."""
    headers = {"accept": question.accept, DEADLINE_HEADER: str(remaining_ms)}
    if question.document is not None:
        headers["content-type"] = "application/json"
    key = question.options.get("idempotency_key")
    if key is not None:
        headers[IDEMPOTENCY_HEADER] = key
    return encoded_headers(settings, {**headers, **question.options.get("headers", {})})


def encoded_headers(settings: ClientSettings, headers: Mapping[str, str]) -> Headers:
    """``headers`` in bytes, with the key. Raises ``ValueError``."""
    found = {"user-agent": "lunanexa-client"}
    if settings.api_key is not None:
        found["authorization"] = f"Bearer {settings.api_key}"
    for name, value in headers.items():
        if not (name.isascii() and value.isascii() and value.isprintable()):
            raise ValueError(f"headers: {name!r} and its value must be printable ASCII")
        found[name.lower()] = value
    return tuple((name.encode(), value.encode()) for name, value in found.items())


def body_of(document: Mapping[str, Any]) -> bytes:
    """The JSON bytes. Raises ``ValueError`` for what has no JSON form."""
    try:
        return json.dumps(document, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    except (TypeError, RecursionError) as error:
        raise ValueError(f"body: has no JSON form ({error})") from None


def segment(identifier: str) -> str:
    """One segment of a path, whatever it holds."""
    return quote(identifier, safe="")


async def _read(response: HttpResponse, limit_bytes: int) -> bytes:
    parts, size = [], 0
    async for part in response.chunks():
        size += len(part)
        if size > limit_bytes:
            raise ProtocolError(f"the answer is longer than {limit_bytes} bytes")
        parts.append(part)
    return b"".join(parts)


def _error(head: AnswerHead, body: bytes) -> LunaNexaError:
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        document = None
    return error_of_answer(document, status=head.status, headers=head.headers)


def _facts(head: AnswerHead) -> ErrorFacts:
    return ErrorFacts(code=ProtocolError.default_code, status=head.status, request_id=head.request_id)


def _connection_failed(error: HttpUnreachable | HttpBroken, *, repeatable: bool) -> ConnectionFailed:
    failed = ConnectionFailed(str(error), ErrorFacts(code=ConnectionFailed.default_code, retryable=repeatable))
    failed.__cause__ = error
    return failed
