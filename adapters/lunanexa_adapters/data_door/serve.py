"""The data listener of a node: who shows the certificate of a gateway and names a start (as TLS names servers, RFC
6066, section 3) is connected with the engine of that start.

It knows nothing of HTTP: requests, event streams and WebSockets pass as the bytes that they are. Whom to let in is the
doorkeeper's word. Who is refused sees a connection that was reset, and no reason.
"""

from collections.abc import Sequence
from functools import partial

import attrs
import trio

from lunanexa_adapters.crypto.credentials import TlsCredentials
from lunanexa_adapters.crypto.peer import peer_of
from lunanexa_adapters.data_door.refusals import Refusals
from lunanexa_adapters.data_door.splice import Ending, reset, splice
from lunanexa_adapters.data_door.tls_stream import TlsServerStream
from lunanexa_adapters.http_server.guard import guarded
from lunanexa_adapters.http_server.handshakes import Handshakes
from lunanexa_adapters.noticing import notice_loss
from lunanexa_core.drivers.specification import EngineAddress
from lunanexa_ports.data_door import Doorkeeper, DoorRefusal, Passage
from lunanexa_ports.errors import PortUnavailable


@attrs.frozen(kw_only=True)
class DataDoorLimits:
    """Bounds of one listener. How many may be inside is the doorkeeper's business."""

    handshake_timeout_ms: int = 5_000
    handshakes_max: int = 256
    """In progress; over it the one that has waited longest is cut."""
    connect_timeout_ms: int = 5_000
    """To the engine."""


async def serve_data_door(
    listeners: Sequence[trio.SocketListener],
    doorkeeper: Doorkeeper,
    credentials: TlsCredentials,
    limits: DataDoorLimits | None = None,
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serves until it is cancelled; closes the listeners, and cuts who is inside."""
    door = _DataDoor(doorkeeper, credentials, limits or DataDoorLimits())
    async with trio.open_nursery() as nursery:
        await nursery.start(trio.serve_listeners, door.handle, list(listeners))
        task_status.started()


class _DataDoor:
    def __init__(self, doorkeeper: Doorkeeper, credentials: TlsCredentials, limits: DataDoorLimits) -> None:
        self._doorkeeper = doorkeeper
        self._credentials = credentials
        self._connect_timeout_s = limits.connect_timeout_ms / 1_000
        self._handshakes = Handshakes(timeout_ms=limits.handshake_timeout_ms, most=limits.handshakes_max)
        self._refusals = Refusals()

    async def handle(self, transport: trio.SocketStream) -> None:
        """One connection, to its end."""
        try:
            await guarded(partial(self._take, transport), on_fault=self._refusals.tell_fault)
        finally:
            # Whatever has not ended properly by now must not look as if it had.
            reset(transport.socket)

    async def _take(self, transport: trio.SocketStream) -> None:
        caller = _address_of(transport)
        stream = await self._shake_hands(transport, caller)
        if stream is None:
            return
        peer = peer_of(stream.tls)
        admitted = DoorRefusal.NOT_A_GATEWAY if peer is None else self._doorkeeper.admit(peer, stream.server_name)
        if isinstance(admitted, DoorRefusal):
            self._refusals.tell(admitted.value, caller=caller, peer=None if peer is None else peer.identity)
            return
        try:
            await self._lead(admitted, stream, transport)
        finally:
            admitted.left()

    async def _shake_hands(self, transport: trio.SocketStream, caller: str | None) -> TlsServerStream | None:
        try:
            stream = TlsServerStream(transport, self._credentials.server_context(demand=True))
        except PortUnavailable as error:
            self._refusals.tell("no_certificate", caller=caller, detail=str(error))
            return None
        if await self._handshakes.finish(stream):
            return stream
        self._refusals.tell("handshake", caller=caller, detail=stream.problem or "not finished")
        return None

    async def _lead(self, passage: Passage, stream: TlsServerStream, transport: trio.SocketStream) -> None:
        cut = _Cut(transport.socket)
        with cut.scope:
            passage.on_close(cut)
            engine = await self._connect(passage.to)
            if engine is None:
                return
            cut.sockets.append(engine.socket)
            try:
                if await splice(stream, engine) is Ending.DONE:
                    transport.socket.close()
            finally:
                engine.socket.close()

    async def _connect(self, to: EngineAddress) -> trio.SocketStream | None:
        problem = "no connection in time"
        with trio.move_on_after(self._connect_timeout_s):
            try:
                engine = await trio.open_tcp_stream(to.host, to.port)
                notice_loss(engine.socket)
            except OSError as error:
                problem = str(error)
            else:
                return engine
        self._refusals.tell("engine_unreachable", detail=problem)
        return None


def _address_of(transport: trio.SocketStream) -> str | None:
    try:
        return str(transport.socket.getpeername()[0])
    except OSError:
        return None  # it has left already


class _Cut:
    """Ends a passage at this instant: no byte that is still on the way goes on."""

    def __init__(self, *sockets: trio.socket.SocketType) -> None:
        self.sockets = list(sockets)
        self.scope = trio.CancelScope()

    def __call__(self) -> None:
        for one in self.sockets:
            reset(one)
        self.scope.cancel()
