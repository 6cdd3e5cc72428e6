"""TLS handshakes in progress on one server: each has a time, and all of them together a number.

A handshake costs a server a thousand times what its first bytes cost a client, and a client that is silent in one
costs a socket for as long as it is waited for.
"""

from typing import Protocol, TypeAlias

import trio

TlsStream: TypeAlias = trio.SSLStream[trio.SocketStream]


class Shaking(Protocol):
    """A connection whose handshake is yet to come."""

    async def do_handshake(self) -> None:
        """Raises ``BrokenResourceError``."""


class Handshakes:
    """Over the number the one that has waited longest is cut: who means it is through in a few round trips, so those
    that are silent push out each other."""

    def __init__(self, *, timeout_ms: int, most: int) -> None:
        self._timeout_s = timeout_ms / 1000
        self._most = most
        self._running: dict[trio.CancelScope, None] = {}

    def __len__(self) -> int:
        return len(self._running)

    async def finish(self, stream: Shaking) -> bool:
        """Whether both ends are agreed. If not, the caller closes the socket; nothing can be said on it."""
        if len(self._running) >= self._most:
            longest = next(iter(self._running))
            del self._running[longest]
            longest.cancel()
        scope = trio.CancelScope(deadline=trio.current_time() + self._timeout_s)
        self._running[scope] = None
        try:
            with scope:
                await stream.do_handshake()
                return True
        except trio.BrokenResourceError:
            return False
        finally:
            self._running.pop(scope, None)
        return False
