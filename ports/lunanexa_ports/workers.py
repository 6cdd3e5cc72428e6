"""Driven port: work that takes the processor for more than a few milliseconds leaves the loop here."""

from abc import abstractmethod
from collections.abc import Callable
from typing import Protocol, TypeVar

T = TypeVar("T")


class Workers(Protocol):
    """A bounded pool beside the event loop; the simulation runs the work inline."""

    @abstractmethod
    async def run(self, work: Callable[[], T]) -> T:
        """Runs ``work`` (pure, without I/O of ours) and returns its result or raises what it raised. Waits
        while the pool is busy. A cancelled caller leaves at once; the abandoned result is dropped."""
