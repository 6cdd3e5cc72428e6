"""hypercorn's HTTP/1.1 protocol, without its ways into HTTP/2, and with answers of our own.

Overridden, and why:

* ``_check_protocol``: hypercorn 0.18 always takes an ``Upgrade: h2c`` and a prior-knowledge HTTP/2 preface,
  whatever ``alpn_protocols`` says; several malformed HTTP/2 requests then end the process. We serve
  HTTP/1.1 only, so an upgrade is ignored (RFC 9110, 7.8) and the preface is answered 505.
* ``_handle_events``: hypercorn stops reading while a pipelined request waits, and so misses the client's
  departure; 400 and 431 have empty bodies; a head of several read sizes passes the head limit.
* ``stream_send``: head, body and end were three sends.
"""

import enum
from collections.abc import Awaitable, Callable
from typing import Any

import h11
from hypercorn.config import Config
from hypercorn.events import Closed, Event, RawData, Updated
from hypercorn.protocol.events import Body, Data, EndBody, Request, Response
from hypercorn.protocol.events import Event as StreamEvent
from hypercorn.protocol.h11 import STREAM_ID, H11Protocol, H11WSConnection
from hypercorn.typing import AppWrapper, ConnectionState, H11SendableEvent, TaskGroup, WorkerContext
from hypercorn.typing import Event as EventFlag

from lunanexa_adapters.http_server.answers import OnFault, RenderError, error_headers
from lunanexa_adapters.http_server.http_stream import GuardedHttpStream
from lunanexa_adapters.http_server.limits import ServerLimits
from lunanexa_adapters.http_server.request_head import refusal_of, target_path, wants_websocket
from lunanexa_adapters.http_server.ws_stream import GuardedWsStream

READ_AHEAD_BYTES = 64 * 1024
"""How much of further requests is read while one is answered, to notice the client's departure."""


class GuardConfig(Config):
    """hypercorn's configuration and ours in one, as hypercorn hands it to each stream."""

    limits: ServerLimits
    render_error: RenderError
    on_fault: OnFault


class Phase(enum.Enum):
    """What the connection waits for; each has its own deadline for reading."""

    IDLE = "idle"
    HEAD = "head"
    BODY = "body"
    ANSWER = "answer"
    WEBSOCKET = "websocket"


_READ_WHOLE = (h11.IDLE, h11.DONE, h11.MUST_CLOSE, h11.CLOSED)


class GuardedH11Protocol(H11Protocol):
    config: GuardConfig

    def __init__(
        self,
        app: AppWrapper,
        config: GuardConfig,
        context: WorkerContext,
        task_group: TaskGroup,
        state: ConnectionState,
        ssl: bool,
        client: tuple[str, int] | None,
        server: tuple[str, int] | None,
        send: Callable[[Event], Awaitable[None]],
        *,
        read_unless: Callable[[EventFlag], Awaitable[bytes | None]],
    ) -> None:
        """``read_unless``: one read from the socket, or ``None`` when the event comes first."""
        super().__init__(app, config, context, task_group, state, ssl, client, server, send)
        self._read_unless = read_unless
        self._held = b""
        self._body_bytes = 0
        self._head_only = False
        self.corked = False
        """The rest of the response follows at once: hold what would be sent now."""
        self.closing = False
        self.timed_out = False
        """The client did not take what was sent in time."""

    @property
    def phase(self) -> Phase:
        if isinstance(self.connection, H11WSConnection):
            return Phase.WEBSOCKET
        if self.stream is None:
            return Phase.HEAD if self.connection.trailing_data[0] else Phase.IDLE
        return Phase.BODY if self.connection.their_state is h11.SEND_BODY else Phase.ANSWER

    @property
    def has_unread(self) -> bool:
        """The client may be sending still: closing at once would reset the connection under our last answer."""
        return self.connection.their_state not in _READ_WHOLE

    async def refuse(self, status: int) -> None:
        """Answers by itself where no answer has begun, and ends the connection."""
        if self.connection.our_state in (h11.IDLE, h11.SEND_RESPONSE) and not self.closing:
            await self._close_stream()  # the application first: it may be about to answer
            headers, body = error_headers(self.config.render_error, status)
            await self._send_h11_event(h11.Response(status_code=status, headers=headers))
            if not self._head_only:
                await self._send_h11_event(h11.Data(data=body))
            await self._send_h11_event(h11.EndOfMessage())
            await self.flush()
        await self.send(Closed())

    async def flush(self) -> None:
        held, self._held = self._held, b""
        if held:
            await self.send(RawData(data=held))

    async def stream_send(self, event: StreamEvent) -> None:
        if isinstance(event, Response) and self._must_close_after(event):
            event.headers.append((b"connection", b"close"))
        if isinstance(event, Data):
            await self.flush()
        await super().stream_send(event)
        interim = isinstance(event, Response) and event.status_code < 200
        if interim or isinstance(event, EndBody) or (isinstance(event, Body) and not self.corked):
            await self.flush()

    def _must_close_after(self, response: Response) -> bool:
        early_refusal = response.status_code >= 400 and self.connection.their_state is h11.SEND_BODY
        if any(name.lower() == b"connection" for name, _ in response.headers):
            return False
        return response.status_code >= 200 and (early_refusal or self.context.terminated.is_set())

    async def _send_h11_event(self, event: H11SendableEvent) -> None:
        try:
            self._held += self.connection.send(event)
        except h11.LocalProtocolError:
            if self.connection.their_state is not h11.ERROR:
                raise

    async def _handle_events(self) -> None:
        while not self.closing:
            if self.connection.they_are_waiting_for_100_continue:
                await self._send_h11_event(h11.InformationalResponse(status_code=100, headers=[]))
                await self.flush()
            try:
                event: Any = self.connection.next_event()
            except h11.RemoteProtocolError as error:
                await self.refuse(error.error_status_hint)
                return
            if isinstance(event, h11.Request):
                await self._begin(event)
            elif event is h11.PAUSED:
                await self._wait_for_recycle()
            elif isinstance(event, h11.ConnectionClosed) or event is h11.NEED_DATA or self.stream is None:
                return
            elif isinstance(event, h11.Data):
                await self._take_body(bytes(event.data))
            elif isinstance(event, h11.EndOfMessage):
                await self.stream.handle(EndBody(stream_id=STREAM_ID))
            elif isinstance(event, Data):
                await self.stream.handle(event)

    async def _begin(self, request: h11.Request) -> None:
        await self.send(Updated(idle=False))
        self._body_bytes = 0
        self._head_only = request.method == b"HEAD"
        status = refusal_of(request, self.config.limits)
        if status is not None:
            await self.refuse(status)
        else:
            await self._create_stream(request)

    async def _take_body(self, data: bytes) -> None:
        self._body_bytes += len(data)
        limit = self.config.limits.body_max_bytes
        if limit is not None and self._body_bytes > limit:
            await self.refuse(413)
        elif self.stream is not None:
            await self.stream.handle(Body(stream_id=STREAM_ID, data=data))

    async def _create_stream(self, request: h11.Request) -> None:
        websocket = wants_websocket(request)
        stream: GuardedHttpStream | GuardedWsStream = (GuardedWsStream if websocket else GuardedHttpStream)(
            self.app,
            self.config,
            self.context,
            self.task_group,
            self.ssl,
            self.client,
            self.server,
            self.stream_send,
            STREAM_ID,
        )
        stream.protocol = self
        self.stream = stream
        if websocket:
            assert isinstance(self.connection, h11.Connection)
            self.connection = H11WSConnection(self.connection)
        self.keep_alive_requests += 1
        await stream.handle(
            Request(
                stream_id=STREAM_ID,
                headers=list(request.headers),
                http_version=request.http_version.decode("ascii"),
                method=request.method.decode("ascii").upper(),
                raw_path=target_path(request) or b"/",
                state=self.connection_state,
            )
        )

    async def _wait_for_recycle(self) -> None:
        """A further request is there before the present one is answered. Read on within a bound all the same:
        nothing else would notice that the client has gone."""
        await self.can_read.clear()
        while not self.can_read.is_set() and not self.closing:
            if len(self.connection.trailing_data[0]) > READ_AHEAD_BYTES:
                await self.can_read.wait()
                return
            data = await self._read_unless(self.can_read)
            if data is not None:
                self.connection.receive_data(data)
                if not data:
                    await self.send(Closed())
