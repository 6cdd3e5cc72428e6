"""Accepting and draining, the same for both servers.

Shutdown order is nesting order: first no new connection is accepted and the idle ones are closed, then
requests in flight have the grace, then what is left is cancelled. hypercorn cancels handlers after its
grace too, so whoever wants callers to see a refusal ("draining") says so before the shutdown.
"""

from abc import abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol, TypeAlias

import trio

from lunanexa_adapters.http_server.answers import OnFault, RenderError, error_bytes
from lunanexa_adapters.http_server.guard import guarded
from lunanexa_adapters.http_server.handshakes import Handshakes, TlsStream
from lunanexa_adapters.http_server.limits import ServerLimits
from lunanexa_adapters.http_server.parties import Parties
from lunanexa_ports.asgi import TLS

Stream: TypeAlias = trio.SocketStream | TlsStream
Extensions: TypeAlias = Mapping[str, Any]
"""What each scope of one connection says in its ``extensions``."""
Listener: TypeAlias = trio.abc.Listener[Any]
"""Of ``Stream``s: plain TCP or TLS."""
Shutdown: TypeAlias = trio.Event | Callable[[], Awaitable[object]] | None
"""What starts the drain: an event, something to await, or nothing (then only cancellation ends a server)."""

REFUSAL_TIMEOUT_S = 1.0
GOODBYE_TIMEOUT_S = 1.0


class ServedConnection(Protocol):
    @abstractmethod
    async def run(self) -> None:
        """Until the connection is over. The socket is closed by the caller."""

    @abstractmethod
    def begin_drain(self) -> None:
        """From now on no further request; an idle connection ends at once."""


class Drain:
    """Shared by the connections of one server."""

    def __init__(self) -> None:
        self.begun = False
        self.connections: dict[ServedConnection, None] = {}

    def begin(self) -> None:
        self.begun = True
        for connection in list(self.connections):
            connection.begin_drain()


def raw_socket(stream: Stream) -> trio.socket.SocketType:
    return stream.transport_stream.socket if isinstance(stream, trio.SSLStream) else stream.socket


async def run_connections(
    listeners: Sequence[Listener],
    open_connection: Callable[[Stream, Drain, Extensions], ServedConnection],
    *,
    limits: ServerLimits,
    render_error: RenderError,
    on_fault: OnFault,
    shutdown: Shutdown,
    task_status: trio.TaskStatus[None],
) -> None:
    """Serves until ``shutdown`` and the drain after it; closes the listeners."""
    drain = Drain()
    handshakes = Handshakes(timeout_ms=limits.tls_handshake_timeout_ms, most=limits.tls_handshakes_max)
    parties = Parties(each=limits.tls_connections_each, strangers=limits.tls_strangers_max)

    async def serve_one(stream: Stream) -> None:
        if isinstance(stream, trio.SSLStream):
            if not await handshakes.finish(stream):
                return
            # Not above: a server without TLS, as each engine's is, is spared the library behind it.
            from lunanexa_adapters.crypto.peer import peer_of

            peer = peer_of(stream)
            party = None if peer is None else peer.serial
            await parties.serve(party, partial(serve_known, stream, {TLS: {"peer": peer}}))
        else:
            await serve_known(stream, {})

    async def serve_known(stream: Stream, extensions: Extensions) -> None:
        connection = open_connection(stream, drain, extensions)
        drain.connections[connection] = None
        try:
            await connection.run()
        finally:
            del drain.connections[connection]

    async def handle(stream: Stream) -> None:
        try:
            if len(drain.connections) + len(handshakes) >= limits.max_connections:
                await _refuse(stream, render_error)
            else:
                await guarded(partial(serve_one, stream), on_fault=on_fault)
        finally:
            with trio.move_on_after(GOODBYE_TIMEOUT_S, shield=True):
                await _say_goodbye(stream)
            raw_socket(stream).close()  # without awaiting: no cancellation can leave a socket open

    async with trio.open_nursery() as connections:
        async with trio.open_nursery() as accepting:
            await accepting.start(partial(trio.serve_listeners, handle, list(listeners), handler_nursery=connections))
            task_status.started()
            await wait_for(shutdown)
            accepting.cancel_scope.cancel()
        connections.cancel_scope.deadline = trio.current_time() + limits.grace_ms / 1000
        drain.begin()


async def wait_for(shutdown: Shutdown) -> None:
    if shutdown is None:
        await trio.sleep_forever()
    elif isinstance(shutdown, trio.Event):
        await shutdown.wait()
    else:
        await shutdown()


async def _refuse(stream: Stream, render_error: RenderError) -> None:
    if isinstance(stream, trio.SSLStream):
        return  # a handshake is more than a refusal is worth
    with trio.move_on_after(REFUSAL_TIMEOUT_S):
        try:
            await stream.send_all(error_bytes(render_error, 503))
            await stream.send_eof()
            while await stream.receive_some():
                pass
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return


async def _say_goodbye(stream: Stream) -> None:
    if isinstance(stream, trio.SSLStream):
        await stream.aclose()
