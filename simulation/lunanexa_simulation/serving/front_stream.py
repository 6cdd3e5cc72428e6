"""WebSockets of strangers, carried over the simulated network to the controller that leads; see ``front``.

A connection that breaks there ends here in the same way, without a close frame: clients call it 1006."""

from contextlib import AbstractAsyncContextManager
from typing import Any, Final

import attrs
import trio

from lunanexa_adapters.asgi.headers import unreadable
from lunanexa_core.ids import RequestId
from lunanexa_ports.asgi import ABORT, Message, Receive, Scope, Send
from lunanexa_ports.http_client import HttpUnreachable
from lunanexa_simulation.controller_host import PORT
from lunanexa_simulation.serving.answers import BROKE, UNREACHABLE, Problem
from lunanexa_simulation.serving.front import HOP_BY_HOP, STRANGER, headers_of
from lunanexa_simulation.websocket_network import Closed, Refused, WebSocketExchange, open_websocket
from lunanexa_simulation.world import World

_OF_A_HANDSHAKE: Final = HOP_BY_HOP | {
    *(b"host", b"sec-websocket-key", b"sec-websocket-version", b"sec-websocket-protocol", b"sec-websocket-extensions")
}
_NOT_ASCII: Final = Problem(status=400, code="invalid_request", message="The address or a header is not readable.")
_BROKEN: Final = 1006
_DISCONNECT: Final = "websocket.disconnect"
_HELD_MESSAGES: Final = 8
"""What a client said that is not on its way yet; then it is not read any more."""


async def carry_stream(world: World, scope: Scope, receive: Receive, send: Send, request: RequestId) -> None:
    """One connection, from its handshake to its end."""
    await receive()
    if unreadable(scope) is not None:
        await _refuse(scope, send, _refused(_NOT_ASCII, request))
        return
    world.run.happened["stream asked"] += 1
    said, heard = trio.open_memory_channel[Message](_HELD_MESSAGES)
    async with trio.open_nursery() as nursery:
        line = _Line(nursery.cancel_scope)
        nursery.start_soon(line.listen, receive, said)
        try:
            async with _opened(world, scope) as exchange, trio.open_nursery() as talk:
                line.opened = True
                talk.start_soon(line.speak, exchange, heard)
                await _answer(scope, send, exchange, request)
                talk.cancel_scope.cancel("the controller has ended it")
        except HttpUnreachable:
            await _refuse(scope, send, _refused(UNREACHABLE, request))
        nursery.cancel_scope.cancel("the connection is over")


def _opened(world: World, scope: Scope) -> AbstractAsyncContextManager[WebSocketExchange]:
    return open_websocket(
        world.network,
        STRANGER,
        host=world.controller.host,
        port=PORT,
        path=bytes(scope["raw_path"]).decode("ascii"),
        subprotocols=[str(name) for name in scope["subprotocols"]],
        headers=headers_of(scope, _OF_A_HANDSHAKE),
    )


@attrs.define
class _Line:
    """The client's side of one connection."""

    scope: trio.CancelScope
    opened: bool = False

    async def listen(self, receive: Receive, said: trio.MemorySendChannel[Message]) -> None:
        """Until the client goes. What it said before that goes first."""
        kind = ""
        while kind != _DISCONNECT:
            message = await receive()
            kind = message["type"]
            if kind == _DISCONNECT and not self.opened:
                self.scope.cancel("the client has gone")
            await said.send(message)

    async def speak(self, exchange: WebSocketExchange, heard: trio.MemoryReceiveChannel[Message]) -> None:
        """Passes it on, and ends the connection with its last message."""
        async for message in heard:
            if message["type"] == _DISCONNECT:
                exchange.leave(int(message.get("code") or _BROKEN))
                self.scope.cancel("the client has gone")
                return
            await exchange.room()
            exchange.say(message.get("text"), message.get("bytes"))


async def _answer(scope: Scope, send: Send, exchange: WebSocketExchange, request: RequestId) -> None:
    if exchange.accepting is not None:
        await send({"subprotocol": None, "headers": [], **exchange.accepting})
    while isinstance(item := await exchange.hear(), str):
        await send({"type": "websocket.send", "text": item})
    match item:
        case Refused():
            await _refuse(scope, send, item)
        case Closed(code) if code != _BROKEN:
            await send({"type": "websocket.close", "code": code, "reason": item.reason})
        case Closed() if exchange.accepting is None:
            await _refuse(scope, send, _refused(BROKE, request))
        case Closed():
            if ABORT in scope["extensions"]:
                await send({"type": ABORT})


def _refused(problem: Problem, request: RequestId) -> Refused:
    body = problem.body(request)
    headers = ((b"content-type", b"application/json"), (b"content-length", b"%d" % len(body)), *problem.headers)
    return Refused(status=problem.status, body=body, headers=headers)


async def _refuse(scope: Scope, send: Send, refused: Refused) -> None:
    extensions: Any = scope.get("extensions", {})
    if "websocket.http.response" not in extensions:
        await send({"type": "websocket.close", "code": 1000})
        return
    start = {"type": "websocket.http.response.start", "status": refused.status, "headers": list(refused.headers)}
    await send(start)
    await send({"type": "websocket.http.response.body", "body": refused.body, "more_body": False})
