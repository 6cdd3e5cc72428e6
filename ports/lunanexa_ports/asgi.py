"""ASGI 3 as the boundary of the HTTP edge: what a server calls and an application offers.

The server under an application can be exchanged (hypercorn, the lean h11 server, the simulator's
in-memory one) because both sides know only these shapes.
Source: https://asgi.readthedocs.io/en/latest/specs/www.html
"""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Protocol, TypeAlias

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]


class AsgiApplication(Protocol):
    """One call a connection scope; returns when that scope is over.

    A handler of an ``http`` scope must keep a task in ``receive()`` while it works: an application
    that ignores ``http.disconnect`` runs on after its client has gone.
    """

    async def __call__(self, scope: Scope, receive: Receive, send: Send, /) -> None: ...
