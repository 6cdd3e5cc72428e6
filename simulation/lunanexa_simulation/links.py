"""One direction between two hosts of a simulated network.

What goes over it is a stream, as TCP makes one of packets: a packet that is lost comes again and holds back what was
sent after it, one that comes twice or too early is seen by nobody. So loss is lateness here, and a request comes twice
only where its answer was lost and its client asks again.
"""

from abc import abstractmethod
from typing import Final, Protocol

import trio

from lunanexa_simulation.rng import Streams

RESEND_S: Final = 0.2
"""After so long a packet that nobody acknowledged is sent again, then after twice as long, and so on: the shortest that
Linux takes (RFC 6298, section 5; ``TCP_RTO_MIN``)."""
RESEND_OPENING_S: Final = 1.0
"""The same of a connection's first packets (RFC 6298, section 2.1)."""
_RESENDS_MAX: Final = 8


class Link(Protocol):
    """What carries what one host, or one end of a connection, sends to another."""

    @abstractmethod
    def draw_arrival(self, size_bytes: int = 0, *, opening: bool = False) -> float:
        """When what is sent now arrives, on Trio's clock, if nothing of its connection was sent before it."""

    @abstractmethod
    def draw_break(self) -> bool:
        """Whether the answer that is sent now breaks its connection."""

    @abstractmethod
    def here(self, arrives_at: float) -> bool:
        """Whether what was sent so as to arrive then has arrived."""

    @abstractmethod
    async def until(self, arrives_at: float) -> None:
        """What was sent so as to arrive then has arrived: not before, and not while the link is blocked."""

    @abstractmethod
    async def carry(self, size_bytes: int = 0, *, opening: bool = False) -> None:
        """Sends it, and returns when it has arrived."""


class HostLink(Link):
    """Holds back what is under way for its latency, its losses and its width, and for as long as it is blocked."""

    def __init__(self, streams: Streams, name: str) -> None:
        self._streams = streams
        self._name = name
        self._rng = streams.stream(f"{name}/latency")
        self.latency_ms = (0, 0)
        self.loss_per_mille = 0
        """How many of a thousand packets are lost."""
        self.breaks_per_mille = 0
        """With how many of a thousand answers their connection breaks instead: what was asked was heard."""
        self.bytes_s: int | None = None
        """How many it carries a second, of all its connections together; ``None``: all."""
        self._carries_until_s = 0.0
        self.blocked_since_s: float | None = None
        self._waiting = trio.lowlevel.ParkingLot()

    @property
    def blocked(self) -> bool:
        return self.blocked_since_s is not None

    def block(self) -> None:
        if not self.blocked:
            self.blocked_since_s = trio.current_time()

    def heal(self) -> None:
        self.blocked_since_s = None
        self._waiting.unpark_all()

    def spoil(self, *, loss_per_mille: int = 0, breaks_per_mille: int = 0, bytes_s: int | None = None) -> None:
        """From now on; without arguments it is well again. What is under way arrives as it was to."""
        self.loss_per_mille, self.breaks_per_mille, self.bytes_s = loss_per_mille, breaks_per_mille, bytes_s

    def troubles(self) -> list[str]:
        """What is wrong with it, for people."""
        found = {
            "is blocked": self.blocked,
            f"loses {self.loss_per_mille} of 1000 packets": self.loss_per_mille,
            f"loses {self.breaks_per_mille} of 1000 answers": self.breaks_per_mille,
            f"carries {self.bytes_s} bytes a second": self.bytes_s,
        }
        return [trouble for trouble, there_is in found.items() if there_is]

    def draw_arrival(self, size_bytes: int = 0, *, opening: bool = False) -> float:
        low, high = self.latency_ms
        latency_s = (low if low == high else self._rng.randint(low, high)) / 1000
        sent_s = self._sent(size_bytes) if self.bytes_s else trio.current_time()
        return sent_s + latency_s + self._draw_resends_s(RESEND_OPENING_S if opening else RESEND_S)

    def draw_break(self) -> bool:
        return self._draw("breaks", self.breaks_per_mille)

    def here(self, arrives_at: float) -> bool:
        return not self.blocked and arrives_at <= trio.current_time()

    async def until(self, arrives_at: float) -> None:
        if self.here(arrives_at):
            await trio.lowlevel.checkpoint()
        else:
            await trio.sleep_until(max(arrives_at, trio.current_time()))
        while self.blocked:
            await self._waiting.park()

    async def carry(self, size_bytes: int = 0, *, opening: bool = False) -> None:
        await self.until(self.draw_arrival(size_bytes, opening=opening))

    def _sent(self, size_bytes: int) -> float:
        """When the last byte has left, after all that waits before it."""
        assert self.bytes_s is not None
        began_s = max(self._carries_until_s, trio.current_time())
        self._carries_until_s = began_s + size_bytes / self.bytes_s
        return self._carries_until_s

    def _draw_resends_s(self, pause_s: float) -> float:
        late_s = 0.0
        for _ in range(_RESENDS_MAX):
            if not self._draw("loss", self.loss_per_mille):
                break
            late_s, pause_s = late_s + pause_s, 2 * pause_s
        return late_s

    def _draw(self, what: str, per_mille: int) -> bool:
        """From a stream of its own, and only where there is something to draw: other draws stay what they are."""
        return per_mille > 0 and self._streams.stream(f"{self._name}/{what}").random() < per_mille / 1000
