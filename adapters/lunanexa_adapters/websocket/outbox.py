"""What waits to be written on one connection, in order."""

from collections import deque

import trio


class Outbox:
    """Overflow policy: events are put only while there is room, and wait at their workloads otherwise; answers are
    put always, and while too many wait nothing more is read that could bring another one. So an answer waits for
    what is before it, and events can't keep it out."""

    def __init__(self, *, bytes_max: int, answers_max: int) -> None:
        self._texts: deque[str] = deque()
        self._bytes_max = bytes_max
        self._answers_max = answers_max
        self._bytes = 0
        self._closed = False
        self._news = trio.lowlevel.ParkingLot()
        self._readers = trio.lowlevel.ParkingLot()

    @property
    def has_room(self) -> bool:
        """For an event."""
        return self._bytes < self._bytes_max and not self._closed

    @property
    def is_empty(self) -> bool:
        """Nothing waits, and nothing is being written."""
        return not self._texts

    def put(self, text: str) -> None:
        if not self._closed:
            self._texts.append(text)
            self._bytes += len(text)
            self._news.unpark_all()

    def close(self, *, flush: bool) -> None:
        """Takes no more; without ``flush`` what waits is dropped."""
        self._closed = True
        if not flush:
            self._texts.clear()
        self._news.unpark_all()

    async def next(self) -> str | None:
        """The next one to be written, which stays until :meth:`written`; ``None`` at the end."""
        while not self._texts and not self._closed:
            await self._news.park()
        return self._texts[0] if self._texts else None

    def written(self, text: str) -> None:
        """``text`` is on its way."""
        self._bytes -= len(text)
        if self._texts:  # else they were dropped meanwhile
            self._texts.popleft()
        self._readers.unpark_all()

    async def answerable(self) -> None:
        """Waits while too much is to be written for anything more to be read."""
        while len(self._texts) >= self._answers_max and not self._closed:
            await self._readers.park()
