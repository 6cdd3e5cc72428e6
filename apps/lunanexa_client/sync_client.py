"""The sync face: the same calls for plain threads, over a Trio loop in a thread of its own."""

from collections.abc import Iterator, Mapping
from functools import partial
from types import TracebackType
from typing import Self, Unpack

from lunanexa_client.answers import Answer, AnswerHead, Document, Model, StreamEvent
from lunanexa_client.client import AsyncClient
from lunanexa_client.events import EventStream
from lunanexa_client.portal import Portal
from lunanexa_client.settings import CallOptions, ClientSettings
from lunanexa_client.sync_connection import SyncConnection
from lunanexa_client.sync_operator import Operator
from lunanexa_core.workload import Usage
from lunanexa_ports.http_client import HttpClient
from lunanexa_ports.ids import IdSource


class Client:
    """As :class:`~lunanexa_client.client.AsyncClient`, for programs without a loop. Any thread may use it; leaving
    its context ends what still runs. Ctrl-C ends the call that waits, and with it the request."""

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
        self._client = AsyncClient(
            base_url,
            api_key,
            ca_file=ca_file,
            deadline_ms=deadline_ms,
            max_retries=max_retries,
            settings=settings,
            http=http,
            ids=ids,
        )
        self._portal = Portal()
        self.operator = Operator(self._portal, self._client.operator)
        """What runs the service, for a client whose key is the operator token."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends calls in progress, closes all connections and the thread. Idempotent."""
        try:
            self._portal.finish(self._client.aclose)
        finally:
            self._portal.close()

    def models(self, **options: Unpack[CallOptions]) -> tuple[Model, ...]:
        """The aliases that can be called now with this key."""
        return self._portal.call(partial(self._client.models, **options))

    def chat(self, body: Document, **options: Unpack[CallOptions]) -> Answer:
        """One chat completion, whole."""
        return self._portal.call(partial(self._client.chat, body, **options))

    def completions(self, body: Document, **options: Unpack[CallOptions]) -> Answer:
        """One completion, whole."""
        return self._portal.call(partial(self._client.completions, body, **options))

    def embeddings(self, body: Document, **options: Unpack[CallOptions]) -> Answer:
        """Embeddings."""
        return self._portal.call(partial(self._client.embeddings, body, **options))

    def post(self, endpoint: str, body: Document, **options: Unpack[CallOptions]) -> Answer:
        """Any endpoint under ``/v1`` whose answer is JSON."""
        return self._portal.call(partial(self._client.post, endpoint, body, **options))

    def stream(self, endpoint: str, body: Document, **options: Unpack[CallOptions]) -> "SyncEventStream":
        """The events of any endpoint under ``/v1``: a context manager, which cancels the request when it is left
        early."""
        return SyncEventStream(
            self._portal, self._portal.call(partial(self._client.open_stream, endpoint, body, **options))
        )

    def submit(self, envelope: Document, **options: Unpack[CallOptions]) -> Answer:
        """Runs a canonical workload and waits for its response."""
        return self._portal.call(partial(self._client.submit, envelope, **options))

    def stream_workload(self, envelope: Document, **options: Unpack[CallOptions]) -> "SyncEventStream":
        """As :meth:`submit`, with its output as events."""
        opened = self._portal.call(partial(self._client.open_workload_stream, envelope, **options))
        return SyncEventStream(self._portal, opened)

    def workload(self, workload_id: str, **options: Unpack[CallOptions]) -> Document:
        """An own workload: its live state and place in the queue, or its receipt."""
        return self._portal.call(partial(self._client.workload, workload_id, **options))

    def workloads(
        self, *, limit: int = 100, cursor: str | None = None, **options: Unpack[CallOptions]
    ) -> Iterator[Document]:
        """Own workloads, newest first, page by page of ``limit``; ``cursor`` is where to begin."""
        following: str | None = cursor
        while True:
            page = self._portal.call(partial(self._client.workloads_page, limit=limit, cursor=following, **options))
            yield from page.items
            if page.next_cursor is None:
                return
            following = page.next_cursor

    def cancel(self, workload_id: str, **options: Unpack[CallOptions]) -> Document:
        """Ends an own workload, and says what is known of it then. Idempotent."""
        return self._portal.call(partial(self._client.cancel, workload_id, **options))

    def capabilities(self, **options: Unpack[CallOptions]) -> Document:
        """Contract version, capabilities, selectors and retention on offer."""
        return self._portal.call(partial(self._client.capabilities, **options))

    def connect(self, *, headers: Mapping[str, str] | None = None) -> SyncConnection:
        """A WebSocket connection on which many workloads run: a context manager."""
        return SyncConnection(self._portal, self._client.connect(headers=headers))


class SyncEventStream:
    """As :class:`~lunanexa_client.events.EventStream`."""

    def __init__(self, portal: Portal, stream: EventStream) -> None:
        self._portal = portal
        self._stream = stream

    @property
    def head(self) -> AnswerHead:
        return self._stream.head

    @property
    def usage(self) -> Usage | None:
        return self._stream.usage

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> StreamEvent:
        event = self._portal.call(_next_or_none, self._stream)
        if event is None:
            raise StopIteration
        return event

    def close(self) -> None:
        """Closes the socket at once, unless the body was read to its end. Idempotent."""
        self._portal.finish(self._stream.aclose)


async def _next_or_none(stream: EventStream) -> StreamEvent | None:
    return await anext(stream, None)
