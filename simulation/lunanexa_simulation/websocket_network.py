"""WebSockets of a simulated world: ASGI applications called in memory, over the same links as HTTP.

Messages keep their order, wait while a link is blocked, and what was sent before a process died arrives before
its end. Not simulated: pings (a link that is blocked is not noticed), bandwidth, the size of a message.
"""

from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final, TypeAlias

import attrs
import trio

from lunanexa_ports.asgi import Message, Scope
from lunanexa_ports.http_client import Headers, HttpRequest
from lunanexa_simulation.connections import Carried, Connection
from lunanexa_simulation.http_exchange import SimulatedClientGone
from lunanexa_simulation.http_network import SimulatedNetwork

WINDOW_BYTES: Final = 64 * 1024
"""What may be on its way to a client that does not read; then the server's ``send`` waits."""
_BROKEN: Final = 1006


@attrs.frozen(kw_only=True)
class Refused:
    """The handshake was answered by HTTP."""

    status: int
    body: bytes


@attrs.frozen
class Closed:
    """The connection is over; 1006: nobody said why."""

    code: int


Item: TypeAlias = str | Refused | Closed


class WebSocketExchange(Carried):
    """Both sides of one connection: the application runs in the network's nursery."""

    def __init__(
        self,
        network: SimulatedNetwork,
        connection: Connection,
        path: str,
        subprotocols: Sequence[str],
        headers: Headers,
    ) -> None:
        source, server = connection.client[0], connection.listener.host
        self._connection = connection
        self._there = network.link(source, server)
        self._back = network.link(server, source)
        self._scope = trio.CancelScope()
        self._asgi_scope: Scope = {
            "type": "websocket",
            "asgi": {"spec_version": "2.3", "version": "3.0"},
            "http_version": "1.1",
            "scheme": "ws",
            "path": path,
            "raw_path": path.encode("ascii"),
            "query_string": b"",
            "root_path": "",
            "headers": [(b"host", server.encode()), *headers],
            "client": connection.client,
            "server": (server, connection.listener.port),
            "subprotocols": list(subprotocols),
            "state": {},
            "extensions": {"websocket.http.response": {}},
        }
        self._said: deque[tuple[float, Message]] = deque()
        self._items: deque[tuple[float, Item]] = deque()
        self._last_said_s = self._last_item_s = 0.0
        self._under_way_bytes = 0
        self._status = 0
        self._over = False
        self._departed = False
        self._news = trio.lowlevel.ParkingLot()
        self.accepted = trio.Event()
        """Or refused, or over."""
        self._say({"type": "websocket.connect"})

    # --- the server's side ---

    async def serve(self) -> None:
        try:
            with self._scope:
                try:
                    await self._connection.app(self._asgi_scope, self._receive, self._send)
                except* SimulatedClientGone:
                    pass
            self._end(Closed(_BROKEN))
        finally:
            self._connection.listener.exchanges.pop(self, None)

    def die(self) -> None:
        self._connection.end()
        self._end(Closed(_BROKEN))
        self._scope.cancel()

    async def _receive(self) -> Message:
        await trio.lowlevel.checkpoint()
        while not self._said:
            await self._news.park()
        arrives_at, message = self._said[0]
        await self._there.until(arrives_at)
        if message["type"] == "websocket.disconnect":
            self._departed = True
            self._news.unpark_all()
        else:
            self._said.popleft()
        return message

    async def _send(self, message: Message) -> None:
        await trio.lowlevel.checkpoint()
        while self._under_way_bytes >= WINDOW_BYTES and not self._departed and not self._over:
            await self._news.park()
        if self._departed or self._over:
            raise SimulatedClientGone("the client has gone")
        match message["type"]:
            case "websocket.accept":
                self.accepted.set()
            case "websocket.send":
                self._put(message["text"])
            case "websocket.close":
                self._end(Closed(int(message["code"])))
            case "websocket.http.response.start":
                self._status = int(message["status"])
            case "websocket.http.response.body":
                self._end(Refused(status=self._status, body=bytes(message["body"])))
            case kind:
                raise ValueError(f"unexpected message {kind!r}")

    def _end(self, item: Item) -> None:
        if not self._over:
            self._put(item)
            self._over = True
            self.accepted.set()
            code = item.code if isinstance(item, Closed) else 1000
            self._say({"type": "websocket.disconnect", "code": code})

    def _put(self, item: Item) -> None:
        self._last_item_s = max(self._last_item_s, trio.current_time() + self._back.draw_latency_s())
        self._items.append((self._last_item_s, item))
        self._under_way_bytes += len(item) if isinstance(item, str) else 0
        self._news.unpark_all()

    # --- the client's side ---

    def say(self, text: str) -> None:
        """Sends one message; after the end it is lost."""
        self._say({"type": "websocket.receive", "text": text, "bytes": None})

    async def hear(self) -> Item:
        """The next message, or how the connection ended, again and again."""
        await trio.lowlevel.checkpoint()
        while not self._items:
            await self._news.park()
        arrives_at, item = self._items[0]
        await self._back.until(arrives_at)
        if isinstance(item, str):
            self._items.popleft()
            self._under_way_bytes -= len(item)
            self._news.unpark_all()
        return item

    def leave(self) -> None:
        """The client is gone, without a word."""
        self._say({"type": "websocket.disconnect", "code": _BROKEN})

    def _say(self, message: Message) -> None:
        self._last_said_s = max(self._last_said_s, trio.current_time() + self._there.draw_latency_s())
        self._said.append((self._last_said_s, message))
        self._news.unpark_all()


@asynccontextmanager
async def open_websocket(
    network: SimulatedNetwork,
    source: str,
    *,
    host: str,
    port: int,
    path: str,
    subprotocols: Sequence[str],
    headers: Headers,
) -> AsyncIterator[WebSocketExchange]:
    """Connects from the host ``source``; leaving the context is the client's departure. Raises ``HttpUnreachable``
    when nobody listens. A refusal is the first thing that is heard."""
    request = HttpRequest(method="GET", host=host, port=port, target=path, headers=headers, body=b"")
    connection = await network.connect(source, request)
    exchange = WebSocketExchange(network, connection, path, subprotocols, headers)
    network.carry(connection, exchange, path)
    try:
        await exchange.accepted.wait()
        yield exchange
    finally:
        exchange.leave()
        connection.end()
