"""One HTTP exchange: a bounded body read, an answer sent, a departure noticed.

Source: https://asgi.readthedocs.io/en/latest/specs/www.html
"""

import contextlib
import io
import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

import trio

from lunanexa_adapters.asgi.body_room import NO_ROOM, BodyRoom
from lunanexa_adapters.asgi.errors import ErrorAnswer, HeaderList, error_answer, invalid, too_large
from lunanexa_adapters.asgi.headers import raw_header
from lunanexa_core.ids import RequestId
from lunanexa_core.outcomes import Refusal
from lunanexa_ports.asgi import CLOSED_BECAUSE, Receive, Scope, Send
from lunanexa_ports.gateway import News, ResponseSink

_DRAIN_BYTES: Final = 4 * 1024 * 1024
_DRAIN_S: Final = 2.0
_LENGTH_DIGITS: Final = 18


class Departed(Exception):  # an ending, not an error
    """The client has gone before its request was read, or before a short answer was sent."""


class Exchange:
    """One request and its answer."""

    def __init__(
        self, scope: Scope, receive: Receive, send: Send, request: RequestId, room: BodyRoom | None = None
    ) -> None:
        """``room``: for its body, if one is to be read."""
        self._room = room
        self._held_bytes = 0
        self.scope = scope
        self.request = request
        self._receive = receive
        self._send = send
        self._watched = False
        self.begun = False
        self.ended = False
        self.closed_because: str | None = None

    @property
    def method(self) -> str:
        return str(self.scope["method"])

    @property
    def path(self) -> str:
        return str(self.scope["path"])

    def let_go(self) -> None:
        """The body is not held any more."""
        if self._room is not None:
            self._room.give_back(self._held_bytes)
            self._held_bytes = 0

    def _hold(self, size_bytes: int) -> bool:
        assert self._room is not None, "a body without room for it"
        if not self._room.take(size_bytes):
            return False
        self._held_bytes += size_bytes
        return True

    async def body(self, limit_bytes: int) -> bytes | Refusal:
        """The whole body, held until :meth:`let_go`; a refusal as soon as it must be too large, or finds no room.
        Raises :class:`Departed`."""
        declared = raw_header(self.scope, b"content-length")
        if declared is not None:
            if not declared.isdigit() or len(declared) > _LENGTH_DIGITS:
                return invalid("The header content-length is no number.", "content-length")
            if int(declared) > limit_bytes:
                return too_large(limit_bytes)
        # It gives its content away without copying it, and grows in place.
        whole = io.BytesIO()
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise Departed
            part: bytes = message.get("body", b"")
            more = message.get("more_body", False)
            if whole.tell() + len(part) > limit_bytes:
                return too_large(limit_bytes)
            if not self._hold(len(part)):
                return NO_ROOM
            if not more and whole.tell() == 0:
                return part
            whole.write(part)
            if not more:
                return whole.getvalue()

    async def run(self, work: Callable[[], Awaitable[None]]) -> None:
        """Runs ``work`` (the body was read) and cancels it when the client goes."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watch, nursery.cancel_scope)
            self._watched = True
            await work()
            nursery.cancel_scope.cancel(reason="the answer is complete")

    async def _watch(self, scope: trio.CancelScope) -> None:
        while (message := await self._receive())["type"] != "http.disconnect":
            pass
        self.closed_because = message.get(CLOSED_BECAUSE)
        scope.cancel(reason="the client has gone")

    async def start(self, status: int, headers: HeaderList) -> None:
        """Sends the head. The request id and ``no-store`` are added."""
        assert not self.begun, "an answer begins once"
        self.begun = True
        names = {name for name, _ in headers}
        if b"x-request-id" not in names:
            headers = [*headers, (b"x-request-id", self.request.encode())]
        if b"cache-control" not in names:
            headers = [*headers, (b"cache-control", b"no-store")]
        await self._tell({"type": "http.response.start", "status": status, "headers": headers})

    async def send_body(self, data: bytes, *, more: bool) -> None:
        """Sends body bytes; waits while the reader is slow."""
        self.ended = not more
        await self._tell({"type": "http.response.body", "body": data, "more_body": more})

    async def send_json(self, status: int, value: Any, headers: Sequence[tuple[bytes, bytes]] = ()) -> None:
        """A whole answer."""
        await self.send_whole(status, b"application/json", json.dumps(value, separators=(",", ":")).encode(), headers)

    async def send_whole(
        self, status: int, content_type: bytes, data: bytes, headers: Sequence[tuple[bytes, bytes]] = ()
    ) -> None:
        """A whole answer. To HEAD only its head."""
        listed = [(b"content-type", content_type), (b"content-length", b"%d" % len(data)), *headers]
        await self.start(status, listed)
        await self.send_body(b"" if self.method == "HEAD" else data, more=False)

    async def refuse(self, refusal: Refusal, headers: Sequence[tuple[str, str]] = ()) -> None:
        """A whole error answer."""
        answer = error_answer(refusal, self.request, headers)
        await self.start(answer.status, answer.headers)
        await self.send_body(b"" if self.method == "HEAD" else answer.body, more=False)

    async def refuse_unread(self, refusal: Refusal, headers: Sequence[tuple[str, str]] = ()) -> None:
        """A whole error answer to a request whose body was not read: the connection closes after it, and a little
        of the body is still taken, so that a client that sends before it reads sees the answer."""
        answer: ErrorAnswer = error_answer(refusal, self.request, [*headers, ("connection", "close")])
        await self.start(answer.status, answer.headers)
        await self.send_body(b"" if self.method == "HEAD" else answer.body, more=False)
        taken_bytes = 0
        with trio.move_on_after(_DRAIN_S):
            while taken_bytes < _DRAIN_BYTES:
                message = await self._receive()
                if message["type"] == "http.disconnect" or not message.get("more_body", False):
                    return
                taken_bytes += len(message.get("body", b""))

    async def _tell(self, message: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):
            await self._send(message)
            return
        # ASGI 2.4: sends fail after a departure. Within ``run`` the watcher is about to tell it as a cancellation.
        if self._watched:
            await trio.sleep_forever()
        raise Departed


class AsgiSink(ResponseSink):
    """The gateway's answer as ASGI messages."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._left_bytes: int | None = None

    @property
    def begun(self) -> bool:
        return self._exchange.begun

    @property
    def closed_because(self) -> str | None:
        return self._exchange.closed_because

    async def begin(self, status: int, headers: Sequence[tuple[str, str]]) -> None:
        listed = [(name.encode(), value.encode("latin-1", "replace")) for name, value in headers]
        declared = next((value for name, value in headers if name == "content-length"), None)
        self._left_bytes = None if declared is None else int(declared)
        await self._exchange.start(status, listed)

    async def write(self, data: bytes) -> None:
        more = True
        if self._left_bytes is not None:
            self._left_bytes -= len(data)
            # The last bytes of a known length end the answer in one send with them.
            more = self._left_bytes > 0
        await self._exchange.send_body(data, more=more)

    async def end(self, *, whole: bool = True) -> None:
        # An answer that does not end ends with its connection.
        if whole and not self._exchange.ended:
            await self._exchange.send_body(b"", more=False)

    async def refuse(self, refusal: Refusal, headers: Sequence[tuple[str, str]] = ()) -> None:
        await self._exchange.refuse(refusal, headers)

    async def tell(self, news: News) -> None:
        """A dialect has no words for it."""
