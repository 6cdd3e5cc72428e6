"""Driven port: what time it is. Timers and deadlines are Trio's own; this is for the rules and for events."""

from abc import abstractmethod
from typing import Protocol

from lunanexa_core.time import Instant


class Clock(Protocol):
    """Both clocks of this machine."""

    @abstractmethod
    def now(self) -> Instant:
        """One reading of both. ``mono_ms`` never falls and counts while the machine is suspended
        (CLOCK_BOOTTIME); ``wall_ms`` may jump. Never blocks, never raises."""
