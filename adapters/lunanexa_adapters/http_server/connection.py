"""One connection of the guarded server: sockets and deadlines around hypercorn's protocol objects.

It stands in the place of hypercorn's ``TCPServer``, which shields ``send_all`` without a deadline (one
client that stops reading pins its task, and the shutdown, for ever), loses the idle timer when quart-trio
cancels the task that restarts it (idle connections are then never closed), has no deadline for bodies, and
closes a socket with unread data at once, which destroys the answer on its way.
"""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from math import inf
from socket import SHUT_WR
from typing import Any

import h11
import trio
from hypercorn.config import Config
from hypercorn.events import Closed, Event, RawData, Updated
from hypercorn.trio.task_group import TaskGroup
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import AppWrapper, ASGIReceiveEvent, ASGISendEvent, ConnectionState, Scope
from hypercorn.typing import Event as EventFlag
from hypercorn.utils import parse_socket_addr

from lunanexa_adapters.http_server.accept import Drain, Extensions, ServedConnection, Stream, raw_socket
from lunanexa_adapters.http_server.guard import guarded
from lunanexa_adapters.http_server.h11_protocol import GuardConfig, GuardedH11Protocol, Phase
from lunanexa_adapters.http_server.inbox import Inbox
from lunanexa_adapters.http_server.stream_io import BodyPace, BoundedWriter, is_cut_unframed, linger, receive
from lunanexa_ports.asgi import ABORT

FIRST_HEAD_AT_DRAIN_S = 1.0
"""A connection this young at the drain has its first request on the way."""


class ConnectionTasks(TaskGroup):
    """hypercorn's idea of a nursery: one for applications, one for what only accompanies them (pings)."""

    def __init__(
        self, applications: trio.Nursery, helpers: trio.Nursery, config: GuardConfig, extensions: Extensions
    ) -> None:
        super().__init__()
        self._applications = applications
        self._helpers = helpers
        self._on_fault = config.on_fault
        self._extensions = extensions

    async def spawn_app(
        self,
        app: AppWrapper,
        config: Config,
        scope: Scope,
        send: Callable[[ASGISendEvent | None], Awaitable[None]],
    ) -> Callable[[ASGIReceiveEvent], Awaitable[None]]:
        if scope["type"] == "websocket":
            scope["extensions"][ABORT] = {}
        scope["extensions"].update(self._extensions)  # type: ignore[typeddict-item]  # not in every kind of scope
        inbox = Inbox(drop_on_disconnect=scope["type"] == "http")
        self._applications.start_soon(self._run_app, app, scope, inbox, send)
        put: Any = inbox.put
        return put  # type: ignore[no-any-return]  # messages are plain mappings here, typed dicts there

    def spawn(self, func: Callable[..., Awaitable[Any]], *args: Any) -> None:
        self._helpers.start_soon(func, *args)

    async def _run_app(self, app: AppWrapper, scope: Scope, inbox: Inbox, send: Any) -> None:
        async def call() -> None:
            await app(scope, inbox.receive, send, trio.to_thread.run_sync, trio.from_thread.run)  # type: ignore[arg-type]

        await guarded(call, on_fault=self._on_fault)
        await send(None)


class GuardedConnection(ServedConnection):
    def __init__(
        self,
        app: AppWrapper,
        config: GuardConfig,
        context: WorkerContext,
        state: dict[str, Any],
        stream: Stream,
        drain: Drain,
        extensions: Extensions,
    ) -> None:
        self._app = app
        self._config = config
        self._limits = config.limits
        self._context = context
        self._state = state
        self._stream = stream
        self._socket = raw_socket(stream)
        self._drain = drain
        self._extensions = extensions
        self._writer = BoundedWriter(stream, self._limits)
        self._reading = trio.CancelScope()
        self._protocol: GuardedH11Protocol
        self._asked = False
        self._since = trio.current_time()
        """When the present phase of reading began: the connection, a head, a body, or the idling."""
        self._pace = BodyPace(self._limits)

    async def run(self) -> None:
        try:
            client = parse_socket_addr(self._socket.family, self._socket.getpeername())
            server = parse_socket_addr(self._socket.family, self._socket.getsockname())
        except OSError:
            return  # gone before we looked
        async with trio.open_nursery() as helpers:
            async with trio.open_nursery() as applications:
                self._protocol = GuardedH11Protocol(
                    self._app,
                    self._config,
                    self._context,
                    ConnectionTasks(applications, helpers, self._config, self._extensions),
                    ConnectionState(self._state),
                    isinstance(self._stream, trio.SSLStream),
                    client,
                    server,
                    self._on_event,
                    read_unless=self._read_unless,
                )
                await self._read_loop()
                await self._begin_close()
                self._socket.close()
            helpers.cancel_scope.cancel()

    def begin_drain(self) -> None:
        self._reading.deadline = min(self._reading.deadline, self._deadline())

    # --- reading ---

    async def _read_loop(self) -> None:
        """Until the connection is to be closed."""
        while not self._protocol.closing:
            data = await self._read_in_time()
            if data:
                await self._protocol.handle(RawData(data=data))
            elif data is not None:
                return
            elif self._protocol.phase in (Phase.HEAD, Phase.BODY):
                await self._protocol.refuse(408)
            elif self._protocol.phase is not Phase.ANSWER:
                return
        if self._protocol.has_unread:
            await linger(self._stream, self._limits)

    async def _read_in_time(self) -> bytes | None:
        """``None``: the deadline of the present phase is over."""
        began, phase = trio.current_time(), self._protocol.phase
        data: bytes | None = None
        with trio.CancelScope(deadline=self._deadline()) as self._reading:
            data = await receive(self._stream)
        now = trio.current_time()
        if phase is Phase.BODY:
            self._pace.add(now - began, len(data or b""))
        elif phase is Phase.IDLE and data:
            self._since = now
        return data

    def _deadline(self) -> float:
        limits = self._limits
        if self._protocol.closing:
            return -inf
        match self._protocol.phase:
            case Phase.IDLE:
                if self._drain.begun:
                    return -inf if self._asked else self._since + FIRST_HEAD_AT_DRAIN_S
                return self._since + (limits.idle_timeout_ms if self._asked else limits.head_timeout_ms) / 1000
            case Phase.HEAD:
                return self._since + limits.head_timeout_ms / 1000
            case Phase.BODY:
                return self._pace.deadline()
            case Phase.ANSWER:
                return inf
            case Phase.WEBSOCKET:
                if not limits.websocket_ping_ms:
                    return inf
                return trio.current_time() + (limits.websocket_ping_ms + limits.websocket_pong_timeout_ms) / 1000

    async def _read_unless(self, event: EventFlag) -> bytes | None:
        data: bytes | None = None
        async with trio.open_nursery() as nursery:

            async def give_up() -> None:
                await event.wait()
                nursery.cancel_scope.cancel()

            nursery.start_soon(give_up)
            data = await receive(self._stream)
            nursery.cancel_scope.cancel()
        return data

    # --- what the protocol asks for ---

    async def _on_event(self, event: Event) -> None:
        if isinstance(event, RawData):
            if not await self._writer.send(event.data):
                self._protocol.timed_out = self._writer.timed_out
                await self._begin_close()
        elif isinstance(event, Closed):
            await self._begin_close()
        elif isinstance(event, Updated):
            # No checkpoint here: the task that comes by may be cancelled already (quart-trio's is).
            self._since = trio.current_time()
            self._asked = True
            self._pace = BodyPace(self._limits)
            self._reading.deadline = self._deadline()

    async def _begin_close(self) -> None:
        """The application is told; the read loop does the rest."""
        if not self._protocol.closing:
            self._protocol.closing = True
            protocol = self._protocol.connection
            if isinstance(protocol, h11.Connection) and is_cut_unframed(protocol):
                self._writer.reset()
            elif not isinstance(self._stream, trio.SSLStream):
                with suppress(OSError):
                    self._socket.shutdown(SHUT_WR)
            self._reading.cancel()
            await self._protocol.can_read.set()
        await self._protocol.handle(Closed())
