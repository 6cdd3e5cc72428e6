"""What the tests of the HTTP adapters share: a served application, raw bytes, the error shape."""

import json
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import attrs
import trio

from lunanexa_adapters.http_server.answers import ClientGone
from lunanexa_adapters.http_server.limits import ServerLimits
from lunanexa_adapters.http_server.listeners import addresses, open_listeners
from lunanexa_ports.asgi import Message, Receive, Scope, Send

LIMIT_S = 20
"""Generous: a test that reaches it has failed."""


def render_error(status: int) -> tuple[list[tuple[bytes, bytes]], bytes]:
    error = {"message": "m", "type": "t", "param": None, "code": str(status), "retryable": False, "request_id": "r"}
    return [(b"content-type", b"application/json")], json.dumps({"error": error}).encode()


def has_error_shape(body: bytes, status: int) -> bool:
    return bool(json.loads(body) == json.loads(render_error(status)[1]))


@attrs.define
class Server:
    host: str
    port: int
    stop: trio.Event
    """Set: the server drains."""
    ended: trio.Event
    """The server has returned by itself."""
    faults: list[BaseException]
    cancel: trio.CancelScope
    open_files: int
    """Of this process when the server had just started."""
    _streams: list[trio.SocketStream] = attrs.Factory(list)

    async def connect(self) -> trio.SocketStream:
        """Closed at the latest when the test ends."""
        stream = await trio.open_tcp_stream(self.host, self.port)
        self._streams.append(stream)
        return stream

    def close_streams(self) -> None:
        for stream in self._streams:
            stream.socket.close()

    def kill(self) -> None:
        self.cancel.cancel()


@asynccontextmanager
async def served(serve: Callable[..., Any], app: Any, limits: ServerLimits | None = None) -> AsyncIterator[Server]:
    listeners = await open_listeners("127.0.0.1", 0)
    host, port = addresses(listeners)[0]
    faults: list[BaseException] = []
    async with trio.open_nursery() as nursery:
        server = Server(
            host, port, trio.Event(), trio.Event(), faults, trio.CancelScope(), len(os.listdir("/proc/self/fd"))
        )

        async def run(task_status: trio.TaskStatus[None]) -> None:
            with server.cancel:
                await serve(
                    app,
                    listeners,
                    render_error=render_error,
                    on_fault=faults.append,
                    limits=limits or ServerLimits(),
                    shutdown=server.stop,
                    task_status=task_status,
                )
                server.ended.set()

        with trio.fail_after(LIMIT_S):
            await nursery.start(run)
            try:
                yield server
            finally:
                server.close_streams()
        nursery.cancel_scope.cancel()


async def talk(server: Server, *pieces: bytes) -> bytes:
    """Sends the pieces as fast as they go and reads until the server ends the connection."""
    stream = await server.connect()
    async with stream, trio.open_nursery() as nursery:

        async def send() -> None:
            try:
                for piece in pieces:
                    await stream.send_all(piece)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                return

        nursery.start_soon(send)
        received = await read_to_end(stream)
        nursery.cancel_scope.cancel()
    return received


async def read_to_end(stream: trio.SocketStream) -> bytes:
    received = b""
    try:
        async for data in stream:
            received += data
    except trio.BrokenResourceError:
        pass
    return received


async def read_until(stream: trio.SocketStream, ending: bytes) -> bytes:
    received = b""
    while ending not in received:
        data = await stream.receive_some()
        assert data, received
        received += data
    return received


def ws_frames(raw: bytes) -> list[tuple[int, bytes]]:
    """Opcode and payload of each whole frame that a server sent after its handshake, pings left out."""
    frames: list[tuple[int, bytes]] = []
    rest = raw.partition(b"\r\n\r\n")[2]
    while rest:
        length, start = rest[1], 2
        if length == 126:
            length, start = int.from_bytes(rest[2:4], "big"), 4
        elif length == 127:
            length, start = int.from_bytes(rest[2:10], "big"), 10
        if rest[0] != 0x89:
            frames.append((rest[0] & 0x0F, rest[start : start + length]))
        rest = rest[start + length :]
    return frames


def parse_answer(raw: bytes) -> tuple[int, dict[bytes, bytes], bytes]:
    head, _, body = raw.partition(b"\r\n\r\n")
    lines = head.split(b"\r\n")
    headers = dict(line.split(b": ", 1) for line in lines[1:])
    return int(lines[0].split(b" ")[1]), {name.lower(): value for name, value in headers.items()}, body


async def read_body(receive: Receive) -> bytes:
    body = b""
    while True:
        message = await receive()
        if message["type"] != "http.request":
            raise ClientGone
        piece: bytes = message.get("body", b"")
        body += piece
        if not message.get("more_body", False):
            return body


async def until_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def answer(send: Send, status: int, body: bytes, *headers: tuple[bytes, bytes]) -> None:
    await send({"type": "http.response.start", "status": status, "headers": list(headers)})
    await send({"type": "http.response.body", "body": body, "more_body": False})


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    """Says back the body of a request and each message of a WebSocket."""
    if scope["type"] == "http":
        await answer(send, 200, await read_body(receive))
    elif scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.accept"})
        while (message := await receive())["type"] == "websocket.receive":
            reply: Message = {"type": "websocket.send", "text": message.get("text"), "bytes": message.get("bytes")}
            await send(reply)
