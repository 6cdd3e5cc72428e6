"""ASGI 3 as the boundary of the HTTP edge: what a server calls and an application offers.

The server under an application can be exchanged (hypercorn, the lean h11 server, the simulator's
in-memory one) because both sides know only these shapes.
Source: https://asgi.readthedocs.io/en/latest/specs/www.html
"""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final, Protocol, TypeAlias

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
TLS: Final = "tls"
"""Where ``scope["extensions"]`` names it, the connection is TLS, and its member ``peer`` is the verified
:class:`~lunanexa_core.identity.certificate.PeerCertificate` of the client, or ``None`` where none was shown. The server
has it of the connection itself: no header says or changes it."""
ABORT: Final = "lunanexa.http.response.abort"
"""An extension of ours: where ``scope["extensions"]`` names it, a message of this type closes the connection
without another byte, even where no response has begun, and a WebSocket without a close frame; the application sends
nothing after it."""
CLOSED_BECAUSE: Final = "lunanexa.closed_because"
"""A member of ours in ``http.disconnect``: why the server itself ended the connection. Missing where the client
did."""
SLOW_CONSUMER: Final = "slow_consumer"
"""The client did not take what was sent within the server's time for it."""

Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]


class AsgiApplication(Protocol):
    """One call a connection scope; returns when that scope is over.

    A handler of an ``http`` scope must keep a task in ``receive()`` while it works: an application
    that ignores ``http.disconnect`` runs on after its client has gone.
    """

    async def __call__(self, scope: Scope, receive: Receive, send: Send, /) -> None: ...
