"""Calls an ASGI application in memory, as a server would: a client that sends in parts, looks on, and leaves."""

import json
from collections.abc import Sequence
from typing import Any

import trio

from lunanexa_core.identity.certificate import PeerCertificate
from lunanexa_ports.asgi import TLS, AsgiApplication, Message

Pairs = Sequence[tuple[bytes, bytes]]


class Gone(OSError):
    """What a server's ``send`` raises after the client's departure."""


class Client:
    """One request. ``departed`` set is the client's leaving; ``stuck`` is a body that never ends."""

    def __init__(
        self,
        method: str,
        path: str,
        body: bytes | Sequence[bytes] = b"",
        headers: Pairs = (),
        *,
        query: bytes = b"",
        stuck: bool = False,
        peer: PeerCertificate | None = None,
    ) -> None:
        parts = [body] if isinstance(body, bytes) else list(body)
        self.scope: dict[str, Any] = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.4"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode("utf-8", "replace"),
            "query_string": query,
            "root_path": "",
            "headers": [*headers, (b"host", b"lunanexa")],
            "client": ("10.0.0.9", 1234),
            "server": ("10.0.0.1", 8400),
            "extensions": {TLS: {"peer": peer}},
        }
        self._messages = [
            {"type": "http.request", "body": part, "more_body": stuck or number < len(parts)}
            for number, part in enumerate(parts, 1)
        ]
        self.departed = trio.Event()
        self.sent: list[Message] = []
        self.read_bytes = 0
        self._news = trio.Event()
        self._complete = trio.Event()

    async def receive(self) -> Message:
        await trio.lowlevel.checkpoint()
        if self._messages and not self.departed.is_set():
            message: Message = self._messages.pop(0)
            self.read_bytes += len(message["body"])
            return message
        async with trio.open_nursery() as nursery:

            async def ends(event: trio.Event) -> None:
                await event.wait()
                nursery.cancel_scope.cancel()

            nursery.start_soon(ends, self.departed)
            nursery.start_soon(ends, self._complete)
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        await trio.lowlevel.checkpoint()
        if self.departed.is_set():
            raise Gone
        expected = "http.response.start" if not self.sent else "http.response.body"
        assert message["type"] == expected, message
        assert not self._complete.is_set(), "nothing follows the end"
        self.sent.append(message)
        if message["type"] == "http.response.body" and not message.get("more_body", False):
            self._complete.set()
        self._news.set()
        self._news = trio.Event()

    async def call(self, app: AsgiApplication) -> "Client":
        """The whole exchange."""
        await app(self.scope, self.receive, self.send)
        return self

    async def until_sent(self, messages: int) -> None:
        while len(self.sent) < messages:
            await self._news.wait()

    @property
    def complete(self) -> bool:
        return self._complete.is_set()

    @property
    def status(self) -> int:
        return int(self.sent[0]["status"])

    @property
    def headers(self) -> dict[str, str]:
        pairs = [(name.decode("ascii"), value.decode("ascii")) for name, value in self.sent[0]["headers"]]
        found = {name.lower(): value for name, value in pairs}
        assert len(found) == len(pairs), f"a header came twice: {pairs}"
        return found

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.sent[1:])

    def json(self) -> Any:
        return json.loads(self.body)

    def error(self) -> Any:
        """The error, in the one shape with all that belongs to it."""
        assert self.complete
        assert self.status >= 400
        document = self.json()
        error = document["error"]
        assert set(error) == {"message", "type", "param", "code", "retryable", "request_id"}
        headers = self.headers
        assert headers["content-type"] == "application/json"
        assert headers["cache-control"] == "no-store"
        assert headers["x-request-id"] == error["request_id"] != ""
        assert headers["x-should-retry"] == ("true" if error["retryable"] else "false")
        assert headers["content-length"] == str(len(self.body))
        assert ("retry-after" in headers) == ("retry-after-ms" in headers) == (self.status in (429, 503))
        return error
