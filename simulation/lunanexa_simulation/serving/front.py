"""What strangers' clients meet: each of their requests is carried over the simulated network to the controller that
leads, as a load balancer does it, and its answer back, byte for byte.

A request's body goes on as it comes and no faster than it is taken, so that its limits are the controller's. An answer
goes on piece by piece, and no faster than its reader. Who leaves is seen to leave by the controller; an answer that
breaks off breaks its client's connection. Each request has a connection of its own.
"""

from functools import partial
from typing import Final

import trio

from lunanexa_adapters.asgi.exchange import Exchange
from lunanexa_adapters.asgi.headers import unreadable
from lunanexa_ports.asgi import Receive, Scope, Send
from lunanexa_ports.http_client import Headers, HttpRequest, HttpUnreachable
from lunanexa_simulation.controller_host import PORT
from lunanexa_simulation.http_exchange import End, Head
from lunanexa_simulation.serving.answers import BROKE, UNREACHABLE, Problem, tell
from lunanexa_simulation.serving.line import Line
from lunanexa_simulation.upload import Upload
from lunanexa_simulation.world import World

STRANGER: Final = "client"
"""The host that strangers' bytes come from in the simulated network."""
HOP_BY_HOP: Final = frozenset(
    (b"connection", b"keep-alive", b"proxy-connection", b"te", b"trailer", b"transfer-encoding", b"upgrade", b"expect")
)
"""Of one connection, not of a message (RFC 9110, section 7.6.1)."""
_OF_A_REQUEST: Final = (HOP_BY_HOP - {b"transfer-encoding"}) | {b"host"}
"""A body is framed over there as it was here."""
_CLOSE: Final = (b"connection", b"close")


class Front:
    """Of one world."""

    def __init__(self, world: World) -> None:
        self._world = world

    async def carry(self, exchange: Exchange, receive: Receive, send: Send) -> None:
        """One request, and what came of it. Raises :class:`Departed` when its client goes before a short answer."""
        refusal = unreadable(exchange.scope)
        if refusal is not None:
            await exchange.refuse_unread(refusal)
            return
        self._world.run.happened["asked"] += 1
        line = Line(receive, send)
        carried = Exchange(exchange.scope, line.departure, line.tell, exchange.request)
        await carried.run(partial(self._with_line, carried, line))

    async def _with_line(self, exchange: Exchange, line: Line) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(line.hear)
            await self._relay(exchange, line)
            nursery.cancel_scope.cancel("the answer is complete")

    async def _relay(self, exchange: Exchange, line: Line) -> None:
        request = HttpRequest(
            method=exchange.method, host=self._world.controller.host, port=PORT, target=target_of(exchange.scope)
        )
        try:
            connection = await self._world.network.connect(STRANGER, request)
        except HttpUnreachable:
            self._note("none: unreachable")
            await self._tell(exchange, line, UNREACHABLE)
            return
        upload = Upload(connection, headers_of(exchange.scope, _OF_A_REQUEST))
        line.give(upload)
        answer = self._world.network.ask(connection, request)
        try:
            while not isinstance(item := await answer.next_item(), End):
                if isinstance(item, Head):
                    self._note(str(item.status))
                    kept = [one for one in item.headers if one[0] not in HOP_BY_HOP or one == _CLOSE]
                    await exchange.start(item.status, kept)
                else:
                    await exchange.send_body(item, more=True)
            if item.whole:
                await exchange.send_body(b"", more=False)
                await line.taken(upload)
                return
        finally:
            answer.leave()
            connection.leave()
        self._note("broke")
        # An answer that has begun and does not end ends with its connection.
        if not exchange.begun:
            await self._tell(exchange, line, BROKE)

    async def _tell(self, exchange: Exchange, line: Line, problem: Problem) -> None:
        await tell(exchange, problem)
        await line.drained()

    def _note(self, what: str) -> None:
        self._world.run.happened[f"answer {what}"] += 1


def target_of(scope: Scope) -> str:
    """The address as it was written."""
    path, query = bytes(scope["raw_path"]).decode("ascii"), bytes(scope.get("query_string", b"")).decode("ascii")
    return f"{path}?{query}" if query else path


def headers_of(scope: Scope, without: frozenset[bytes]) -> Headers:
    """What the client said beside what is its connection's alone."""
    return tuple((name.lower(), value) for name, value in scope["headers"] if name.lower() not in without)
