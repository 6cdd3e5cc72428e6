"""What strangers' clients meet: each of their requests is carried over the simulated network to the controller that
leads, as a load balancer does it, and its answer back, byte for byte.

A request's body is taken whole before it goes on. An answer goes on piece by piece, and no faster than its reader. Who
leaves is seen to leave by the controller; an answer that breaks off breaks its client's connection.
"""

from typing import Final

from lunanexa_adapters.asgi.body_room import BodyRoom
from lunanexa_adapters.asgi.exchange import Exchange
from lunanexa_adapters.asgi.headers import unreadable
from lunanexa_core.outcomes import Refusal
from lunanexa_ports.asgi import Scope
from lunanexa_ports.http_client import Headers, HttpBroken, HttpRequest, HttpUnreachable
from lunanexa_simulation.controller_host import PORT
from lunanexa_simulation.http_client import SimulatedHttpClient
from lunanexa_simulation.serving.answers import BROKE, UNREACHABLE, tell
from lunanexa_simulation.world import World

STRANGER: Final = "client"
"""The host that strangers' bytes come from in the simulated network."""
BODY_BYTES_MAX: Final = 40 * 1024 * 1024
"""More than a controller takes, which refuses with its own words."""
BODIES_BYTES_MAX: Final = 512 * 1024 * 1024
HOP_BY_HOP: Final = frozenset(
    (b"connection", b"keep-alive", b"proxy-connection", b"te", b"trailer", b"transfer-encoding", b"upgrade", b"expect")
)
"""Of one connection, not of a message (RFC 9110, section 7.6.1)."""
_OF_A_REQUEST: Final = HOP_BY_HOP | {b"host", b"content-length"}


class Front:
    """Of one world."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._http = SimulatedHttpClient(world.network, STRANGER)
        self._room = BodyRoom(BODIES_BYTES_MAX)

    def room(self) -> BodyRoom:
        """Which all bodies of requests share."""
        return self._room

    async def carry(self, exchange: Exchange) -> None:
        """One request, and what came of it. Raises :class:`Departed` when its client goes before it was read."""
        refusal = unreadable(exchange.scope)
        if refusal is not None:
            await exchange.refuse_unread(refusal)
            return
        body = await exchange.body(BODY_BYTES_MAX)
        if isinstance(body, Refusal):
            await exchange.refuse_unread(body)
            return
        request = HttpRequest(
            method=exchange.method,
            host=self._world.controller.host,
            port=PORT,
            target=target_of(exchange.scope),
            headers=headers_of(exchange.scope, _OF_A_REQUEST),
            body=body,
        )
        self._world.run.happened["asked"] += 1
        await exchange.run(lambda: self._relay(exchange, request))

    async def _relay(self, exchange: Exchange, request: HttpRequest) -> None:
        try:
            async with self._http.exchange(request) as response:
                headers = [item for item in response.headers if item[0] not in HOP_BY_HOP]
                self._note(str(response.status))
                await exchange.start(response.status, headers)
                async for piece in response.chunks():
                    await exchange.send_body(piece, more=True)
                await exchange.send_body(b"", more=False)
        except HttpUnreachable:
            self._note("none: unreachable")
            await tell(exchange, UNREACHABLE)
        except HttpBroken:
            self._note("broke")
            # An answer that has begun and does not end ends with its connection.
            if not exchange.begun:
                await tell(exchange, BROKE)

    def _note(self, what: str) -> None:
        self._world.run.happened[f"answer {what}"] += 1


def target_of(scope: Scope) -> str:
    """The address as it was written."""
    path, query = bytes(scope["raw_path"]).decode("ascii"), bytes(scope.get("query_string", b"")).decode("ascii")
    return f"{path}?{query}" if query else path


def headers_of(scope: Scope, without: frozenset[bytes]) -> Headers:
    """What the client said beside what is its connection's alone."""
    return tuple((name.lower(), value) for name, value in scope["headers"] if name.lower() not in without)
