"""One HTTP exchange over ASGI: reading a bounded body, noticing a departure, and sending an answer.

Every byte of every answer leaves through ``Exchange.send_json``, ``send_text``, ``send_answer`` or an
``AnswerStream``; the last two are where a fault breaks an answer off.
Source: https://asgi.readthedocs.io/en/latest/specs/www.html
"""

from collections.abc import Awaitable, Callable, Iterable
from typing import Final

import trio

from lunanexa_apps.engine.errors import ApiError, body_too_large, told_to_fail
from lunanexa_apps.engine.faults import FaultKind, Struck
from lunanexa_apps.engine.frames import encode
from lunanexa_ports.asgi import ABORT, Receive, Scope, Send

Header = tuple[bytes, bytes]
JSON: Final = b"application/json"


class Exchange:
    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._scope = scope
        self._receive = receive
        self._send = send
        self.struck: Struck = {}
        """The faults that this call meets."""

    @property
    def method(self) -> str:
        return str(self._scope["method"])

    @property
    def path(self) -> str:
        return str(self._scope["path"])

    def header(self, name: bytes) -> bytes | None:
        headers: Iterable[tuple[bytes, bytes]] = self._scope["headers"]
        return next((value for key, value in headers if key.lower() == name), None)

    async def body(self, limit_bytes: int) -> bytes | ApiError | None:
        """The whole body; a 413 as soon as it must be too large; None when the client has gone."""
        declared = self.header(b"content-length")
        if declared is not None and declared.isdigit() and len(declared) < 20 and int(declared) > limit_bytes:
            return body_too_large(limit_bytes)
        parts: list[bytes] = []
        size = 0
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                return None
            part: bytes = message.get("body", b"")
            size += len(part)
            if size > limit_bytes:
                return body_too_large(limit_bytes)
            parts.append(part)
            if not message.get("more_body", False):
                return b"".join(parts)

    async def cancel_on_departure(self, scope: trio.CancelScope) -> None:
        """Watch for the client's departure once the body has been read."""
        while (await self._receive())["type"] != "http.disconnect":
            pass
        scope.cancel()

    async def send_json(self, status: int, document: object, headers: Iterable[Header] = ()) -> None:
        await self._send_whole(status, JSON, encode(document), headers)

    async def send_answer(self, body: bytes, content_type: bytes = JSON) -> None:
        """The whole answer of a model route."""
        if FaultKind.CUT in self.struck:
            await self._start(200, content_type, len(body), ())
            await self._send({"type": "http.response.body", "body": body[: len(body) // 2], "more_body": True})
            await self.abort()
        elif FaultKind.ERROR_FRAME in self.struck:
            await self.send_json(200, told_to_fail().document())
        else:
            await self._send_whole(200, content_type, body, ())

    async def abort(self) -> None:
        """Close the connection without another byte; the last act of an exchange. A server that can't do that
        sees an answer that does not end."""
        if ABORT in self._scope.get("extensions", {}):
            await self._send({"type": ABORT})

    async def send_text(self, content_type: bytes, text: str) -> None:
        await self._send_whole(200, content_type, text.encode("utf-8"), ())

    async def refuse(self, error: ApiError) -> None:
        await self.send_json(error.status, error.document(), error.headers)

    async def _send_whole(self, status: int, content_type: bytes, body: bytes, headers: Iterable[Header]) -> None:
        await self._start(status, content_type, len(body), headers)
        await self._send({"type": "http.response.body", "body": body})

    async def _start(self, status: int, content_type: bytes, size_bytes: int, headers: Iterable[Header]) -> None:
        length = str(size_bytes).encode("ascii")
        listed = [(b"content-type", content_type), (b"content-length", length), *headers]
        await self._send({"type": "http.response.start", "status": status, "headers": listed})

    async def open_events(self) -> "AnswerStream":
        return await self.open_stream(b"text/event-stream; charset=utf-8")

    async def open_stream(self, content_type: bytes) -> "AnswerStream":
        listed = [(b"content-type", content_type), (b"cache-control", b"no-cache")]
        await self._send({"type": "http.response.start", "status": 200, "headers": listed})
        return AnswerStream(self._send, self.struck, self.abort)


class AnswerStream:
    """An answer that is told piece by piece: whole events, or sound."""

    def __init__(self, send: Send, struck: Struck, abort: Callable[[], Awaitable[None]]) -> None:
        self._send = send
        self._struck = struck
        self._abort = abort

    @property
    def breaks_after(self) -> int | None:
        """After so many tokens, or else before the finish, the stream has to be broken off."""
        limits = [self._struck[kind] for kind in (FaultKind.CUT, FaultKind.ERROR_FRAME) if kind in self._struck]
        return min(limits, default=None)

    async def break_off(self, failure: bytes) -> None:
        """Ends it as the faults say: cut, or with an event that tells of the failure."""
        if FaultKind.CUT in self._struck:
            await self._abort()
        else:
            await self._end(failure)

    async def raw(self, data: bytes) -> None:
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def done(self, last: bytes = b"") -> None:
        await self._end(b"" if FaultKind.NO_DONE in self._struck else last)

    async def _end(self, last: bytes) -> None:
        await self._send({"type": "http.response.body", "body": last, "more_body": False})
