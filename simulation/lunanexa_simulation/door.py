"""A node's data listener in the simulated network: whom its doorkeeper lets in is passed on to an engine.

Each exchange has a connection of its own, so that nothing idles in a door.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import trio

from lunanexa_ports.asgi import ABORT, AsgiApplication, Message, Receive, Scope, Send
from lunanexa_ports.data_door import Passage
from lunanexa_ports.http_client import Headers, HttpRequest, HttpUnreachable
from lunanexa_simulation.http_exchange import End, Head

if TYPE_CHECKING:
    from lunanexa_simulation.http_network import SimulatedNetwork

_OF_ONE_HOP: Final = (b"host", b"content-length")
"""What the network adds to each request by itself."""


class PassedOn(AsgiApplication):
    """What answers on one connection that was let in: the engine behind it, asked from the door's own host."""

    def __init__(self, network: "SimulatedNetwork", host: str, passage: Passage) -> None:
        self._network = network
        self._host = host
        self._passage = passage

    async def __call__(self, scope: Scope, receive: Receive, send: Send, /) -> None:
        body = await _whole_body(receive)
        if body is None:
            return
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_until_departure, receive, nursery.cancel_scope.cancel)
            try:
                await self._pass_on(self._request(scope, body), send)
            except HttpUnreachable:
                await send({"type": ABORT})
            nursery.cancel_scope.cancel()

    def _request(self, scope: Scope, body: bytes) -> HttpRequest:
        headers: Headers = tuple(item for item in scope["headers"] if item[0] not in _OF_ONE_HOP)
        query = b"?" + scope["query_string"] if scope["query_string"] else b""
        return HttpRequest(
            method=scope["method"],
            host=self._passage.to.host,
            port=self._passage.to.port,
            target=(scope["raw_path"] + query).decode("ascii"),
            headers=headers,
            body=body,
        )

    async def _pass_on(self, request: HttpRequest, send: Send) -> None:
        connection = await self._network.connect(self._host, request)
        exchange = self._network.ask(connection, request)
        try:
            item = None
            while not isinstance(item, End):
                item = await exchange.next_item()
                await send(_message(item))
        finally:
            exchange.leave()
            connection.leave()


def _message(item: Head | bytes | End) -> Message:
    match item:
        case Head():
            return {"type": "http.response.start", "status": item.status, "headers": list(item.headers)}
        case bytes():
            return {"type": "http.response.body", "body": item, "more_body": True}
        case End(whole=True):
            return {"type": "http.response.body", "body": b"", "more_body": False}
        case End():
            return {"type": ABORT}


async def _whole_body(receive: Receive) -> bytes | None:
    """``None``: the client went before its end."""
    parts: list[bytes] = []
    more = True
    while more:
        message = await receive()
        if message["type"] != "http.request":
            return None
        parts.append(message["body"])
        more = message["more_body"]
    return b"".join(parts)


async def _until_departure(receive: Receive, leave: Callable[[], object]) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    leave()
