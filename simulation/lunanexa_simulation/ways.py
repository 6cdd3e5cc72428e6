"""One direction of one connection: over the link of its hosts, until an end gives the connection up."""

import math

import trio

from lunanexa_simulation.connections import Connection, Side
from lunanexa_simulation.links import HostLink, Link


class Way(Link):
    """From the ``sender``'s end to the other."""

    def __init__(self, link: HostLink, connection: Connection, sender: Side) -> None:
        self._link = link
        self._connection = connection
        self._sender = sender
        self._passes_until_s = math.inf
        """What would arrive later was lost with its sender's patience."""
        self._waiting: dict[trio.CancelScope, None] = {}
        self.brings_request = False
        """Whether the first that is carried is a request, which nobody has heard yet."""

    def draw_arrival(self, size_bytes: int = 0, *, opening: bool = False) -> float:
        if self._sender in self._connection.gone:
            return math.inf
        arrives_s = self._link.draw_arrival(size_bytes, opening=opening)
        self._connection.say(self._sender, arrives_s)
        return arrives_s

    def draw_break(self) -> bool:
        return self._link.draw_break()

    def here(self, arrives_at: float) -> bool:
        return arrives_at <= self._passes_until_s and self._link.here(arrives_at)

    async def until(self, arrives_at: float) -> None:
        """Or until nobody is there whom it could reach."""
        with trio.CancelScope() as waiting:
            self._waiting[waiting] = None
            try:
                await self._link.until(arrives_at)
                if arrives_at > self._passes_until_s:
                    await trio.sleep_forever()
            finally:
                del self._waiting[waiting]

    async def carry(self, size_bytes: int = 0, *, opening: bool = False) -> None:
        await self.until(self.draw_arrival(size_bytes, opening=opening))
        self.brings_request = False

    def give_up(self, side: Side) -> None:
        """The kernel at that end knows of the connection no more: nor of what it was to send again."""
        if side is not self._sender:
            self.close()
        elif self._link.blocked_since_s is not None:
            self._passes_until_s = self._link.blocked_since_s

    def close(self) -> None:
        """Nobody waits for what is under way any more."""
        for waiting in list(self._waiting):
            waiting.cancel("nobody is there")
