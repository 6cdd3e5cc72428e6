"""hypercorn's HTTP request/response stream with our answers, and honest sends after a departure."""

from typing import TYPE_CHECKING

import trio
from hypercorn.protocol.events import Body, EndBody, Event, Response, StreamClosed
from hypercorn.protocol.http_stream import ASGIHTTPState, HTTPStream
from hypercorn.typing import ASGISendEvent

from lunanexa_adapters.http_server.answers import ClientGone, disconnect_message, error_headers

if TYPE_CHECKING:
    from lunanexa_adapters.http_server.h11_protocol import GuardedH11Protocol


class GuardedHttpStream(HTTPStream):
    """Stock hypercorn lets an application that ignores ``receive()`` send into nothing for ever (its sends
    neither fail nor reach a checkpoint); here they raise ``ClientGone``."""

    protocol: "GuardedH11Protocol"

    async def handle(self, event: Event) -> None:
        if isinstance(event, StreamClosed) and self.protocol.timed_out and not self.closed and self.app_put is not None:
            # The first one counts: hypercorn's own has no reason.
            await self.app_put(disconnect_message(slow=True))  # type: ignore[arg-type]  # plain mappings here, typed dicts there
        await super().handle(event)

    async def app_send(self, message: ASGISendEvent | None) -> None:
        if message is None:
            await super().app_send(None)
            return
        if self.closed:
            await trio.lowlevel.checkpoint()
            raise ClientGone
        if message["type"] != "http.response.body":
            await super().app_send(message)
            # The head waits for a body that follows without a pause, and for no other.
            self.task_group.spawn(self.protocol.flush)
            return
        # Head, body and end of a response that is at hand go out in one send, not in three.
        self.protocol.corked = not message.get("more_body", False)
        try:
            await super().app_send(message)
        finally:
            self.protocol.corked = False
        await self.protocol.flush()

    async def _send_error_response(self, status_code: int) -> None:
        headers, body = error_headers(self.protocol.config.render_error, status_code)
        await self.send(Response(stream_id=self.stream_id, headers=headers, status_code=status_code))
        if self.scope["method"] != "HEAD":
            await self.send(Body(stream_id=self.stream_id, data=body))
        await self.send(EndBody(stream_id=self.stream_id))
        self.state = ASGIHTTPState.CLOSED
