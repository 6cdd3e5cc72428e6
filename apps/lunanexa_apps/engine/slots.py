"""The slots: so many generations at once, a FIFO line of bounded length behind them, refusal beyond.

Overflow policy of the line: refuse. A place in it, and a slot, end with the scope that holds them, so a
client that leaves frees what it held wherever it stood.
"""

import heapq
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import attrs
import trio


@attrs.define
class Slot:
    """One running generation, as ``/slots`` and the gauges show it."""

    number: int
    prompt_tokens: int
    completion_tokens: int = 0


@attrs.define
class Place:
    """A request's claim to run or wait; given up with its slot, or by whoever took it."""

    given_up: bool = False


class Slots:
    def __init__(self, count: int, queue: int) -> None:
        # CapacityLimiter hands a freed token to the task that has waited longest.
        self._limiter = trio.CapacityLimiter(count)
        self._places_max = count + queue
        self._places = 0
        self._free = list(range(count))
        self._taken: dict[int, Slot] = {}

    @property
    def count(self) -> int:
        return int(self._limiter.total_tokens)

    @property
    def running(self) -> int:
        # Not the table's length: a token that was just handed on has no row until its task wakes.
        return self._limiter.borrowed_tokens

    @property
    def waiting(self) -> int:
        return self._places - self.running

    def table(self) -> list[Slot | None]:
        return [self._taken.get(number) for number in range(self.count)]

    @contextmanager
    def join(self) -> Iterator[Place | None]:
        """A place among those that run or wait, None when all are taken."""
        if self._places == self._places_max:
            yield None
            return
        place = Place()
        self._places += 1
        try:
            yield place
        finally:
            self._give_up(place)

    def _give_up(self, place: Place) -> None:
        if not place.given_up:
            place.given_up = True
            self._places -= 1

    @asynccontextmanager
    async def hold(self, place: Place, prompt_tokens: int) -> AsyncIterator[Slot]:
        """Wait in line, then hold a slot; the place ends with it, so that telling the rest of an answer
        to a slow reader keeps nobody out."""
        assert not place.given_up
        async with self._limiter:
            slot = Slot(heapq.heappop(self._free), prompt_tokens)
            self._taken[slot.number] = slot
            try:
                yield slot
            finally:
                del self._taken[slot.number]
                heapq.heappush(self._free, slot.number)
                self._give_up(place)
