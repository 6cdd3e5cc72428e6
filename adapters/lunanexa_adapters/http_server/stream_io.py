"""Reading and writing with bounds, the same for both servers."""

import struct
from contextlib import suppress
from socket import SO_LINGER, SOL_SOCKET

import h11
import trio

from lunanexa_adapters.http_server.accept import Stream, raw_socket
from lunanexa_adapters.http_server.limits import ServerLimits

READ_BYTES = 64 * 1024


async def receive(stream: Stream) -> bytes:
    """What is there, or nothing at the end, however the end came."""
    try:
        return bytes(await stream.receive_some(READ_BYTES))
    except (trio.BrokenResourceError, trio.ClosedResourceError):
        return b""


async def linger(stream: Stream, limits: ServerLimits) -> None:
    """Throws away what the client still sends, for a while: closing a socket with unread data resets it, and
    a reset may destroy our last answer before the client has read it."""
    with trio.move_on_after(limits.linger_ms / 1000):
        while await receive(stream):
            pass


def is_cut_unframed(protocol: h11.Connection) -> bool:
    """A response to HTTP/1.0 ends with the connection: one that is cut must end in a reset, or it would pass
    for whole."""
    return protocol.our_state is h11.SEND_BODY and protocol.their_http_version == b"1.0"


class BoundedWriter:
    """Sends one after another, each within a time."""

    def __init__(self, stream: Stream, limits: ServerLimits) -> None:
        self._stream = stream
        self._socket = raw_socket(stream)
        self._timeout_s = limits.write_timeout_ms / 1000
        self._busy = False
        self._waiting = trio.lowlevel.ParkingLot()
        self.timed_out = False
        """A send was not taken in time, and the connection was reset for it."""

    async def send(self, data: bytes) -> bool:
        """Whether it was sent. If not, or when cancelled midway, the connection is reset: half a message may be
        on the wire and nothing sensible can follow it."""
        try:
            await self._take_turn()
            try:
                with trio.move_on_after(self._timeout_s) as scope:
                    await self._stream.send_all(data)
            finally:
                self._hand_on()
        except trio.Cancelled:
            self.reset()
            raise
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            self.reset()
            return False
        if scope.cancelled_caught:
            self.timed_out = True
            self.reset()
        return not scope.cancelled_caught

    async def _take_turn(self) -> None:
        """First come, first served, as ``trio.Lock``, but without its turn of the scheduler when nobody else
        sends, which is nearly always."""
        if self._busy:
            await self._waiting.park()  # the one before us hands its turn over
        self._busy = True

    def _hand_on(self) -> None:
        if self._waiting:
            self._waiting.unpark()
        else:
            self._busy = False

    def reset(self) -> None:
        """The kernel too must not go on offering our data to a peer that takes none."""
        with suppress(OSError):
            self._socket.setsockopt(SOL_SOCKET, SO_LINGER, struct.pack("ii", 1, 0))
        self._socket.close()


class BodyPace:
    """Time spent waiting for one body. Time in which nobody waited (backpressure) is not the client's fault;
    each second's worth of bytes buys a second, so that a trickle does not keep a connection for ever."""

    def __init__(self, limits: ServerLimits) -> None:
        self._left_s = limits.body_timeout_ms / 1000
        self._bytes_per_s = limits.body_bytes_per_s

    def deadline(self) -> float:
        return trio.current_time() + self._left_s

    def add(self, waited_s: float, received_bytes: int) -> None:
        self._left_s += received_bytes / self._bytes_per_s - waited_s
