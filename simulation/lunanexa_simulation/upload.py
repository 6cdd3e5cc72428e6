"""A request whose body goes over the simulated network as it is said, and no faster than its server takes it."""

from collections import deque
from typing import Final

import trio

from lunanexa_ports.asgi import AsgiApplication, Message, Receive, Scope, Send
from lunanexa_ports.http_client import Headers
from lunanexa_simulation.connections import Connection

WINDOW_BYTES: Final = 256 * 1024
"""What may be on its way to a server that does not take it."""


class Upload(AsgiApplication):
    """Answers in the place of a connection's application, which hears the body from here. Of one request, which is sent
    without a body; ``headers``: all but the host's, those of its framing too."""

    def __init__(self, connection: Connection, headers: Headers) -> None:
        self._app = connection.app
        self._headers = headers
        self._connection = connection
        connection.app = self
        self._pieces: deque[tuple[float, Message]] = deque()
        self._held_bytes = 0
        self._last_arrival_s = 0.0
        self._dropped = False
        self._departed = False
        self._news = trio.lowlevel.ParkingLot()
        self._room = trio.lowlevel.ParkingLot()
        self.over = trio.Event()
        """The application has returned: nobody takes any more of it."""

    # --- the server's side ---

    async def __call__(self, scope: Scope, receive: Receive, send: Send, /) -> None:
        host = [item for item in scope["headers"] if item[0] == b"host"]
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._until_departure, receive)
                await self._app({**scope, "headers": [*host, *self._headers]}, self._receive, send)
                nursery.cancel_scope.cancel("the application has returned")
        finally:
            self.over.set()

    async def _receive(self) -> Message:
        await trio.lowlevel.checkpoint()
        while not self._pieces and not self._departed:
            await self._news.park()
        if not self._departed:
            await self._connection.ways[0].until(self._pieces[0][0])
        if self._departed:
            return {"type": "http.disconnect"}
        _, message = self._pieces.popleft()
        self._held_bytes -= len(message["body"])
        self._room.unpark_all()
        return message

    async def _until_departure(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._departed = True
        self._news.unpark_all()

    # --- the client's side ---

    async def room(self) -> None:
        """Returns when more of the body may be said; never when its server takes no more."""
        await trio.lowlevel.checkpoint()
        while not self._dropped and (self._held_bytes >= WINDOW_BYTES or self.over.is_set()):
            await self._room.park()

    def drop(self) -> None:
        """The client's side has no use for it any more: whoever waits for room waits no longer."""
        self._dropped = True
        self._room.unpark_all()

    def say(self, body: bytes, *, more: bool) -> None:
        """Sends a piece."""
        arrives_s = self._connection.ways[0].draw_arrival(len(body))
        self._last_arrival_s = max(self._last_arrival_s, arrives_s)
        self._pieces.append((self._last_arrival_s, {"type": "http.request", "body": body, "more_body": more}))
        self._held_bytes += len(body)
        self._news.unpark_all()
