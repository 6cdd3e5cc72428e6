"""A client that may leave at any moment: raw HTTP on one connection, and no patience with wrong answers."""

import socket
import struct
from typing import Any, Final

import attrs
import trio

from benchmarks.harness import Way

READ_BYTES: Final = 64 * 1024
ANSWER_S: Final = 60.0
"""Longer than any answer of an engine with these settings takes."""
_RESET: Final = struct.pack("ii", 1, 0)


class Cut(Exception):
    """The connection ended within an answer."""


@attrs.frozen
class Told:
    """A whole answer; ``body`` as it came, chunk heads included."""

    status: int
    body: bytes

    @property
    def whole(self) -> bool:
        """Whether it is a 200 that says to its end what was asked for."""
        streamed = b"data: " in self.body
        return self.status == 200 and (not streamed or b"data: [DONE]" in self.body)


class Visitor:
    """One connection at a time, opened when it is needed and kept for the next request."""

    def __init__(self, way: Way) -> None:
        self.way = way
        self._stream: trio.SocketStream | None = None

    async def send(self, target: str, document: dict[str, Any]) -> None:
        """Sends a request."""
        await self.send_bytes(self.way.post(target, document))

    async def send_bytes(self, request: bytes) -> None:
        """Sends a request as it is."""
        if self._stream is None:
            self._stream = await trio.open_tcp_stream(self.way.address.host, self.way.address.port)
        await self._stream.send_all(request)

    async def read(self) -> bytes:
        """What is there, at least one byte. Raises :class:`Cut`."""
        assert self._stream is not None
        try:
            data = bytes(await self._stream.receive_some(READ_BYTES))
        except trio.BrokenResourceError:
            data = b""
        if not data:
            self.leave()
            raise Cut
        return data

    async def answer(self) -> Told:
        """The answer to what was sent. Raises :class:`Cut`."""
        data = b""
        with trio.fail_after(ANSWER_S):
            while not (head := data.partition(b"\r\n\r\n"))[1]:
                data += await self.read()
            lines, body = head[0].lower(), head[2]
            _, counted, rest = lines.partition(b"\r\ncontent-length:")
            length = int(rest.split(b"\r\n", 1)[0]) if counted else None
            while not body.endswith(b"\r\n0\r\n\r\n") if length is None else len(body) < length:
                body += await self.read()
        if b"\r\nconnection: close" in lines:
            self.leave()
        return Told(int(lines.split(b" ", 2)[1]), body)

    def leave(self, *, reset: bool = False) -> None:
        """Closes the connection, in the middle of whatever it is in; with RST where ``reset``."""
        if self._stream is not None:
            if reset:
                self._stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            self._stream.socket.close()
            self._stream = None
