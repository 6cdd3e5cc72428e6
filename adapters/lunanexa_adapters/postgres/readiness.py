"""What must be done once before a store is used, by whoever comes first."""

from collections.abc import Awaitable, Callable

import trio

from lunanexa_ports.errors import PortUnavailable


class Readiness:
    """Runs ``prepare`` at the first use, and again while it raises."""

    def __init__(self, prepare: Callable[[], Awaitable[None]]) -> None:
        self._prepare = prepare
        self._turn = trio.Lock()
        self._done = trio.Event()
        self._failed: PortUnavailable | None = None

    async def __call__(self) -> None:
        """Returns when it is done; raises what it raised. Who came while another tried shares the outcome, so that
        callers do not wait one after another for a server that is away."""
        if self._done.is_set():
            return
        before = self._failed
        async with self._turn:
            if self._done.is_set():
                return
            if self._failed is not None and self._failed is not before:
                raise PortUnavailable(str(self._failed)) from self._failed
            try:
                await self._prepare()
            except PortUnavailable as error:
                self._failed = error
                raise
            self._done.set()
