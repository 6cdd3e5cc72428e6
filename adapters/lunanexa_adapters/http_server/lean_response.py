"""What an application of the lean server calls ``send``."""

from collections.abc import Callable

import h11
import trio

from lunanexa_adapters.http_server.accept import Drain
from lunanexa_adapters.http_server.answers import ClientGone
from lunanexa_adapters.http_server.stream_io import BoundedWriter
from lunanexa_ports.asgi import ABORT, Message

BODILESS = (204, 304)


class LeanResponse:
    """The head goes out together with a first piece of body that follows without a pause; otherwise a task
    sends it at the next turn of the scheduler, so that nothing is delayed."""

    def __init__(
        self,
        protocol: h11.Connection,
        writer: BoundedWriter,
        *,
        head_only: bool,
        drain: Drain,
        flush_soon: Callable[[], object],
    ) -> None:
        self._protocol = protocol
        self._writer = writer
        self._drain = drain
        self._bodiless = head_only
        self._held = b""
        self._started = False
        self._ended = False
        self._flush_soon = flush_soon
        self.gone = False

    async def send(self, message: Message) -> None:
        """Raises ``ClientGone`` after the client's departure."""
        if self.gone:
            await trio.lowlevel.checkpoint()
            raise ClientGone
        kind = message["type"]
        if kind == "http.response.start" and not self._started:
            self._start(message)
            self._flush_soon()
        elif kind == "http.response.body" and self._started and not self._ended:
            self._add(message)
            await self.flush()
            if self.gone:
                raise ClientGone
        elif kind == ABORT and not self._ended:
            self._held = b""
            self.gone = True
            await trio.lowlevel.checkpoint()
        else:
            raise ValueError(f"unexpected message {kind!r}")

    def _start(self, message: Message) -> None:
        status = int(message["status"])
        headers = [(bytes(name), bytes(value)) for name, value in message.get("headers", ())]
        early_refusal = status >= 400 and self._protocol.their_state is h11.SEND_BODY
        if self._drain.begun or early_refusal:
            headers.append((b"connection", b"close"))
        self._held = self._protocol.send(h11.Response(status_code=status, headers=headers))
        self._bodiless = self._bodiless or status in BODILESS
        self._started = True

    def _add(self, message: Message) -> None:
        body = message.get("body", b"")
        if body and not self._bodiless:
            self._held += self._protocol.send(h11.Data(data=body))
        if not message.get("more_body", False):
            self._held += self._protocol.send(h11.EndOfMessage())
            self._ended = True

    async def flush(self) -> None:
        held, self._held = self._held, b""
        if held:
            if not await self._writer.send(held):
                self.gone = True
        else:
            await trio.lowlevel.checkpoint()
