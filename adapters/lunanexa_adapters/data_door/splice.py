"""Bytes from a gateway to an engine and back, as they come.

Of each direction there is one read at a time in memory: it is written before the next is made, so that a slow reader
slows its sender, by way of the kernel's own buffers. An end of one direction is passed on and ends nothing else; a
gateway that leaves ends both, and so does what breaks.
"""

import enum
import struct
from contextlib import suppress
from socket import SO_LINGER, SOL_SOCKET

import trio

from lunanexa_adapters.data_door.tls_stream import READ_BYTES, Gone, TlsServerStream

_BROKEN = (trio.BrokenResourceError, trio.ClosedResourceError)


class Ending(enum.Enum):
    """How a passage ended."""

    DONE = "done"
    """Both said that they send no more."""
    GATEWAY_LEFT = "gateway_left"
    ENGINE_BROKE = "engine_broke"


async def splice(gateway: TlsServerStream, engine: trio.SocketStream) -> Ending:
    """Returns when there is nothing more to pass on, in either direction; at once when a socket is closed."""
    both = _Splice(gateway, engine)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(both.inwards, nursery.cancel_scope)
        nursery.start_soon(both.outwards, nursery.cancel_scope)
    return both.ending


def reset(sock: trio.socket.SocketType) -> None:
    """Closes a socket at once: the kernel sends nothing of what it still holds, and the other end can't take this for
    a proper end."""
    with suppress(OSError):
        sock.setsockopt(SOL_SOCKET, SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


class _Splice:
    """The first that ends for good says how, and ends the other."""

    def __init__(self, gateway: TlsServerStream, engine: trio.SocketStream) -> None:
        self.ending = Ending.DONE
        self._gateway = gateway
        self._engine = engine
        self._quiet = 0
        """How many directions have ended properly."""

    async def inwards(self, scope: trio.CancelScope) -> None:
        """From the gateway to the engine. It watches for the gateway's departure to the end."""
        try:
            while data := await self._gateway.receive():
                await self._engine.send_all(data)
            await self._engine.send_eof()
            self._ended_properly(scope)
        except Gone:
            pass
        except _BROKEN:
            # It takes no more, and may have said why before: what it said is passed on by the other task.
            await self._gateway.wait_gone()
        else:
            await self._gateway.wait_gone()
        self._end(Ending.GATEWAY_LEFT, scope)

    async def outwards(self, scope: trio.CancelScope) -> None:
        """From the engine to the gateway."""
        try:
            while data := await self._engine.receive_some(READ_BYTES):
                await self._gateway.send(data)
            await self._gateway.send_eof()
        except Gone:
            self._end(Ending.GATEWAY_LEFT, scope)
        except _BROKEN:
            self._end(Ending.ENGINE_BROKE, scope)
        else:
            self._ended_properly(scope)

    def _ended_properly(self, scope: trio.CancelScope) -> None:
        self._quiet += 1
        if self._quiet == 2:
            scope.cancel()

    def _end(self, ending: Ending, scope: trio.CancelScope) -> None:
        if not scope.cancel_called:
            self.ending = ending
            scope.cancel()
