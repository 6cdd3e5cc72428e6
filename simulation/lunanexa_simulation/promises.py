"""What a scenario promises: that something holds now, or comes true in its time."""

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

import trio

from lunanexa_simulation.run import Run
from lunanexa_simulation.verdicts import LivenessBroken, SafetyBroken


class Promises:
    """Every promise is noted in the run, kept or not; the first that is broken ends it."""

    def __init__(self, run: Run) -> None:
        self.run = run

    def trace(self, event: str) -> None:
        """One line of the trace, in the name of the world."""
        self.run.trace.record("world", event)

    async def dither(self, about: str, at_most_ms: int) -> None:
        """Lets some time pass; the seed says how much."""
        await trio.sleep(self.run.streams.stream(f"dither/{about}").randint(0, at_most_ms) / 1_000)

    def check(self, name: str, holds: bool, told: object = None) -> None:
        """A promise of the scenario that must hold now."""
        self.run.promise(name, holds)
        if not holds:
            raise SafetyBroken(f"{name}: {told}")

    @contextmanager
    def watched(self, name: str, fault: Callable[[], str | None]) -> Iterator[None]:
        """A promise that must hold at each quiescent instant inside; ``fault`` tells what breaks it."""

        def look() -> None:
            told = fault()
            if told is not None:
                self.check(name, holds=False, told=told)

        self.run.checks.append(look)
        try:
            yield
        finally:
            self.run.checks.remove(look)
        self.check(name, holds=True)

    async def until(self, name: str, holds: Callable[[], bool], *, within_ms: int) -> None:
        """A promise that must come true in time; it is looked at each quiescent instant."""
        self._in_time(name, await self.comes_true(holds, within_ms=within_ms), within_ms)

    async def comes_true(self, holds: Callable[[], bool], *, within_ms: int) -> bool:
        """Whether something comes true in time, which nobody promised."""
        came = trio.Event()

        def look() -> None:
            if holds():
                came.set()

        self.run.checks.append(look)
        try:
            with trio.move_on_after(within_ms / 1_000):
                await came.wait()
        finally:
            self.run.checks.remove(look)
        return came.is_set()

    async def until_told(
        self, name: str, probe: Callable[[], Awaitable[bool]], *, within_ms: int, every_ms: int = 250
    ) -> None:
        """A promise that only asking can tell."""
        came = False
        with trio.move_on_after(within_ms / 1_000):
            while not came:
                came = await probe()
                await trio.sleep(0 if came else every_ms / 1_000)
        self._in_time(name, came, within_ms)

    def _in_time(self, name: str, came: bool, within_ms: int) -> None:
        self.run.promise(name, came)
        if not came:
            raise LivenessBroken(f"{name}: not within {within_ms} virtual ms")
