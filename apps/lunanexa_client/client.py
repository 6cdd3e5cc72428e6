"""The Trio face: one client object, used by any number of tasks."""

from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self, Unpack
from urllib.parse import quote, urlencode

import trio

from lunanexa_adapters.http_client.http_client import H11HttpClient
from lunanexa_adapters.system.clock import SystemClock
from lunanexa_adapters.system.ids import SystemIds
from lunanexa_client.answers import Answer, Document, Model, Page, models_of, object_of, page_of
from lunanexa_client.asking import EVENT_STREAM, Asker, Question, encoded_headers, segment
from lunanexa_client.events import EventStream, StreamEnd
from lunanexa_client.operator import AsyncOperator
from lunanexa_client.settings import DEADLINE_MS_MAX, CallOptions, ClientSettings, client_settings
from lunanexa_core.terms import DEADLINE_HEADER
from lunanexa_core.workload import Dialect
from lunanexa_ports.http_client import HttpClient
from lunanexa_ports.ids import IdSource

if TYPE_CHECKING:
    from lunanexa_client.connection import Connection

WORKLOADS: Final = "workloads"
WORKLOADS_STREAM: Final = "workloads:stream"
_SAY_DONE: Final = frozenset({Dialect.CHAT.value, Dialect.COMPLETIONS.value})
_CLOSE_S: Final = 1.0


class AsyncClient:
    """Talks to one service with one key. An async context manager; leaving it closes its connections.

    Each call takes the keyword arguments of :class:`~lunanexa_client.settings.CallOptions` and raises
    :class:`~lunanexa_client.errors.LunaNexaError`; a wrong argument is a ``ValueError``. Cancelling a call closes
    its socket, which cancels the request at the server."""

    def __init__(
        self,
        base_url: str | None = None,
        api_key: str | None = None,
        *,
        ca_file: str | None = None,
        deadline_ms: int | None = None,
        max_retries: int | None = None,
        settings: ClientSettings | None = None,
        http: HttpClient | None = None,
        ids: IdSource | None = None,
    ) -> None:
        """Address and key that are not given come from LUNANEXA_URL and LUNANEXA_TOKEN. ``settings`` stands for all
        arguments before it; ``http`` and ``ids`` exchange the world, and a given ``http`` is left open. Raises
        ``ValueError`` for what can't be used, and ``OSError`` when the CA file can't be read."""
        self.settings = settings or client_settings(
            base_url, api_key, ca_file=ca_file, deadline_ms=deadline_ms, max_retries=max_retries
        )
        self._own_http = None if http else H11HttpClient(ssl_context=self.settings.ssl_context())
        self._ids = ids or SystemIds(SystemClock())
        self._asker = Asker(http or self._own_http, self.settings, self._ids)  # type: ignore[arg-type]
        self.operator = AsyncOperator(self._asker)
        """What runs the service, for a client whose key is the operator token."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Closes all connections. Calls in progress end with :class:`~lunanexa_client.errors.ConnectionFailed`."""
        if self._own_http is not None:
            with trio.move_on_after(_CLOSE_S, shield=True):
                await self._own_http.aclose()

    async def models(self, **options: Unpack[CallOptions]) -> tuple[Model, ...]:
        """The aliases that can be called now with this key."""
        return models_of((await self._get("models", options)).body)

    async def chat(self, body: Document, **options: Unpack[CallOptions]) -> Answer:
        """One chat completion, whole."""
        return await self.post(Dialect.CHAT.value, body, **options)

    async def completions(self, body: Document, **options: Unpack[CallOptions]) -> Answer:
        """One completion, whole."""
        return await self.post(Dialect.COMPLETIONS.value, body, **options)

    async def embeddings(self, body: Document, **options: Unpack[CallOptions]) -> Answer:
        """Embeddings."""
        return await self.post(Dialect.EMBEDDINGS.value, body, **options)

    async def post(self, endpoint: str, body: Document, **options: Unpack[CallOptions]) -> Answer:
        """Any endpoint under ``/v1`` (``responses``) whose answer is JSON."""
        return await self._asker.ask(_post(endpoint, body, options))

    @asynccontextmanager
    async def stream(self, endpoint: str, body: Document, **options: Unpack[CallOptions]) -> AsyncIterator[EventStream]:
        """The events of any endpoint under ``/v1``; ``stream: true`` is added to the body. Leaving the context
        early cancels the request."""
        async with await self.open_stream(endpoint, body, **options) as events:
            yield events

    async def open_stream(self, endpoint: str, body: Document, **options: Unpack[CallOptions]) -> EventStream:
        """As :meth:`stream`, for a caller that closes the stream itself."""
        question = _post(endpoint, {**body, "stream": True}, options, accept=EVENT_STREAM)
        end = StreamEnd.DONE if endpoint in _SAY_DONE else StreamEnd.CLOSE
        return await self._asker.stream(question, end=end)

    async def submit(self, envelope: Document, **options: Unpack[CallOptions]) -> Answer:
        """Runs a canonical workload and waits for its response. Where retries are on and neither the envelope nor
        the call has an idempotency key, one is made, so that no retry runs it twice."""
        return await self._asker.ask(_post(WORKLOADS, envelope, self._terms(envelope, options)))

    @asynccontextmanager
    async def stream_workload(self, envelope: Document, **options: Unpack[CallOptions]) -> AsyncIterator[EventStream]:
        """As :meth:`submit`, with its output as events."""
        async with await self.open_workload_stream(envelope, **options) as events:
            yield events

    async def open_workload_stream(self, envelope: Document, **options: Unpack[CallOptions]) -> EventStream:
        """As :meth:`stream_workload`, for a caller that closes the stream itself."""
        question = _post(WORKLOADS_STREAM, envelope, self._terms(envelope, options), accept=EVENT_STREAM)
        return await self._asker.stream(question, end=StreamEnd.COMPLETED)

    async def workload(self, workload_id: str, **options: Unpack[CallOptions]) -> Document:
        """An own workload: its live state and place in the queue, or its receipt."""
        return object_of(await self._get(f"{WORKLOADS}/{segment(workload_id)}", options))

    async def workloads(
        self, *, limit: int = 100, cursor: str | None = None, **options: Unpack[CallOptions]
    ) -> AsyncIterator[Document]:
        """Own workloads, newest first, page by page of ``limit``; ``cursor`` is where to begin."""
        following: str | None = cursor
        while True:
            page = await self.workloads_page(limit=limit, cursor=following, **options)
            for item in page.items:
                yield item
            if page.next_cursor is None:
                return
            following = page.next_cursor

    async def workloads_page(
        self, *, limit: int = 100, cursor: str | None = None, **options: Unpack[CallOptions]
    ) -> Page:
        """One page of own workloads."""
        query = {"limit": str(limit)} | ({} if cursor is None else {"cursor": cursor})
        return page_of((await self._get(f"{WORKLOADS}?{urlencode(query)}", options)).body, after=cursor)

    async def cancel(self, workload_id: str, **options: Unpack[CallOptions]) -> Document:
        """Ends an own workload, and says what is known of it then. Idempotent."""
        target = f"/v1/{WORKLOADS}/{segment(workload_id)}:cancel"
        # It may be sent again: of one that has ended the answer is the receipt.
        question = Question(method="POST", target=target, document={}, options=options, repeatable=True)
        return object_of(await self._asker.ask(question))

    async def capabilities(self, **options: Unpack[CallOptions]) -> Document:
        """Contract version, capabilities, selectors and retention on offer."""
        return object_of(await self._get("capabilities", options))

    def connect(self, *, headers: Mapping[str, str] | None = None) -> "AbstractAsyncContextManager[Connection]":
        """A WebSocket connection on which many workloads run. What its headers say (a priority, a deadline) is said
        of each of them; the deadline is the client's unless told."""
        from lunanexa_client.connection import open_connection

        said = {DEADLINE_HEADER: str(self.settings.deadline_ms), **(headers or {})}
        return open_connection(self.settings, encoded_headers(self.settings, said), self._ids.below)

    async def _get(self, path: str, options: CallOptions) -> Answer:
        return await self._asker.ask(Question(method="GET", target=f"/v1/{path}", options=options, repeatable=True))

    def _terms(self, envelope: Document, options: CallOptions) -> CallOptions:
        """What the envelope says of key and deadline holds for the call too, where the call does not say it."""
        found = options.copy()
        key = options.get("idempotency_key") or envelope.get("idempotency_key")
        if key is not None or self.settings.retries.max_retries > 0:
            found["idempotency_key"] = str(key or self._asker.new_key())
        budget_ms = envelope.get("deadline_ms")
        if isinstance(budget_ms, int) and 1 < budget_ms <= DEADLINE_MS_MAX:
            found.setdefault("deadline_ms", budget_ms)
        return found


def _post(endpoint: str, body: Document, options: CallOptions, accept: str = "application/json") -> Question:
    if body.get("stream") is True and accept != EVENT_STREAM:
        raise ValueError("stream: ask for a stream with stream(), not in the body of a whole answer")
    return Question(
        method="POST",
        target=f"/v1/{quote(endpoint.strip('/'), safe='/:')}",
        document=body,
        options=options,
        accept=accept,
        repeatable="idempotency_key" in options,
    )
