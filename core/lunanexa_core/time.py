"""An instant as the rules see it: two readings, never one.

``mono_ms`` only orders and measures on this machine (CLOCK_BOOTTIME where a suspend matters);
``wall_ms`` is for people and for events. Instants of two machines are never compared.
"""

import attrs

SLEW_PER_MILLE = 100
"""How far the kernel's wall clock may lean towards the system clock: 10 % of the time that passed."""


@attrs.frozen
class Instant:
    """One reading of both clocks, in milliseconds."""

    mono_ms: int
    wall_ms: int


def event_wall_ms(last: Instant, now: Instant) -> int:
    """Wall time for the next event: the last event's plus what passed on the monotonic clock,
    slewed towards the system clock by at most :data:`SLEW_PER_MILLE` of it. It never runs backwards."""
    elapsed_ms = max(0, now.mono_ms - last.mono_ms)
    steady_ms = last.wall_ms + elapsed_ms
    lean_ms = elapsed_ms * SLEW_PER_MILLE // 1000
    return max(last.wall_ms, min(max(now.wall_ms, steady_ms - lean_ms), steady_ms + lean_ms))
