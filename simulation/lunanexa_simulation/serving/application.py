"""What the real listener is given: the console under ``/sim``, and the front for everything else."""

from typing import Final

from lunanexa_adapters.asgi.body_room import BodyRoom
from lunanexa_adapters.asgi.exchange import Departed, Exchange
from lunanexa_adapters.asgi.headers import request_id
from lunanexa_ports.asgi import AsgiApplication, Receive, Scope, Send
from lunanexa_ports.ids import IdSource
from lunanexa_simulation.serving.console import PATH, Console
from lunanexa_simulation.serving.front import Front
from lunanexa_simulation.serving.front_stream import carry_stream
from lunanexa_simulation.world import World

CONSOLES_BYTES_MAX: Final = 4 * 1024 * 1024
"""Of what is said to the console, all together."""


class ServingApp(AsgiApplication):
    """Of one world."""

    def __init__(self, world: World, front: Front, console: Console, ids: IdSource) -> None:
        self._world = world
        self._front = front
        self._console = console
        self._ids = ids
        self._room = BodyRoom(CONSOLES_BYTES_MAX)

    async def __call__(self, scope: Scope, receive: Receive, send: Send, /) -> None:
        match scope["type"]:
            case "http":
                await self._http(scope, receive, send)
            case "websocket":
                try:
                    await carry_stream(self._world, scope, receive, send, request_id(scope, self._ids))
                except* OSError:  # ASGI tells a sender by it that its client has left
                    pass
            case "lifespan":
                for phase in ("startup", "shutdown"):
                    await receive()
                    await send({"type": f"lifespan.{phase}.complete"})
            case kind:
                raise AssertionError(kind)

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = Exchange(scope, receive, send, request_id(scope, self._ids), self._room)
        try:
            if exchange.path == PATH or exchange.path.startswith(PATH + "/"):
                await self._console.answer(exchange)
            else:
                await self._front.carry(exchange, receive, send)
        except Departed:
            return
        finally:
            exchange.let_go()
