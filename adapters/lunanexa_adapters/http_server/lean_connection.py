"""One connection of the lean server: requests one after another, each with a task for the application
while the connection's own task reads on."""

from contextlib import suppress
from math import inf
from typing import Any
from urllib.parse import unquote

import h11
import trio

from lunanexa_adapters.http_server.accept import Drain, Extensions, ServedConnection, Stream, raw_socket
from lunanexa_adapters.http_server.answers import OnFault, RenderError, disconnect_message, error_headers
from lunanexa_adapters.http_server.guard import guarded
from lunanexa_adapters.http_server.inbox import Inbox
from lunanexa_adapters.http_server.lean_response import LeanResponse
from lunanexa_adapters.http_server.limits import ServerLimits
from lunanexa_adapters.http_server.request_head import refusal_of, target_path
from lunanexa_adapters.http_server.stream_io import BodyPace, BoundedWriter, is_cut_unframed, linger, receive
from lunanexa_ports.asgi import ABORT, AsgiApplication, Message, Scope

READ_AHEAD_BYTES = 64 * 1024
"""How much of further requests is read while one is answered, to notice the client's departure."""
REFUSAL_TIMEOUT_S = 1.0
FIRST_HEAD_AT_DRAIN_S = 1.0
"""A connection this young at the drain has its first request on the way."""

_READ_WHOLE = (h11.IDLE, h11.DONE, h11.MUST_CLOSE, h11.CLOSED)


class LeanConnection(ServedConnection):
    def __init__(
        self,
        app: AsgiApplication,
        stream: Stream,
        drain: Drain,
        extensions: Extensions,
        *,
        state: dict[str, Any],
        limits: ServerLimits,
        render_error: RenderError,
        on_fault: OnFault,
    ) -> None:
        self._app = app
        self._stream = stream
        self._drain = drain
        self._extensions = extensions
        self._state = state
        self._limits = limits
        self._render_error = render_error
        self._on_fault = on_fault
        self._writer = BoundedWriter(stream, limits)
        self._protocol = h11.Connection(h11.SERVER, max_incomplete_event_size=limits.head_max_bytes)
        self._response: LeanResponse | None = None
        self._flush_wanted = trio.lowlevel.ParkingLot()
        self._idling: trio.CancelScope | None = None
        self._asked = False
        self._since = trio.current_time()
        self._head_only = False
        self._ends: dict[str, Any] = {}

    async def run(self) -> None:
        try:
            sock = raw_socket(self._stream)
            self._ends = {"client": sock.getpeername()[:2], "server": sock.getsockname()[:2]}
        except OSError:
            return  # gone before we looked
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._flush_heads)
            while await self._serve_one(nursery):
                pass
            nursery.cancel_scope.cancel()
        if is_cut_unframed(self._protocol):
            self._writer.reset()
        elif self._protocol.their_state not in _READ_WHOLE:
            with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                if isinstance(self._stream, trio.SocketStream):
                    await self._stream.send_eof()
                await linger(self._stream, self._limits)

    def begin_drain(self) -> None:
        if self._idling is not None:
            self._idling.deadline = self._idle_deadline()

    # --- one request ---

    async def _flush_heads(self) -> None:
        """A head that no body follows at once is sent at the scheduler's next turn. One task for all requests:
        starting one for each would cost more than the send that it may save."""
        while True:
            await self._flush_wanted.park()
            if self._response is not None:
                await self._response.flush()

    async def _serve_one(self, nursery: trio.Nursery) -> bool:
        """Whether another one may follow."""
        request = await self._read_head()
        if request is None:
            return False
        inbox = Inbox(drop_on_disconnect=True)
        response = LeanResponse(
            self._protocol,
            self._writer,
            head_only=self._head_only,
            drain=self._drain,
            flush_soon=self._flush_wanted.unpark_all,
        )
        self._response = response
        feeding = trio.CancelScope()
        done = trio.Event()

        async def run_app() -> None:
            await self._run_app(self._scope_of(request), inbox, response)
            done.set()
            feeding.cancel()

        nursery.start_soon(run_app)
        with feeding:
            await self._feed(inbox, response)
        await done.wait()
        return self._recycle()

    async def _run_app(self, scope: Scope, inbox: Inbox, response: LeanResponse) -> None:
        async def take() -> Message:
            if self._protocol.they_are_waiting_for_100_continue and not response.gone:
                interim = self._protocol.send(h11.InformationalResponse(status_code=100, headers=[]))
                await self._writer.send(interim)
            return await inbox.receive()

        async def call() -> None:
            await self._app(scope, take, response.send)

        await guarded(call, on_fault=self._on_fault)
        if not response.gone:
            await self._refuse(500)  # does nothing where an answer has begun

    def _scope_of(self, request: h11.Request) -> Scope:
        path, _, query = (target_path(request) or b"/").partition(b"?")
        return {
            "type": "http",
            "asgi": {"spec_version": "2.4", "version": "3.0"},
            "http_version": request.http_version.decode("ascii"),
            "method": request.method.decode("ascii").upper(),
            "scheme": "https" if isinstance(self._stream, trio.SSLStream) else "http",
            "path": unquote(path.decode("ascii")),
            "raw_path": path,
            "query_string": query,
            "root_path": "",
            "headers": list(request.headers),
            "state": self._state.copy(),
            "extensions": {ABORT: {}, **self._extensions},
            **self._ends,
        }

    def _recycle(self) -> bool:
        if self._drain.begun or self._protocol.our_state is not h11.DONE:
            return False
        try:
            while self._protocol.their_state is h11.SEND_BODY:  # the application left unread what is here already
                if not isinstance(self._protocol.next_event(), h11.Data | h11.EndOfMessage):
                    return False
            self._protocol.start_next_cycle()
        except (h11.RemoteProtocolError, h11.LocalProtocolError):
            return False
        self._since = trio.current_time()
        return True

    async def _refuse(self, status: int) -> None:
        """Answers by itself where no answer has begun."""
        if self._protocol.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            return
        headers, body = error_headers(self._render_error, status)
        data = self._protocol.send(h11.Response(status_code=status, headers=headers))
        if not self._head_only:
            data += self._protocol.send(h11.Data(data=body))
        data += self._protocol.send(h11.EndOfMessage())
        await self._writer.send(data)

    # --- reading ---

    async def _read_head(self) -> h11.Request | None:
        while True:
            try:
                event = self._protocol.next_event()
            except h11.RemoteProtocolError as error:
                await self._refuse(error.error_status_hint)
                return None
            if isinstance(event, h11.Request):
                self._asked = True
                self._head_only = event.method == b"HEAD"
                status = refusal_of(event, self._limits)
                if status is None:
                    return event
                await self._refuse(status)
                return None
            if event is not h11.NEED_DATA:
                return None
            if not await self._read_for_head():
                return None

    async def _read_for_head(self) -> bool:
        begun = bool(self._protocol.trailing_data[0])
        data: bytes | None = None
        deadline = self._since + self._limits.head_timeout_ms / 1000 if begun else self._idle_deadline()
        with trio.CancelScope(deadline=deadline) as scope:
            if not begun:
                self._idling = scope
            data = await receive(self._stream)
        self._idling = None
        if data is None and begun:
            await self._refuse(408)
        if not data:
            return False
        if not begun:
            self._since = trio.current_time()
        self._protocol.receive_data(data)
        return True

    def _idle_deadline(self) -> float:
        if self._drain.begun:
            return -inf if self._asked else self._since + FIRST_HEAD_AT_DRAIN_S
        timeout_ms = self._limits.idle_timeout_ms if self._asked else self._limits.head_timeout_ms
        return self._since + timeout_ms / 1000

    async def _feed(self, inbox: Inbox, response: LeanResponse) -> None:
        """Brings the body to the application, then watches for the client's departure, until cancelled."""
        status = await self._feed_until_end(inbox)
        response.gone = True
        if status is not None:
            # Shielded: an application that ends because of this must not cut our answer short.
            with trio.move_on_after(REFUSAL_TIMEOUT_S, shield=True):
                await self._refuse(status)
        inbox.disconnect(disconnect_message(slow=self._writer.timed_out))

    async def _feed_until_end(self, inbox: Inbox) -> int | None:
        pace = BodyPace(self._limits)
        body_bytes = 0
        while True:
            try:
                event = self._protocol.next_event()
            except h11.RemoteProtocolError as error:
                return error.error_status_hint
            if isinstance(event, h11.Data):
                body_bytes += len(event.data)
                if self._limits.body_max_bytes is not None and body_bytes > self._limits.body_max_bytes:
                    return 413
                await inbox.put({"type": "http.request", "body": bytes(event.data), "more_body": True})
            elif isinstance(event, h11.EndOfMessage):
                await inbox.put({"type": "http.request", "body": b"", "more_body": False})
            elif event is h11.NEED_DATA or event is h11.PAUSED:
                data = await self._read_for_body(pace)
                if not data:
                    return 408 if data is None else None
                self._protocol.receive_data(data)
            else:
                return None

    async def _read_for_body(self, pace: BodyPace) -> bytes | None:
        """``None``: the body took too long."""
        if self._protocol.their_state is not h11.SEND_BODY:
            if len(self._protocol.trailing_data[0]) > READ_AHEAD_BYTES:
                await trio.sleep_forever()
            return await receive(self._stream)
        data: bytes | None = None
        began = trio.current_time()
        with trio.CancelScope(deadline=pace.deadline()):
            data = await receive(self._stream)
        pace.add(trio.current_time() - began, len(data or b""))
        return data
