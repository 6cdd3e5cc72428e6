"""A client's side of one request at the front: its body, as it comes, and its departure."""

from typing import Final

import trio

from lunanexa_ports.asgi import Message, Receive, Send
from lunanexa_simulation.upload import Upload

DRAIN_S: Final = 2.0
"""So long what nobody wants of a body is still taken, so that a client that sends before it reads sees its answer."""


class Line:
    """Over what its listener calls."""

    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive = receive
        self._send = send
        self._gone = trio.Event()
        self._whole = trio.Event()
        self._begun = trio.Event()
        self._upload: Upload | None = None

    def give(self, upload: Upload) -> None:
        """From now on what is said goes there."""
        self._upload = upload
        self._begun.set()

    async def drained(self) -> None:
        """Nobody wants what is yet to come of the body."""
        if self._upload is not None:
            self._upload.drop()
        self._upload = None
        self._begun.set()
        with trio.move_on_after(DRAIN_S):
            await self._whole.wait()

    async def taken(self, upload: Upload) -> None:
        """Its server has taken all that it wants, or there is no more."""
        if not self._whole.is_set():
            await upload.over.wait()

    async def hear(self) -> None:
        """Passes on what the client says, as fast as it is taken, until it has gone."""
        await self._begun.wait()
        while not self._gone.is_set():
            if self._upload is not None and not self._whole.is_set():
                await self._upload.room()
            message = await self._receive()
            if message["type"] == "http.disconnect":
                self._gone.set()
            elif not self._whole.is_set():
                self._pass_on(message)

    def _pass_on(self, message: Message) -> None:
        more = message.get("more_body", False)
        if self._upload is not None:
            self._upload.say(message.get("body", b""), more=more)
        if not more:
            self._whole.set()

    async def departure(self) -> Message:
        """In the place of what was called, for who reads no body."""
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def tell(self, message: Message) -> None:
        """Sends it; that it fails is a departure too."""
        try:
            await self._send(message)
        except OSError:
            self._gone.set()
            raise
