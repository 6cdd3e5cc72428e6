"""The network between a store and its server, which a test may cut or hold still, each way by itself."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio


class Proxy:
    """Passes bytes on both ways. ``asking`` and ``answering`` are the two ways; a way that is held keeps its bytes."""

    def __init__(self, target: int) -> None:
        self._target = target
        self.port = 0
        self.asking, self.answering = Way(), Way()
        self._streams: list[trio.SocketStream] = []

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        self.port = listener.socket.getsockname()[1]
        task_status.started()
        await trio.serve_listeners(self._pass_on, [listener])

    def cut(self) -> None:
        """Closes every connection on both sides, and loses what was held."""
        for stream in self._streams:
            stream.socket.close()
        self._streams.clear()

    async def _pass_on(self, client: trio.SocketStream) -> None:
        try:
            server = await trio.open_tcp_stream("127.0.0.1", self._target)
        except OSError:
            await client.aclose()
            return
        self._streams += [client, server]
        async with client, server, trio.open_nursery() as nursery:
            nursery.start_soon(self.asking.copy, client, server, nursery.cancel_scope)
            nursery.start_soon(self.answering.copy, server, client, nursery.cancel_scope)


class Way:
    """One direction, of all connections."""

    def __init__(self) -> None:
        self._open = trio.Event()
        self._open.set()
        self.held_bytes = 0
        """What arrived while the way was held."""
        self.arrived = trio.Event()

    def hold(self) -> None:
        self._open, self.arrived, self.held_bytes = trio.Event(), trio.Event(), 0

    def release(self) -> None:
        self._open.set()

    async def copy(self, source: trio.abc.ReceiveStream, target: trio.abc.SendStream, scope: trio.CancelScope) -> None:
        try:
            async for chunk in source:
                if not self._open.is_set():
                    self.held_bytes += len(chunk)
                    self.arrived.set()
                    await self._open.wait()
                await target.send_all(chunk)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        scope.cancel()


@asynccontextmanager
async def proxy_to(port: int) -> AsyncIterator[Proxy]:
    proxy = Proxy(port)
    async with trio.open_nursery() as nursery:
        await nursery.start(proxy.run)
        yield proxy
        nursery.cancel_scope.cancel()
