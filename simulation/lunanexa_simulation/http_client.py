"""The ``http_client`` port without sockets, over a :class:`SimulatedNetwork`.

Connections are kept and limited as the real client does it, so that what a caller can see of them (reuse,
waiting for a slot, replacement of a closed one) is the same.
"""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Final, TypeAlias

import trio

from lunanexa_ports.http_client import (
    IDEMPOTENT,
    Headers,
    HttpBroken,
    HttpClient,
    HttpRequest,
    HttpResponse,
    HttpUnreachable,
    TlsPeer,
)
from lunanexa_simulation.connections import Connection
from lunanexa_simulation.credentials import SimulatedCredentials
from lunanexa_simulation.http_exchange import End, Exchange, Head
from lunanexa_simulation.http_network import SimulatedNetwork
from lunanexa_simulation.tls import in_force

__all__ = ["SimulatedHttpClient", "SimulatedNetwork"]

REPLACE_WINDOW_S: Final = 1.0
"""As the real client's: who was busy with a request for longer has seen it."""


_Origin: TypeAlias = tuple[str, int, TlsPeer | None]


class SimulatedHttpClient(HttpClient):
    """The client of the process on ``host``; links and scopes know it by that name. Requests that name a ``TlsPeer``
    go by ``credentials``."""

    def __init__(
        self,
        network: SimulatedNetwork,
        host: str,
        *,
        credentials: SimulatedCredentials | None = None,
        exchanges_per_origin: int = 1_024,
    ) -> None:
        self._network = network
        self._host = host
        self._credentials = credentials
        self._limit = exchanges_per_origin
        self._slots: dict[_Origin, trio.Semaphore] = {}
        self._idle: dict[_Origin, list[Connection]] = {}
        self._exchanges: dict[Exchange, None] = {}
        self._closed = False

    def exchange(self, request: HttpRequest) -> AbstractAsyncContextManager[HttpResponse]:
        return self._exchange(request)

    async def aclose(self) -> None:
        self.kill()
        await trio.lowlevel.checkpoint()

    def kill(self) -> None:
        """As the death of the client's process: nothing goes out any more, and servers see the departure."""
        self._closed = True
        for connection in [one for idle in self._idle.values() for one in idle]:
            connection.leave()
        self._idle.clear()
        for exchange in self._exchanges:
            exchange.close_client()

    @asynccontextmanager
    async def _exchange(self, request: HttpRequest) -> AsyncIterator[HttpResponse]:
        in_force(self._credentials, request.tls)
        async with self._slots.setdefault(_origin(request), trio.Semaphore(self._limit)):
            exchange, head = await self._ask(request)
            try:
                yield _SimulatedResponse(exchange, head)
            finally:
                self._leave(exchange, request)

    async def _ask(self, request: HttpRequest) -> tuple[Exchange, Head]:
        self._refuse_when_closed()
        pooled = self._pooled(request)
        if pooled is not None:
            replaced_until_s = trio.current_time() + REPLACE_WINDOW_S
            try:
                return await self._ask_on(pooled, request)
            except _PeerEnded:
                if request.method not in IDEMPOTENT or self._closed or trio.current_time() > replaced_until_s:
                    raise
        try:
            fresh = await self._network.connect(self._host, request, self._credentials)
            if self._closed:
                fresh.leave()
            self._refuse_when_closed()
        except HttpUnreachable as exc:
            if pooled is None:
                raise
            raise HttpBroken(str(exc), head_seen=False) from exc
        return await self._ask_on(fresh, request)

    async def _ask_on(self, connection: Connection, request: HttpRequest) -> tuple[Exchange, Head]:
        exchange = self._network.ask(connection, request)
        self._exchanges[exchange] = None
        try:
            return exchange, await _head_of(exchange, request)
        except BaseException:
            self._leave(exchange, request)
            raise

    def _leave(self, exchange: Exchange, request: HttpRequest) -> None:
        del self._exchanges[exchange]
        if exchange.leave():
            self._idle.setdefault(_origin(request), []).append(exchange.connection)
        else:
            exchange.connection.leave()

    def _pooled(self, request: HttpRequest) -> Connection | None:
        """An idle connection that its server has not closed, and that was opened by what is in force still."""
        idle = self._idle.get(_origin(request), [])
        by = in_force(self._credentials, request.tls)
        while idle:
            connection = idle.pop()
            if not connection.dead and connection.by == by:
                return connection
            connection.leave()
        return None

    def _refuse_when_closed(self) -> None:
        if self._closed:
            raise HttpUnreachable("this client is closed")


def _origin(request: HttpRequest) -> _Origin:
    return request.host, request.port, request.tls


class _PeerEnded(HttpBroken):
    """As in the real client: in contrast to a head that did not come in time."""


class _SimulatedResponse(HttpResponse):
    def __init__(self, exchange: Exchange, head: Head) -> None:
        self._exchange = exchange
        self._head = head

    @property
    def status(self) -> int:
        return self._head.status

    @property
    def headers(self) -> Headers:
        return self._head.headers

    def chunks(self) -> AsyncIterator[bytes]:
        return _Chunks(self._exchange)

    async def read(self, limit_bytes: int) -> bytes:
        body = b""
        async for piece in self.chunks():
            body += piece
            if len(body) > limit_bytes:
                raise HttpBroken(f"the body is longer than {limit_bytes} bytes", head_seen=True)
        return body


class _Chunks(AsyncIterator[bytes]):
    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange

    async def __anext__(self) -> bytes:
        item = await self._exchange.next_item()
        if isinstance(item, bytes):
            return item
        if isinstance(item, End) and item.whole:
            raise StopAsyncIteration
        raise HttpBroken("the body was cut", head_seen=True)


async def _head_of(exchange: Exchange, request: HttpRequest) -> Head:
    timeout_s = float("inf") if request.head_timeout_ms is None else request.head_timeout_ms / 1000
    with trio.move_on_after(timeout_s):
        item = await exchange.next_item()
        if isinstance(item, Head):
            return item
        raise _PeerEnded("the connection ended before a response head", head_seen=False)
    raise HttpBroken(f"no response head within {request.head_timeout_ms} ms", head_seen=False)
