"""One direction between two hosts of a simulated network."""

import trio

from lunanexa_simulation.rng import Streams


class Link:
    """Holds back what is under way for its latency, and for as long as it is blocked."""

    def __init__(self, streams: Streams, name: str) -> None:
        self._rng = streams.stream(f"{name}/latency")
        self.latency_ms = (0, 0)
        self._blocked = False
        self._waiting = trio.lowlevel.ParkingLot()

    @property
    def blocked(self) -> bool:
        return self._blocked

    def block(self) -> None:
        self._blocked = True

    def heal(self) -> None:
        self._blocked = False
        self._waiting.unpark_all()

    def draw_latency_s(self) -> float:
        low, high = self.latency_ms
        return (low if low == high else self._rng.randint(low, high)) / 1000

    async def until(self, arrives_at: float) -> None:
        """What was sent so as to arrive then has arrived: not before, and not while the link is blocked."""
        await trio.sleep_until(max(arrives_at, trio.current_time()))
        while self._blocked:
            await self._waiting.park()

    async def carry(self) -> None:
        await self.until(trio.current_time() + self.draw_latency_s())
