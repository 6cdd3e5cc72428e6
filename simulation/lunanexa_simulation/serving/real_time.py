"""Trio's clock for a world that people use: time that passes by itself, from 0, in whole milliseconds.

It is not Trio's own because of two things. A world's trace tells milliseconds since its beginning. And while the
invariants are asked time stands still: asking takes time, and what is due meanwhile would look as if it came late.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager

import trio

from lunanexa_ports.clock import Clock


class RealTime(trio.abc.Clock):
    """Of one loop. ``clock``: where time comes from."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._origin_ms = 0
        self._told_s = 0.0
        self._held = False

    def start_clock(self) -> None:
        self._origin_ms = self._clock.now().mono_ms

    def current_time(self) -> float:
        if not self._held:
            self._told_s = self._passed_s()
        return self._told_s

    def deadline_to_sleep_time(self, deadline: float) -> float:
        # An infinite one stays infinite: something else has to happen.
        return deadline if math.isinf(deadline) else max(0.0, deadline - self._passed_s())

    @contextmanager
    def held(self) -> Iterator[None]:
        """Time stands where it was when somebody last asked. To be entered at a quiescent instant, so that nothing
        that was due then is undone."""
        self._held = True
        try:
            yield
        finally:
            self._held = False

    def _passed_s(self) -> float:
        return (self._clock.now().mono_ms - self._origin_ms) / 1_000
