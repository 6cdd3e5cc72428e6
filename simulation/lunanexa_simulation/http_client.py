"""The ``http_client`` port without sockets, over a :class:`SimulatedNetwork`.

Connections are kept and limited as the real client does it, so that what a caller can see of them (reuse,
waiting for a slot, replacement of a closed one) is the same.
"""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import trio

from lunanexa_ports.http_client import Headers, HttpBroken, HttpClient, HttpRequest, HttpResponse, HttpUnreachable
from lunanexa_simulation.http_network import Connection, End, Exchange, Head, SimulatedNetwork

__all__ = ["SimulatedHttpClient", "SimulatedNetwork"]


class SimulatedHttpClient(HttpClient):
    """The client of the process on ``host``; links and scopes know it by that name."""

    def __init__(self, network: SimulatedNetwork, host: str, *, exchanges_per_origin: int = 1_024) -> None:
        self._network = network
        self._host = host
        self._limit = exchanges_per_origin
        self._slots: dict[tuple[str, int], trio.Semaphore] = {}
        self._idle: dict[tuple[str, int], list[Connection]] = {}
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
        self._idle.clear()
        for exchange in self._exchanges:
            exchange.close_client()

    @asynccontextmanager
    async def _exchange(self, request: HttpRequest) -> AsyncIterator[HttpResponse]:
        origin = (request.host, request.port)
        async with self._slots.setdefault(origin, trio.Semaphore(self._limit)):
            connection = await self._connection_to(request)
            exchange = self._network.ask(connection, request)
            self._exchanges[exchange] = None
            try:
                yield _SimulatedResponse(exchange, await _head_of(exchange, request))
            finally:
                del self._exchanges[exchange]
                if exchange.leave():
                    self._idle.setdefault(origin, []).append(connection)
                else:
                    connection.end()

    async def _connection_to(self, request: HttpRequest) -> Connection:
        self._refuse_when_closed()
        idle = self._idle.get((request.host, request.port), [])
        while idle:
            connection = idle.pop()
            if not connection.dead:
                return connection
        connection = await self._network.connect(self._host, request)
        self._refuse_when_closed()
        return connection

    def _refuse_when_closed(self) -> None:
        if self._closed:
            raise HttpUnreachable("this client is closed")


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
        raise HttpBroken("the connection ended before a response head", head_seen=False)
    raise HttpBroken(f"no response head within {request.head_timeout_ms} ms", head_seen=False)
