"""One machine's clocks on Trio's virtual time: they start anywhere, run too fast or slow, and jump."""

from typing import Final

import trio

from lunanexa_core.time import Instant
from lunanexa_ports.clock import Clock

EPOCH_WALL_MS: Final = 1_800_000_000_000
"""Where simulated wall clocks start unless told: in January 2027."""

_EXACT: Final = 1_000_000


class SimulatedClock(Clock):
    """Starts where it is made, inside a Trio run. ``rate_ppm`` is how many parts per million faster than
    Trio's clock the machine's oscillator runs; it drives both readings."""

    def __init__(self, *, mono_ms: int = 0, wall_ms: int = EPOCH_WALL_MS, rate_ppm: int = 0) -> None:
        self._origin = trio.current_time()
        self._anchor_ms = 0
        self._at_anchor = Instant(mono_ms=mono_ms, wall_ms=wall_ms)
        self._rate_ppm = rate_ppm

    def now(self) -> Instant:
        passed_ms = (self._trio_ms() - self._anchor_ms) * (_EXACT + self._rate_ppm) // _EXACT
        return Instant(mono_ms=self._at_anchor.mono_ms + passed_ms, wall_ms=self._at_anchor.wall_ms + passed_ms)

    def set_rate(self, rate_ppm: int) -> None:
        """From now on the oscillator runs at another rate; both readings go on from where they are."""
        assert rate_ppm > -_EXACT, rate_ppm
        self._anchor(self.now())
        self._rate_ppm = rate_ppm

    def jump_wall(self, by_ms: int) -> None:
        """Somebody sets the wall clock; the monotonic one doesn't notice."""
        now = self.now()
        self._anchor(Instant(mono_ms=now.mono_ms, wall_ms=now.wall_ms + by_ms))

    def wake(self, slept_ms: int) -> None:
        """The machine was suspended for so long: both readings went on, timers did not."""
        now = self.now()
        self._anchor(Instant(mono_ms=now.mono_ms + slept_ms, wall_ms=now.wall_ms + slept_ms))

    def reboot(self) -> None:
        """The machine starts anew: the monotonic clock begins at nothing, the wall clock goes on."""
        self._anchor(Instant(mono_ms=0, wall_ms=self.now().wall_ms))

    def _anchor(self, reading: Instant) -> None:
        self._at_anchor = reading
        self._anchor_ms = self._trio_ms()

    def _trio_ms(self) -> int:
        # Rounded: sums of float seconds fall a hair below the millisecond that they mean.
        return round((trio.current_time() - self._origin) * 1_000)
