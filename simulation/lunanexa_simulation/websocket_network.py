"""WebSockets of a simulated world: ASGI applications called in memory, over the same links as HTTP.

Messages keep their order, wait while a link is blocked, and what was sent before a process died arrives before
its end. Not simulated: pings. A machine that is gone and a link that stays blocked are noticed by the kernels alone.
"""

from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final, TypeAlias

import attrs
import trio

from lunanexa_ports.asgi import Message, Scope
from lunanexa_ports.http_client import Headers, HttpRequest
from lunanexa_simulation.connections import Carried, Connection, Side
from lunanexa_simulation.http_exchange import SimulatedClientGone
from lunanexa_simulation.http_network import SimulatedNetwork

WINDOW_BYTES: Final = 64 * 1024
"""What may be on its way to a client that does not read; then the server's ``send`` waits."""
SAID_MAX: Final = 32
"""So many messages may be on their way to a server, where a client asks before it speaks."""
_BROKEN: Final = 1006


@attrs.frozen(kw_only=True)
class Refused:
    """The handshake was answered by HTTP."""

    status: int
    body: bytes
    headers: Headers = ()


@attrs.frozen
class Closed:
    """The connection is over; 1006: nobody said why."""

    code: int
    reason: str = ""


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
        server = connection.listener.host
        self.connection = connection
        self._there, self._back = network.ways(connection)
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
        self._refusing = Refused(status=0, body=b"")
        self._over = False
        self._departed = False
        self._news = trio.lowlevel.ParkingLot()
        self._room = trio.lowlevel.ParkingLot()
        self.accepted = trio.Event()
        """Or refused, or over."""
        self.accepting: Message | None = None
        """What the server said as it accepted."""
        self._say({"type": "websocket.connect"})

    # --- the server's side ---

    async def serve(self) -> None:
        try:
            with self._scope:
                try:
                    await self.connection.app(self._asgi_scope, self._receive, self._send)
                except* SimulatedClientGone:
                    pass
            if Side.SERVER not in self.connection.gone:
                self._end(Closed(_BROKEN))
        finally:
            self.connection.listener.exchanges.pop(self, None)

    def die(self) -> None:
        self.connection.end()
        if Side.SERVER not in self.connection.gone:
            self._end(Closed(_BROKEN))
        self._scope.cancel()

    def vanish(self) -> None:
        self._scope.cancel()

    def give_up(self) -> None:
        self._departed = True
        self._said.clear()
        self._said.append((trio.current_time(), {"type": "websocket.disconnect", "code": _BROKEN}))
        self._news.unpark_all()

    async def _receive(self) -> Message:
        await trio.lowlevel.checkpoint()
        while not self._said:
            await self._news.park()
        if Side.SERVER not in self.connection.gone:
            await self._there.until(self._said[0][0])
        message = self._said[0][1]
        if message["type"] == "websocket.disconnect":
            self._departed = True
            self._news.unpark_all()
        else:
            self._said.popleft()
            self._room.unpark_all()
        return message

    async def _send(self, message: Message) -> None:
        await trio.lowlevel.checkpoint()
        while self._under_way_bytes >= WINDOW_BYTES and not self._departed and not self._over:
            await self._news.park()
        if self._departed or self._over:
            raise SimulatedClientGone("the client has gone")
        match message["type"]:
            case "websocket.accept" if self._back.draw_break():
                self._end(Closed(_BROKEN))
                raise SimulatedClientGone("the connection broke")
            case "websocket.accept":
                self.accepting = message
                self.accepted.set()
            case "websocket.send":
                self._put(message["text"])
            case "websocket.close":
                self._end(Closed(int(message["code"]), message.get("reason") or ""))
            case "websocket.http.response.start":
                self._refusing = Refused(status=int(message["status"]), body=b"", headers=tuple(message["headers"]))
            case "websocket.http.response.body":
                self._end(attrs.evolve(self._refusing, body=bytes(message["body"])))
            case kind:
                raise ValueError(f"unexpected message {kind!r}")

    def _end(self, item: Item) -> None:
        if not self._over:
            self._put(item)
            self._over = True
            self._room.unpark_all()
            self.accepted.set()
            code = item.code if isinstance(item, Closed) else 1000
            self._say({"type": "websocket.disconnect", "code": code})

    def _put(self, item: Item) -> None:
        size_bytes = len(item) if isinstance(item, str) else 0
        self._last_item_s = max(self._last_item_s, self._back.draw_arrival(size_bytes))
        self._items.append((self._last_item_s, item))
        self._under_way_bytes += size_bytes
        self._news.unpark_all()

    # --- the client's side ---

    def say(self, text: str | None, data: bytes | None = None) -> None:
        """Sends one message, of text or of ``data``; after the end it is lost."""
        self._say({"type": "websocket.receive", "text": text, "bytes": data})

    async def room(self) -> None:
        """Returns when the server has taken most of what was said, or it is over."""
        await trio.lowlevel.checkpoint()
        while len(self._said) >= SAID_MAX and not self._over and Side.CLIENT not in self.connection.gone:
            await self._room.park()

    async def hear(self) -> Item:
        """The next message, or how the connection ended, again and again."""
        await trio.lowlevel.checkpoint()
        while not self._items:
            await self._news.park()
        if Side.CLIENT not in self.connection.gone:
            await self._back.until(self._items[0][0])
        item = self._items[0][1]
        if isinstance(item, str):
            self._items.popleft()
            self._under_way_bytes -= len(item)
            self._news.unpark_all()
        return item

    def close_client(self) -> None:
        self._items.clear()
        self._items.append((trio.current_time(), Closed(_BROKEN)))
        self.accepted.set()
        self._news.unpark_all()
        self._room.unpark_all()

    def leave(self, code: int = _BROKEN) -> None:
        """The client closes with a code; or its process is gone. The first time counts."""
        if Side.CLIENT not in self.connection.gone:
            self._say({"type": "websocket.disconnect", "code": code})

    def _say(self, message: Message) -> None:
        size_bytes = len(message.get("text") or message.get("bytes") or "")
        self._last_said_s = max(self._last_said_s, self._there.draw_arrival(size_bytes))
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
        connection.leave()
