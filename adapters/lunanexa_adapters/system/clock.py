"""The clocks of this machine. The only reader of time in the real world."""

import time
from typing import Final

from lunanexa_core.time import Instant
from lunanexa_ports.clock import Clock

# CLOCK_MONOTONIC stands still while a Linux machine is suspended, and leases must not.
_BOOTTIME: Final[int] = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
_NS_A_MS: Final = 1_000_000


class SystemClock(Clock):
    """CLOCK_BOOTTIME and the system's wall clock."""

    def now(self) -> Instant:
        return Instant(
            mono_ms=time.clock_gettime_ns(_BOOTTIME) // _NS_A_MS,
            wall_ms=time.clock_gettime_ns(time.CLOCK_REALTIME) // _NS_A_MS,
        )
