"""What servers are given: the planes behind their doors, and the one guard of the edge.

The guard is the only place here where any error is caught: whatever a handler breaks ends as an answer in the
one shape, or, once an answer has begun, as a connection that is cut, so that nobody takes half of it for all.
"""

import contextlib
from abc import abstractmethod

import structlog

from lunanexa_adapters.asgi.errors import INTERNAL, error_answer, not_found
from lunanexa_adapters.asgi.exchange import Departed, Exchange
from lunanexa_adapters.asgi.headers import request_id
from lunanexa_adapters.websocket.handshake import refuse_handshake
from lunanexa_ports.asgi import AsgiApplication, Message, Receive, Scope, Send
from lunanexa_ports.ids import IdSource

_OPERATORS, _NODES = "/admin/v1", "/node/v1"
_STREAM_PATH = "/v1/stream"


class _Door(AsgiApplication):
    """What all listeners have in common."""

    def __init__(self, ids: IdSource) -> None:
        self._ids = ids
        self._log = structlog.get_logger("lunanexa.edge")

    async def __call__(self, scope: Scope, receive: Receive, send: Send, /) -> None:
        match scope["type"]:
            case "http":
                await self._guard(scope, receive, send)
            case "websocket":
                await self._websocket(str(scope["path"]))(scope, receive, send)
            case "lifespan":
                for phase in ("startup", "shutdown"):
                    await receive()
                    await send({"type": f"lifespan.{phase}.complete"})
            case kind:
                raise AssertionError(kind)

    @abstractmethod
    def _owner(self, path: str) -> AsgiApplication:
        """Who answers requests for ``path``."""

    def _websocket(self, _path: str) -> AsgiApplication:
        """Who answers handshakes for it."""
        return self._refuse_websocket

    async def _guard(self, scope: Scope, receive: Receive, send: Send) -> None:
        request, begun, gone = request_id(scope, self._ids), False, False

        async def noting(message: Message) -> None:
            nonlocal begun, gone
            begun = True
            try:
                await send(message)
            except OSError:
                gone = True
                raise

        try:
            await self._owner(str(scope["path"]))(scope, receive, noting)
        except Exception as error:  # the edge's guard: one request's bug must not be another's
            if gone:
                return  # ASGI tells a sender by OSError that its client has left: no fault of anybody's.
            self._log.error("request_failed", request_id=request, begun=begun, exc_info=error)
            if begun:
                raise
            answer = error_answer(INTERNAL, request)
            await send({"type": "http.response.start", "status": answer.status, "headers": answer.headers})
            await send({"type": "http.response.body", "body": answer.body, "more_body": False})

    async def _refuse_websocket(self, scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await refuse_handshake(scope, send, not_found(str(scope["path"])), request_id(scope, self._ids))

    async def _refuse(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = Exchange(scope, receive, send, request_id(scope, self._ids))
        with contextlib.suppress(Departed):
            await exchange.refuse_unread(not_found(exchange.path))


class Root(_Door):
    """Dispatches by path prefix. ``control`` serves the operator plane, ``data_plane`` all else, and ``stream`` the one
    path of WebSockets. The node plane is not here: it has a listener of its own."""

    def __init__(
        self, *, data_plane: AsgiApplication, control: AsgiApplication, stream: AsgiApplication, ids: IdSource
    ) -> None:
        super().__init__(ids)
        self._data_plane = data_plane
        self._stream = stream
        self._control = control

    def _owner(self, path: str) -> AsgiApplication:
        return self._control if _is_under(path, _OPERATORS) else self._data_plane

    def _websocket(self, path: str) -> AsgiApplication:
        return self._stream if path == _STREAM_PATH else super()._websocket(path)


class NodeRoot(_Door):
    """What the listener for nodes serves: the node plane, and nothing else."""

    def __init__(self, *, nodes: AsgiApplication, ids: IdSource) -> None:
        super().__init__(ids)
        self._nodes = nodes

    def _owner(self, path: str) -> AsgiApplication:
        return self._nodes if _is_under(path, _NODES) else self._refuse


def _is_under(path: str, prefix: str) -> bool:
    return path == prefix or path.startswith(prefix + "/")
