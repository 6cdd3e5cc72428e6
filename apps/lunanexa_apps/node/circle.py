"""Several controllers of which one leads: the one that did is asked first, then the next, round and round."""

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import structlog
import trio

from lunanexa_core.drivers.specification import EngineAddress
from lunanexa_ports.errors import PortUnavailable

T = TypeVar("T")
_log = structlog.get_logger()


class Circle:
    """Where the next question goes. Any number of tasks may ask: who finds out that a controller does not serve moves
    all of them on, also those that wait for its answer."""

    def __init__(self, controllers: Sequence[EngineAddress]) -> None:
        assert controllers
        self._controllers = tuple(controllers)
        self._at = 0
        self._waiting: dict[trio.CancelScope, int] = {}
        self._served: int | None = None

    async def ask(self, question: Callable[[EngineAddress], Awaitable[T]], elsewhere: Callable[[T], bool]) -> T:
        """The first answer that is not ``elsewhere``, of as many tries as there are controllers; else what the last
        one answered. Raises ``PortUnavailable`` as the last one did."""
        for last in (*[False] * (len(self._controllers) - 1), True):
            at = self._at
            try:
                answer = await self._ask_one(at, question)
            except PortUnavailable:
                self._go_on(at)
                if last:
                    raise
                continue
            if not elsewhere(answer):
                self._told(at)
                return answer
            self._go_on(at)
            if last:
                return answer
        raise AssertionError("the last try returns or raises")

    async def _ask_one(self, at: int, question: Callable[[EngineAddress], Awaitable[T]]) -> T:
        scope = trio.CancelScope()
        self._waiting[scope] = at
        try:
            with scope:
                return await question(self._controllers[at])
        finally:
            del self._waiting[scope]
        raise PortUnavailable("the controller has ceased to serve")

    def _go_on(self, at: int) -> None:
        if at != self._at or len(self._controllers) == 1:
            return  # Another task was first.
        self._at = (at + 1) % len(self._controllers)
        for scope, place in self._waiting.items():
            if place == at:
                scope.cancel("the controller does not serve")

    def _told(self, at: int) -> None:
        if self._served not in (None, at):
            controller = self._controllers[at]
            _log.info("controller_changed", host=controller.host, port=controller.port)
        self._served = at
