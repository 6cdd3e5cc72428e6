"""Processor work in Trio's worker threads, as many at once as the limit says."""

import os
from collections.abc import Callable
from typing import TypeVar

import trio

from lunanexa_ports.workers import Workers

T = TypeVar("T")


class SystemWorkers(Workers):
    """``limit`` pieces of work at once, one a processor unless told. An abandoned one keeps its place until
    it ends, so that cancelled callers can't fill the machine."""

    def __init__(self, limit: int | None = None) -> None:
        self._limiter = trio.CapacityLimiter(limit if limit is not None else os.cpu_count() or 1)

    async def run(self, work: Callable[[], T]) -> T:
        return await trio.to_thread.run_sync(work, limiter=self._limiter, abandon_on_cancel=True)
