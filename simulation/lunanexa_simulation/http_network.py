"""The network of a simulated world: ASGI applications called in memory, over links with faults.

Time is Trio's clock and randomness comes from one named stream a link, so a run repeats exactly. What TCP
would do is kept where a caller can see it: order within a connection, backpressure, bytes that are held
back while a link is blocked and arrive after it heals, data sent before a process died arriving before its
end. Not simulated: bandwidth, and the kernel's giving up on a link that stays blocked.
"""

from abc import abstractmethod
from collections import deque
from typing import Protocol, TypeAlias
from urllib.parse import unquote

import attrs
import trio

from lunanexa_ports.asgi import ABORT, AsgiApplication, Message, Scope
from lunanexa_ports.http_client import Headers, HttpRequest, HttpUnreachable
from lunanexa_simulation.rng import Streams

WINDOW_BYTES = 256 * 1024
"""What one response may have on its way; then the server's ``send`` waits for the client."""
BODY_PIECE_BYTES = 64 * 1024
FIRST_CLIENT_PORT = 32_768


class SimulatedClientGone(OSError):
    """Raised by ``send`` after the client's departure or the server's death, as a real server does."""


@attrs.frozen(kw_only=True)
class Head:
    status: int
    headers: Headers


@attrs.frozen
class End:
    whole: bool


Item: TypeAlias = Head | bytes | End


class _Link:
    """One direction between two hosts."""

    def __init__(self, streams: Streams, name: str) -> None:
        self._rng = streams.stream(f"{name}/latency")
        self.latency_ms = (0, 0)
        self._blocked = False
        self._waiting = trio.lowlevel.ParkingLot()

    def block(self) -> None:
        self._blocked = True

    def heal(self) -> None:
        self._blocked = False
        self._waiting.unpark_all()

    def draw_latency_s(self) -> float:
        low, high = self.latency_ms
        return (low if low == high else self._rng.randint(low, high)) / 1000

    async def until(self, arrives_at: float) -> None:
        """What was sent so as to arrive then has arrived: not before, and not while the link is blocked."""
        await trio.sleep_until(max(arrives_at, trio.current_time()))
        while self._blocked:
            await self._waiting.park()

    async def carry(self) -> None:
        await self.until(trio.current_time() + self.draw_latency_s())


class Carried(Protocol):
    """What runs on a connection of the network."""

    @abstractmethod
    async def serve(self) -> None:
        """The server's side, to its end."""

    @abstractmethod
    def die(self) -> None:
        """The server's process is dead."""


@attrs.define(eq=False)
class _Listener:
    host: str
    port: int
    app: AsgiApplication
    refusing: bool = False
    exchanges: dict[Carried, None] = attrs.Factory(dict)
    connections: "dict[Connection, None]" = attrs.Factory(dict)


@attrs.define(eq=False)
class Connection:
    client: tuple[str, int]
    listener: _Listener
    dead: bool = False

    def end(self) -> None:
        self.dead = True
        self.listener.connections.pop(self, None)


class SimulatedNetwork:
    """Hosts, their listeners and the links between them. ``nursery`` carries the server side of every
    exchange: what a client's cancellation ends is the client alone, and an error in a handler ends the
    simulated world instead of hiding behind a 500."""

    def __init__(self, nursery: trio.Nursery, streams: Streams, *, latency_ms: tuple[int, int] = (0, 0)) -> None:
        self._nursery = nursery
        self._streams = streams
        self._latency_ms = latency_ms
        self._listeners: dict[tuple[str, int], _Listener] = {}
        self._links: dict[tuple[str, str], _Link] = {}
        self._next_client_port = FIRST_CLIENT_PORT

    # --- servers ---

    def listen(self, host: str, port: int, app: AsgiApplication) -> None:
        assert (host, port) not in self._listeners, f"{host}:{port} is taken"
        self._listeners[host, port] = _Listener(host, port, app)

    def close(self, host: str, port: int) -> None:
        """Orderly: new connections are refused and idle ones end; exchanges in progress go on."""
        listener = self._listeners.pop((host, port))
        for connection in list(listener.connections):
            connection.end()

    def kill(self, host: str, port: int) -> None:
        """As the death of the server's process. Nothing that its handlers still try to send gets out."""
        self.cut(host, port)
        del self._listeners[host, port]

    def cut(self, host: str, port: int) -> None:
        """Ends every connection of one listener, which goes on listening."""
        listener = self._listeners[host, port]
        for connection in list(listener.connections):
            connection.end()
        for exchange in list(listener.exchanges):
            exchange.die()

    def refuse(self, host: str, port: int, *, on: bool = True) -> None:
        """A listener whose backlog is full, or whose machine has no process there."""
        self._listeners[host, port].refusing = on

    # --- links ---

    def block(self, source: str, destination: str) -> None:
        """One direction only: call it twice for a whole partition."""
        self.link(source, destination).block()

    def heal(self, source: str, destination: str) -> None:
        self.link(source, destination).heal()

    def set_latency(self, source: str, destination: str, latency_ms: tuple[int, int]) -> None:
        self.link(source, destination).latency_ms = latency_ms

    def link(self, source: str, destination: str) -> _Link:
        key = (source, destination)
        if key not in self._links:
            self._links[key] = _Link(self._streams, f"link/{source}/{destination}")
            self._links[key].latency_ms = self._latency_ms
        return self._links[key]

    # --- for the client ---

    async def connect(self, source: str, request: HttpRequest) -> Connection:
        try:
            with trio.fail_after(request.connect_timeout_ms / 1000):
                await self.link(source, request.host).carry()
                listener = self._listeners.get((request.host, request.port))
                accepted = listener is not None and not listener.refusing
                await self.link(request.host, source).carry()
        except trio.TooSlowError as exc:
            raise HttpUnreachable(f"no connection within {request.connect_timeout_ms} ms") from exc
        if listener is None or not accepted or self._listeners.get((request.host, request.port)) is not listener:
            raise HttpUnreachable("connection refused")
        connection = Connection((source, self._next_client_port), listener)
        self._next_client_port += 1
        listener.connections[connection] = None
        return connection

    def ask(self, connection: Connection, request: HttpRequest) -> "Exchange":
        source = connection.client[0]
        exchange = Exchange(connection, request, self.link(source, request.host), self.link(request.host, source))
        self.carry(connection, exchange, request.target)
        return exchange

    def carry(self, connection: Connection, exchange: Carried, target: str) -> None:
        """Runs the server's side of ``exchange``."""
        listener = connection.listener
        listener.exchanges[exchange] = None
        self._nursery.start_soon(exchange.serve, name=f"{listener.host}:{listener.port} {target}")


class Exchange(Carried):
    """Both sides of one request: the application runs in the network's nursery, the client reads items."""

    def __init__(self, connection: Connection, request: HttpRequest, there: _Link, back: _Link) -> None:
        self.connection = connection
        self._request = request
        self._there = there
        self._back = back
        self._scope = trio.CancelScope()
        self._body = _pieces(b"".join((request.body, *request.more)))
        self._bodiless = request.method == "HEAD"
        self._started = False
        self._answered = trio.Event()
        self._departed = trio.Event()
        self._left = trio.Event()
        self._items: deque[tuple[float, Item]] = deque()
        self._queued_bytes = 0
        self._last_arrival = 0.0
        self._readers = trio.lowlevel.ParkingLot()
        self._writers = trio.lowlevel.ParkingLot()
        self.client_closed = False
        self.ended = False
        """The client has seen the end of the whole body."""

    # --- the server's side ---

    async def serve(self) -> None:
        try:
            with self._scope:
                await self._there.carry()
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._watch_departure)
                    await self._run_app()
                    nursery.cancel_scope.cancel()
        finally:
            self.connection.listener.exchanges.pop(self, None)

    def die(self) -> None:
        """The server's process is dead: first it can say nothing more, then its handler stops."""
        self.connection.end()
        self._departed.set()
        if not self._answered.is_set():
            self._answered.set()
            self._put(End(whole=False))
        self._scope.cancel()

    async def _run_app(self) -> None:
        try:
            await self.connection.listener.app(self._asgi_scope(), self._receive, self._send)
        except* SimulatedClientGone:
            pass
        if self._answered.is_set() or self._departed.is_set():
            return
        if not self._started:
            self._put(Head(status=500, headers=()))
        self._answered.set()
        self._put(End(whole=not self._started))

    async def _watch_departure(self) -> None:
        await self._left.wait()
        await self._there.carry()
        self._departed.set()
        self._writers.unpark_all()

    def _asgi_scope(self) -> Scope:
        request = self._request
        path, _, query = request.target.partition("?")
        return {
            "type": "http",
            "asgi": {"spec_version": "2.4", "version": "3.0"},
            "http_version": "1.1",
            "method": request.method,
            "scheme": "http",
            "path": unquote(path),
            "raw_path": path.encode("ascii"),
            "query_string": query.encode("ascii"),
            "root_path": "",
            "headers": _headers_of(request),
            "client": self.connection.client,
            "server": (request.host, request.port),
            "state": {},
            "extensions": {ABORT: {}},
        }

    async def _receive(self) -> Message:
        await trio.lowlevel.checkpoint()
        if self._body and not self._departed.is_set():
            body = self._body.popleft()
            return {"type": "http.request", "body": body, "more_body": bool(self._body)}
        async with trio.open_nursery() as nursery:
            for event in (self._departed, self._answered):
                nursery.start_soon(_cancel_after, event, nursery.cancel_scope)
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        await trio.lowlevel.checkpoint()
        while self._queued_bytes >= WINDOW_BYTES and not self._departed.is_set():
            await self._writers.park()
        if self._departed.is_set():
            raise SimulatedClientGone("the client has gone")
        kind = message["type"]
        if kind == "http.response.start" and not self._started:
            self._started = True
            status = int(message["status"])
            self._bodiless = self._bodiless or status in (204, 304)
            headers = tuple((bytes(name).lower(), bytes(value)) for name, value in message.get("headers", ()))
            self._put(Head(status=status, headers=headers))
        elif kind == "http.response.body" and self._started and not self._answered.is_set():
            body = bytes(message.get("body", b""))
            if body and not self._bodiless:
                self._put(body)
            if not message.get("more_body", False):
                self._answered.set()
                self._put(End(whole=True))
        elif kind == ABORT and not self._answered.is_set():
            self.connection.end()
            self._answered.set()
            self._put(End(whole=False))
        else:
            raise ValueError(f"unexpected message {kind!r}")

    def _put(self, item: Item) -> None:
        # What was sent first arrives first, whatever latency the second draws.
        self._last_arrival = max(self._last_arrival, trio.current_time() + self._back.draw_latency_s())
        self._items.append((self._last_arrival, item))
        self._queued_bytes += len(item) if isinstance(item, bytes) else 0
        self._readers.unpark_all()

    # --- the client's side ---

    async def next_item(self) -> Item:
        """Cancellation loses nothing: an item is taken only when it is returned."""
        await trio.lowlevel.checkpoint()
        while not self._items and not self.client_closed:
            await self._readers.park()
        if not self.client_closed:
            await self._back.until(self._items[0][0])
        if self.client_closed:
            return End(whole=False)
        item = self._items[0][1]
        if isinstance(item, End):  # stays, for whoever asks again
            self.ended = item.whole
            return item
        self._items.popleft()
        self._queued_bytes -= len(item) if isinstance(item, bytes) else 0
        self._writers.unpark_all()
        return item

    def leave(self) -> bool:
        """The client's context is left. Returns whether the connection may be used again."""
        if not self.ended and self._items:
            arrives_at, item = self._items[0]
            self.ended = isinstance(item, End) and item.whole and arrives_at <= trio.current_time()
        self._left.set()
        return self.ended and not self.connection.dead and not self.client_closed

    def close_client(self) -> None:
        self.client_closed = True
        self._left.set()
        self._readers.unpark_all()


async def _cancel_after(event: trio.Event, scope: trio.CancelScope) -> None:
    await event.wait()
    scope.cancel()


def _pieces(body: bytes) -> deque[bytes]:
    return deque(body[start : start + BODY_PIECE_BYTES] for start in range(0, max(len(body), 1), BODY_PIECE_BYTES))


def _headers_of(request: HttpRequest) -> list[tuple[bytes, bytes]]:
    headers = [(b"host", f"{request.host}:{request.port}".encode("ascii")), *request.headers]
    if request.body_bytes or request.method in ("POST", "PUT", "PATCH"):
        headers.append((b"content-length", b"%d" % request.body_bytes))
    return headers
