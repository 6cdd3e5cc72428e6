"""Processor work done at once, in the loop: threads would make a run another one each time."""

from collections.abc import Callable
from typing import TypeVar

import trio

from lunanexa_ports.workers import Workers

T = TypeVar("T")


class SimulatedWorkers(Workers):
    """Takes no virtual time."""

    async def run(self, work: Callable[[], T]) -> T:
        await trio.lowlevel.checkpoint()
        return work()
