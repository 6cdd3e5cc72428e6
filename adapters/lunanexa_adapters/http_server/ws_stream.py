"""hypercorn's WebSocket stream with bounds.

What stock hypercorn 0.18 does, and why each override exists: a message over the size limit is answered
with close code 1009 but read and buffered on; permessage-deflate is negotiated, so that 400 KB on the wire
become 650 MB in memory; after the end of a connection ``send`` returns without a checkpoint, so that a
sending loop starves every other task; so does a client that sends tiny frames as fast as it can; bytes before
the handshake's end leave the connection half open; a protocol error is not answered with its close code; the
application is not told the client's own code; an application can't close without a close frame.
"""

from typing import TYPE_CHECKING, Any

import trio
from hypercorn.protocol.events import Body, Data, EndBody, Event, Request, Response, StreamClosed
from hypercorn.protocol.ws_stream import ASGIWebsocketState, FrameTooLargeError, WSStream
from hypercorn.typing import ASGISendEvent
from wsproto.connection import ConnectionState
from wsproto.events import CloseConnection, Message, Ping
from wsproto.frame_protocol import CloseReason

from lunanexa_adapters.http_server.answers import error_headers
from lunanexa_ports.asgi import ABORT

if TYPE_CHECKING:
    from lunanexa_adapters.http_server.h11_protocol import GuardedH11Protocol

FRAMES_A_TURN = 32
"""One read can hold ten thousand frames; after so many of them the others have their turn."""


class GuardedWsStream(WSStream):
    protocol: "GuardedH11Protocol"
    _beyond_ascii_bytes = 0
    """What the UTF-8 of the message under way has more than characters."""

    async def handle(self, event: Event) -> None:
        if isinstance(event, Request):
            event.headers[:] = [item for item in event.headers if item[0].lower() != b"sec-websocket-extensions"]
            await super().handle(event)
            if self.closed:  # refused without asking the application
                await self.send(StreamClosed(stream_id=self.stream_id))
        elif isinstance(event, Body | Data) and not self.closed and not self.handshake.accepted:
            # The application first: it may be about to accept.
            await super().handle(StreamClosed(stream_id=self.stream_id))
            await self._send_error_response(400)
            await self.send(StreamClosed(stream_id=self.stream_id))
        elif isinstance(event, Body | Data) and not self.closed and self.connection.state is ConnectionState.CLOSED:
            return
        else:
            await super().handle(event)

    async def app_send(self, message: ASGISendEvent | None) -> None:
        await trio.lowlevel.checkpoint()
        kind: str = "" if message is None else message["type"]
        if kind == ABORT:
            self.state = ASGIWebsocketState.CLOSED
            await self.send(StreamClosed(stream_id=self.stream_id))
            return
        await super().app_send(message)
        await self.protocol.flush()

    async def _handle_events(self) -> None:
        for number, event in enumerate(self.connection.events(), 1):
            if not number % FRAMES_A_TURN:
                await trio.lowlevel.checkpoint()
            if isinstance(event, Message):
                try:
                    self.buffer.extend(event)
                    self._count(event)
                except FrameTooLargeError:
                    self.buffer.clear()
                    await self._end(CloseConnection(code=CloseReason.MESSAGE_TOO_BIG))
                    return
                if event.message_finished:
                    assert self.app_put is not None
                    await self.app_put(self.buffer.to_message())
                    self.buffer.clear()
                    self._beyond_ascii_bytes = 0
            elif isinstance(event, Ping):
                await self._send_wsproto_event(event.response())
            elif isinstance(event, CloseConnection):
                # Open still: the frame was no frame, and the event carries the code that says so.
                remote = self.connection.state is ConnectionState.REMOTE_CLOSING
                if self.app_put is not None:
                    # The first one counts: hypercorn's own says 1006 in any case.
                    await self.app_put({"type": "websocket.disconnect", "code": int(event.code)})
                await self._end(event.response() if remote else event)
                return

    def _count(self, event: "Message[Any]") -> None:
        """hypercorn counts characters, and a limit is one of bytes."""
        if isinstance(event.data, str) and not event.data.isascii():
            self._beyond_ascii_bytes += len(event.data.encode()) - len(event.data)
        if self.buffer.length + self._beyond_ascii_bytes > self.buffer.max_length:
            raise FrameTooLargeError

    async def _end(self, close: CloseConnection) -> None:
        await self._send_wsproto_event(close)
        await self.send(StreamClosed(stream_id=self.stream_id))

    async def _send_error_response(self, status_code: int) -> None:
        if self.state is not ASGIWebsocketState.HANDSHAKE and self.state is not ASGIWebsocketState.HTTPCLOSED:
            return
        self.state = ASGIWebsocketState.HTTPCLOSED
        headers, body = error_headers(self.protocol.config.render_error, status_code)
        await self.send(Response(stream_id=self.stream_id, headers=headers, status_code=status_code))
        await self.send(Body(stream_id=self.stream_id, data=body))
        await self.send(EndBody(stream_id=self.stream_id))
