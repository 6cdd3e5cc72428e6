"""Connections that stand, by the certificate at their other end: nobody takes the place of others.

Without it whoever may open a connection could open all that a server takes, and say nothing on them.
"""

from collections.abc import Awaitable, Callable

import trio


class Parties:
    """Over the number the connection by the same certificate that has stood longest is cut: who means it is served in
    a moment, and asks again if it was not."""

    def __init__(self, *, each: int, strangers: int) -> None:
        self._each = each
        self._strangers = strangers
        self._open: dict[str | None, dict[trio.CancelScope, None]] = {}

    async def serve(self, party: str | None, run: Callable[[], Awaitable[None]]) -> None:
        """Runs ``run`` to its end, or until it is cut. ``party`` is the serial of its certificate, so that one that was
        revoked takes nothing from who has the name now; ``None``: it showed none, as all strangers do together."""
        standing = self._open.setdefault(party, {})
        if len(standing) >= (self._strangers if party is None else self._each):
            longest = next(iter(standing))
            del standing[longest]
            longest.cancel()
        scope = trio.CancelScope()
        standing[scope] = None
        try:
            with scope:
                await run()
        finally:
            standing.pop(scope, None)
            if not standing and self._open.get(party) is standing:
                del self._open[party]
