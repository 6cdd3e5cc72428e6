"""What a run of real processes promises: that something holds now, or comes true in its time."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import trio

from lunanexa_simulation.run import Kept
from lunanexa_simulation.verdicts import LivenessBroken, SafetyBroken

POLL_S: Final = 0.05
NO_CRASH: Final = "no process ends by itself"


class ProcessCrashed(Exception):
    """A process ended that nobody had ended."""

    def __init__(self, name: str, status: int) -> None:
        super().__init__(f"{name} ended by itself, with status {status}")
        self.name = name


class Promises:
    """Every promise is noted, kept or not; the first that is broken ends the run."""

    def __init__(self) -> None:
        self.kept: list[Kept] = []
        self._began_s = trio.current_time()

    @property
    def now_ms(self) -> int:
        """Since the run began."""
        return round((trio.current_time() - self._began_s) * 1_000)

    def check(self, name: str, fault: object, *, often: bool = False) -> None:
        """A promise that must hold now; ``fault`` is what breaks it, nothing where it holds. One that is asked
        ``often`` is noted only where it is broken."""
        if fault or not often:
            self.note(name, held=not fault)
        if fault:
            raise SafetyBroken(f"{name}: {fault}")

    def check_all(self, faults: Mapping[str, str | None]) -> None:
        """Several at once: each is noted, also after one that is broken."""
        for name, fault in faults.items():
            self.note(name, held=not fault)
        for name, fault in faults.items():
            if fault:
                raise SafetyBroken(f"{name}: {fault}")

    async def until(
        self, name: str, lacking: Callable[[], Awaitable[str | None]], *, within_s: float, often: bool = False
    ) -> None:
        """A promise that must come true in time; ``lacking`` tells what is still in its way. ``often``: as above."""
        told: str | None = "nothing was heard"
        with trio.move_on_after(within_s):
            while told is not None:
                told = await lacking()
                await trio.sleep(POLL_S if told else 0)
        if told is not None or not often:
            self.note(name, held=told is None)
        if told is not None:
            raise LivenessBroken(f"{name}: not within {within_s:.0f} s: {told}")

    def note(self, name: str, *, held: bool) -> None:
        """How a promise ended."""
        self.kept.append(Kept(name, held, self.now_ms))
