"""``/v1/stream``: opens, counts and ends connections, and is the home of workloads that outlive theirs."""

import contextlib
from typing import Final

import trio

from lunanexa_adapters.asgi.headers import request_id
from lunanexa_adapters.websocket.answers import DRAINING
from lunanexa_adapters.websocket.calls import Caller
from lunanexa_adapters.websocket.closing import FAULT, RESTART
from lunanexa_adapters.websocket.connection import Connection
from lunanexa_adapters.websocket.handshake import read_handshake, refuse_handshake
from lunanexa_adapters.websocket.log import Room
from lunanexa_adapters.websocket.report import Reporter
from lunanexa_adapters.websocket.resumables import Resumables
from lunanexa_adapters.websocket.services import Services, fault_of
from lunanexa_adapters.websocket.settings import WebSocketSettings
from lunanexa_core.contract.frames import SUBPROTOCOL
from lunanexa_core.ids import RequestId, SessionId
from lunanexa_core.outcomes import Outcome, Refusal
from lunanexa_ports.asgi import AsgiApplication, Receive, Scope, Send
from lunanexa_ports.clock import Clock
from lunanexa_ports.gateway import InferenceGateway
from lunanexa_ports.ids import IdSource
from lunanexa_ports.metrics import Metrics
from lunanexa_ports.workloads import WorkloadPlane

_NO_ROOM: Final = Refusal(outcome=Outcome.NO_CAPACITY, message="The service has no room for another connection.")
_TOO_MANY: Final = Refusal(outcome=Outcome.RATE_LIMITED, message="This key has too many connections open.")


class WebSocketPlane(AsgiApplication):
    """Answers every WebSocket scope that reaches it. ``session`` is the gateway's: tokens name it."""

    def __init__(
        self,
        *,
        gateway: InferenceGateway,
        workloads: WorkloadPlane,
        ids: IdSource,
        clock: Clock,
        metrics: Metrics,
        session: SessionId,
        settings: WebSocketSettings | None = None,
    ) -> None:
        settings = settings or WebSocketSettings()
        self._services = Services(
            gateway=gateway,
            workloads=workloads,
            ids=ids,
            clock=clock,
            settings=settings,
            reporter=Reporter(metrics),
            resumables=Resumables(ids, session, most=settings.resumables_max),
            room=Room(settings.kept_total_bytes_max),
        )
        self._connections: dict[Connection, str] = {}
        """And the digest of the key of each."""
        self._outlasting: trio.Nursery | None = None
        self._draining = False

    @property
    def kept_bytes(self) -> int:
        """Output that is kept for clients that may come back."""
        return self._services.room.used_bytes

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Carries resumable workloads; without it nothing is resumable. Never returns. To be cancelled after the
        last connection has ended, and before the gateway is."""
        async with trio.open_nursery() as nursery:
            self._outlasting = nursery
            task_status.started()
            try:
                await trio.sleep_forever()
            finally:
                self._outlasting = None

    def begin_drain(self) -> None:
        """Tells every client to go elsewhere. Their workloads may end; nobody can come back for one."""
        self._draining = True
        for connection in list(self._connections):
            connection.drain()
        self._services.resumables.let_go()

    def close(self) -> None:
        """Ends what the drain has left."""
        self.begin_drain()
        for connection in list(self._connections):
            connection.end(RESTART)

    async def __call__(self, scope: Scope, receive: Receive, send: Send, /) -> None:
        services = self._services
        request = request_id(scope, services.ids)
        await receive()
        caller = read_handshake(scope)
        refusal = caller if isinstance(caller, Refusal) else await self._refusal_of(caller)
        if isinstance(caller, Refusal) or refusal is not None:
            assert refusal is not None
            await refuse_handshake(scope, send, refusal, request)
            return
        connection = Connection(services, caller, receive, send, self._outlasting)
        services.reporter.began()
        self._connections[connection] = caller.key_digest
        began_s = trio.current_time()
        try:
            await self._serve(connection, request, send)
        finally:
            del self._connections[connection]
            ms = round((trio.current_time() - began_s) * 1000)
            services.reporter.ended(request, connection.closing.code, workloads=connection.workloads, ms=ms)

    async def _refusal_of(self, caller: Caller) -> Refusal | None:
        stranger = await self._services.gateway.authenticate(caller.api_key)
        if stranger is not None:
            return stranger
        # After the last wait: what is counted here holds until the connection is among them.
        settings = self._services.settings
        if self._draining:
            return DRAINING
        if len(self._connections) >= settings.connections_max:
            return _NO_ROOM
        if list(self._connections.values()).count(caller.key_digest) >= settings.connections_of_key_max:
            return _TOO_MANY
        return None

    async def _serve(self, connection: Connection, request: RequestId, send: Send) -> None:
        headers = [(b"x-request-id", request.encode())]

        async def serve() -> None:
            await send({"type": "websocket.accept", "subprotocol": SUBPROTOCOL, "headers": headers})
            if self._draining:
                connection.drain()
            await connection.run()

        fault = await fault_of(serve)
        if fault is None or isinstance(fault, OSError):  # ASGI tells a sender by OSError that its client has left
            return
        self._services.reporter.fault("websocket_failed", request, fault)
        connection.closing = FAULT
        with trio.move_on_after(self._services.settings.close_ms / 1000), contextlib.suppress(OSError):
            await send({"type": "websocket.close", "code": FAULT.code, "reason": FAULT.reason})
