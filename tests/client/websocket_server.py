"""A WebSocket server whose every word is a test's: frames are written by hand, not by the codec under test."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import attrs
import trio
from trio_websocket import ConnectionClosed, WebSocketConnection, WebSocketRequest, serve_websocket

from lunanexa_client import ClientSettings
from lunanexa_client.address import parse_address

LIMIT_S = 120
"""Generous: a test that reaches it has failed."""


class Peer:
    """The server's end of one connection."""

    def __init__(self, socket: WebSocketConnection) -> None:
        self.socket = socket

    async def frame(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(await self.socket.get_message())
        return found

    async def expect(self, kind: str) -> dict[str, Any]:
        """The next frame, which is of this kind; credits are passed over where none is expected."""
        frame = await self.frame()
        while frame["type"] == "credit" != kind:
            frame = await self.frame()
        assert frame["type"] == kind, frame
        return frame

    async def say(self, kind: str, **members: Any) -> None:
        await self.socket.send_message(json.dumps({"type": kind, **members}))

    async def accept(self, **more: Any) -> dict[str, Any]:
        """Takes a ``submit`` and accepts it."""
        frame = await self.expect("submit")
        await self.say("accepted", id=frame["id"], workload_id=f"wl_{frame['id']}", queue_position=0, **more)
        return frame

    async def events(self, frame_id: str, first: int, last: int) -> None:
        for seq in range(first, last + 1):
            await self.say("event", id=frame_id, seq=seq, data=seq)

    async def until_closed(self) -> int:
        """The close code."""
        try:
            while True:
                await self.socket.get_message()
        except ConnectionClosed as closed:
            return closed.reason.code if closed.reason else 1006

    def vanish(self) -> None:
        """As a cut cable, seen at once."""
        stream = self.socket._stream
        assert isinstance(stream, trio.SocketStream)
        stream.socket.close()


Script = Callable[[Peer], Awaitable[object]]


@attrs.frozen
class Server:
    settings: ClientSettings
    requests: list[WebSocketRequest]


@asynccontextmanager
async def websocket_server(*scripts: Script, subprotocol: str | None = "lunanexa.v1") -> AsyncIterator[Server]:
    """Serves one connection a script, in order; each is closed when its script returns. Leaving waits for all of
    them, so that what they assert counts."""
    left, requests = list(scripts), []
    done = [trio.Event() for _ in scripts]

    async def handle(request: WebSocketRequest) -> None:
        requests.append(request)
        script, ended = left.pop(0), done[len(scripts) - len(left) - 1]
        socket = await request.accept(subprotocol=subprotocol)
        try:
            await script(Peer(socket))
        finally:
            ended.set()

    with trio.fail_after(LIMIT_S):
        async with trio.open_nursery() as nursery:
            server = await nursery.start(serve_websocket, handle, "127.0.0.1", 0, None)
            address = parse_address(f"http://127.0.0.1:{server.port}/v1")
            yield Server(ClientSettings(address=address, api_key="lnx_secret", connect_timeout_ms=10_000), requests)
            for ended in done:
                await ended.wait()
            nursery.cancel_scope.cancel()
