"""One request on a connection of the simulated network, and its answer."""

from collections import deque
from typing import TypeAlias
from urllib.parse import unquote

import attrs
import trio

from lunanexa_ports.asgi import ABORT, TLS, Message, Scope
from lunanexa_ports.http_client import Headers, HttpRequest
from lunanexa_simulation.connections import Carried, Connection, Side
from lunanexa_simulation.links import Link

WINDOW_BYTES = 256 * 1024
"""What one response may have on its way; then the server's ``send`` waits for the client."""
BODY_PIECE_BYTES = 64 * 1024
HEAD_BYTES = 400
"""Of a request or an answer, about."""


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


class Exchange(Carried):
    """Both sides of one request: the application runs in the network's ``nursery``, the client reads items."""

    def __init__(
        self, nursery: trio.Nursery, connection: Connection, request: HttpRequest, there: Link, back: Link
    ) -> None:
        self._nursery = nursery
        self.connection = connection
        self._request = request
        self._there = there
        self._back = back
        self._scope = trio.CancelScope()
        self._body = _pieces(b"".join((request.body, *request.more)))
        self._bodiless = request.method == "HEAD"
        self._started = False
        self._answered = False
        self._departed = False
        self._left = False
        self._over = trio.Event()
        """Answered, or the client's departure was heard."""
        self._running = False
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
                await self._there.carry(HEAD_BYTES + self._request.body_bytes)
                self._running = True
                if self._left:
                    self._nursery.start_soon(self._hear_departure)
                await self._run_app()
        finally:
            self._running = False
            self.connection.listener.exchanges.pop(self, None)
            if self.connection.passage is not None:
                self.connection.passage.left()

    def die(self) -> None:
        """The server's process is dead: first it can say nothing more, then its handler stops."""
        self.connection.end()
        self._departed = True
        self._over.set()
        if not self._answered and self.connection.lost is not Side.SERVER:
            self._answer(whole=False)
        self._scope.cancel()

    def vanish(self) -> None:
        self._departed = True
        self._over.set()
        self._scope.cancel()

    def give_up(self) -> None:
        self._break()

    async def _run_app(self) -> None:
        try:
            await self.connection.app(self._asgi_scope(), self._receive, self._send)
        except* SimulatedClientGone:
            pass
        if self._answered or self._departed:
            return
        if not self._started:
            self._put(Head(status=500, headers=()))
        self._answer(whole=not self._started)

    async def _hear_departure(self) -> None:
        await self._there.carry()
        if self.connection.lost is not Side.CLIENT:
            self._departed = True
            self._over.set()
            self._writers.unpark_all()

    def _break(self) -> None:
        """Both sides see it."""
        self.connection.end()
        self._departed = True
        self._over.set()
        self._writers.unpark_all()
        if not self._answered:
            self._answer(whole=False)

    def _asgi_scope(self) -> Scope:
        request, connection = self._request, self.connection
        path, _, query = request.target.partition("?")
        return {
            "type": "http",
            "asgi": {"spec_version": "2.4", "version": "3.0"},
            "http_version": "1.1",
            "method": request.method,
            "scheme": "https" if connection.secure else "http",
            "path": unquote(path),
            "raw_path": path.encode("ascii"),
            "query_string": query.encode("ascii"),
            "root_path": "",
            "headers": _headers_of(request),
            "client": connection.client,
            "server": (request.host, request.port),
            "state": {},
            "extensions": {ABORT: {}, **({TLS: {"peer": connection.peer}} if connection.secure else {})},
        }

    async def _receive(self) -> Message:
        await trio.lowlevel.checkpoint()
        if self._body and not self._departed:
            body = self._body.popleft()
            return {"type": "http.request", "body": body, "more_body": bool(self._body)}
        await self._over.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        await trio.lowlevel.checkpoint()
        while self._queued_bytes >= WINDOW_BYTES and not self._departed:
            await self._writers.park()
        if self._departed:
            raise SimulatedClientGone("the client has gone")
        kind = message["type"]
        if kind == "http.response.start" and not self._started:
            if self._back.draw_break():
                self._break()
                raise SimulatedClientGone("the connection broke")
            self._started = True
            status = int(message["status"])
            self._bodiless = self._bodiless or status in (204, 304)
            headers = tuple((bytes(name).lower(), bytes(value)) for name, value in message.get("headers", ()))
            self._put(Head(status=status, headers=headers))
        elif kind == "http.response.body" and self._started and not self._answered:
            body = bytes(message.get("body", b""))
            if body and not self._bodiless:
                self._put(body)
            if not message.get("more_body", False):
                self._answer(whole=True)
        elif kind == ABORT and not self._answered:
            self.connection.end()
            self._answer(whole=False)
        else:
            raise ValueError(f"unexpected message {kind!r}")

    def _answer(self, *, whole: bool) -> None:
        self._answered = True
        self._over.set()
        self._put(End(whole=whole))

    def _put(self, item: Item) -> None:
        # What was sent first arrives first, whatever latency the second draws.
        size_bytes = len(item) if isinstance(item, bytes) else 0
        sent_bytes = HEAD_BYTES if isinstance(item, Head) else size_bytes
        self._last_arrival = max(self._last_arrival, self._back.draw_arrival(sent_bytes))
        self._items.append((self._last_arrival, item))
        self._queued_bytes += size_bytes
        self._readers.unpark_all()

    # --- the client's side ---

    async def next_item(self) -> Item:
        """Cancellation loses nothing: an item is taken only when it is returned."""
        await trio.lowlevel.checkpoint()
        while not self._items and not self.client_closed:
            await self._readers.park()
        if not self.client_closed and not self._back.here(self._items[0][0]):
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
        self._depart()
        reusable = self.ended and self.connection.passage is None
        return reusable and not self.connection.dead and not self.client_closed

    def close_client(self) -> None:
        self.client_closed = True
        self._depart()
        self._readers.unpark_all()

    def _depart(self) -> None:
        if self._running and not self._left:
            self._nursery.start_soon(self._hear_departure)
        self._left = True


def _pieces(body: bytes) -> deque[bytes]:
    return deque(body[start : start + BODY_PIECE_BYTES] for start in range(0, max(len(body), 1), BODY_PIECE_BYTES))


def _headers_of(request: HttpRequest) -> list[tuple[bytes, bytes]]:
    headers = [(b"host", f"{request.host}:{request.port}".encode("ascii")), *request.headers]
    if request.body_bytes or request.method in ("POST", "PUT", "PATCH"):
        headers.append((b"content-length", b"%d" % request.body_bytes))
    return headers
