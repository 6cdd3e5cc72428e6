"""When an end of a connection gives it up because it hears nothing of the other: the kernels' part in it.

It is the same whether a machine is gone or packets don't pass, in either way: what one end sends is acknowledged by the
other, and a probe is answered. As the sockets of our servers and clients are set: ``TCP_USER_TIMEOUT``,
``TCP_KEEPIDLE`` and ``TCP_KEEPINTVL`` (tcp(7); ``tcp_keepalive_timer`` of Linux). Simpler than there: the last sign of
the other end is the moment from which on they don't hear each other, and a reset is never lost.
"""

from typing import Final

import trio

from lunanexa_simulation.connections import Connection, Side
from lunanexa_simulation.links import HostLink

ACKNOWLEDGED_S: Final = 30
"""So long an end waits for the other to acknowledge what it sent."""
PROBE_S: Final = 30
"""After so long an end that waits for nothing asks whether the other is there."""
GIVE_UP_S: Final = 40
"""So long after the last sign it gives up, where the first probe was not answered and nothing was heard since."""


class Patience:
    """Of both ends of one connection, from the moment from which on they don't hear each other."""

    def __init__(self, connection: Connection, there: HostLink, back: HostLink) -> None:
        now_s = trio.current_time()
        self._connection = connection
        self._links = there, back
        self._probe_s = now_s + PROBE_S
        self._ends = {
            side: trio.CancelScope(deadline=now_s + GIVE_UP_S) for side in Side if side not in connection.gone
        }
        self._waiting_for_word: set[Side] = set()
        """Ends that sent what was not acknowledged."""
        self._apart = True
        self._over = trio.Event()
        for side, arrives_s in connection.under_way.items():
            if arrives_s > now_s:
                self.say(side)

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            for side, end in self._ends.items():
                nursery.start_soon(self._wait, side, end)

    async def _wait(self, side: Side, end: trio.CancelScope) -> None:
        with end:
            await self._over.wait()
        if end.cancelled_caught and side not in self._connection.gone:
            self._connection.give_up(side)

    def say(self, side: Side) -> None:
        """An end sends something."""
        if self._apart:
            self._waiting_for_word.add(side)
            self._at_last(side, trio.current_time() + ACKNOWLEDGED_S)
        elif self._alone:
            self._be_reset(side)
        else:
            self.end()

    def part(self) -> None:
        """They don't hear each other again, and have not since."""
        self._apart = True

    def meet(self) -> None:
        """Packets pass again: what is sent again is acknowledged, or answered by a reset where nobody knows of it."""
        self._apart = False
        asks_yet = trio.current_time() < self._probe_s
        if not self._alone:
            if asks_yet or self._waiting_for_word:
                self.end()
            return
        for side in self._ends:
            if side in self._waiting_for_word:
                self._be_reset(side)
            elif asks_yet:
                self._at_last(side, self._probe_s)

    def end(self) -> None:
        """They hear each other, or need to no more."""
        self._connection.patience = None
        self._over.set()

    @property
    def _alone(self) -> bool:
        """Whether one end is left at most."""
        return bool(self._connection.gone)

    def _be_reset(self, side: Side) -> None:
        now_s = trio.current_time()
        self._at_last(side, now_s + sum(link.draw_arrival() - now_s for link in self._links))

    def _at_last(self, side: Side, gives_up_s: float) -> None:
        if side in self._ends:
            self._ends[side].deadline = min(self._ends[side].deadline, gives_up_s)
