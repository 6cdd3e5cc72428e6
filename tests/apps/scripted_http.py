"""An HTTP client whose servers are functions of a test."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import attrs
import trio

from lunanexa_ports.http_client import Headers, HttpBroken, HttpClient, HttpRequest, HttpResponse


@attrs.frozen
class Reply(HttpResponse):
    """A response whose body comes in these pieces."""

    code: int
    pieces: Sequence[bytes] = ()
    head: Headers = ()

    @property
    def status(self) -> int:
        return self.code

    @property
    def headers(self) -> Headers:
        return self.head

    def chunks(self) -> AsyncIterator[bytes]:
        return Pieces(self.pieces)

    async def read(self, limit_bytes: int) -> bytes:
        await trio.lowlevel.checkpoint()
        body = b"".join(self.pieces)
        if len(body) > limit_bytes:
            raise HttpBroken("too long", head_seen=True)
        return body


class Pieces(AsyncIterator[bytes]):
    """As the real client's no generator: it may be left half-way."""

    def __init__(self, pieces: Sequence[bytes]) -> None:
        self._left = list(pieces)

    async def __anext__(self) -> bytes:
        await trio.lowlevel.checkpoint()
        if not self._left:
            raise StopAsyncIteration
        return self._left.pop(0)


class ScriptedHttp(HttpClient):
    """``server`` answers each request, or raises what the port may raise. ``requests`` are all that were asked."""

    def __init__(self, server: Callable[[HttpRequest], Reply]) -> None:
        self._server = server
        self.requests: list[HttpRequest] = []
        self.closed = False

    def exchange(self, request: HttpRequest) -> AbstractAsyncContextManager[HttpResponse]:
        return self._exchange(request)

    async def aclose(self) -> None:
        self.closed = True
        await trio.lowlevel.checkpoint()

    @asynccontextmanager
    async def _exchange(self, request: HttpRequest) -> AsyncIterator[HttpResponse]:
        await trio.lowlevel.checkpoint()
        self.requests.append(request)
        yield self._server(request)
