"""What one gateway task has yet to hear of its workload: written by the kernel's task, which never waits."""

from collections.abc import Callable

import trio

from lunanexa_core.ids import StartId
from lunanexa_core.outcomes import Refusal
from lunanexa_core.routing.sever import Severed
from lunanexa_ports.dispatch import QueuePlace, Watch, WatchEvent


class WatchBox(Watch):
    """The newest event of one workload. A grant or refusal takes the place of a queue place, never the
    other way round; a second grant (after a failed attempt) comes when the first was taken."""

    def __init__(self) -> None:
        self._event: WatchEvent | None = None
        self._told: QueuePlace | None = None
        self._void: Refusal | None = None
        self._tell_void: Callable[[Refusal], None] | None = None
        self._severed: Severed | None = None
        self._tell_severed: Callable[[StartId, str], None] | None = None
        self._arrived = trio.Event()
        self.streaming = False

    def put(self, event: WatchEvent) -> None:
        if isinstance(event, QueuePlace):
            if event == self._told or not isinstance(self._event, QueuePlace | None):
                return
            self._told = event
        self._event = event
        self._arrived.set()

    @property
    def place(self) -> int:
        """Waiters before it, as far as it was told; 0 once it was granted."""
        return self._event.place if isinstance(self._event, QueuePlace) else 0

    async def next(self) -> WatchEvent:
        while self._event is None:
            self._arrived = trio.Event()
            await self._arrived.wait()
        event, self._event = self._event, None
        return event

    def on_void(self, tell: Callable[[Refusal], None]) -> None:
        self._tell_void = tell
        if self._void is not None:
            tell(self._void)

    def void(self, refusal: Refusal) -> None:
        """The workload must end. The first reason counts."""
        self._void = self._void or refusal
        if self._tell_void is not None:
            self._tell_void(self._void)

    def on_severed(self, tell: Callable[[StartId, str], None]) -> None:
        self._tell_severed = tell
        if self._severed is not None:
            tell(self._severed.start, self._severed.failure)

    def sever(self, severed: Severed) -> None:
        """Its grant leads nowhere any more. The newest word counts: there is one grant at a time."""
        self._severed = severed
        if self._tell_severed is not None:
            self._tell_severed(severed.start, severed.failure)

    def output_began(self) -> None:
        self.streaming = True

    def close(self) -> None:
        """The watch is over."""
        self._tell_void = self._tell_severed = None
