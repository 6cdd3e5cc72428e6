"""Several controllers of which one leads: the one that did is asked first, then the next, round and round."""

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import structlog
import trio

from lunanexa_core.drivers.specification import EngineAddress
from lunanexa_core.southbound.controllers import CONTROLLERS_MAX
from lunanexa_ports.errors import PortUnavailable

T = TypeVar("T")
_log = structlog.get_logger()


class Circle:
    """Where the next question goes. Any number of tasks may ask: who finds out that a controller does not serve moves
    all of them on, also those that wait for its answer.

    Known are those that the agent was told of, then those of its document, then the one that another named last. A name
    is an address and no more: who answers there must prove itself as each of them must."""

    def __init__(self, told: Sequence[EngineAddress]) -> None:
        assert told
        self._told = tuple(told)
        self._listed: tuple[EngineAddress, ...] = ()
        self._named: EngineAddress | None = None
        self._at = self._told[0]
        self._waiting: dict[trio.CancelScope, EngineAddress] = {}
        self._served: EngineAddress | None = None

    @property
    def known(self) -> tuple[EngineAddress, ...]:
        """All of them, in the order in which they are asked."""
        named = () if self._named is None else (self._named,)
        return tuple(dict.fromkeys((*self._told, *self._listed, *named)))[:CONTROLLERS_MAX]

    def learn(self, controllers: Sequence[EngineAddress]) -> None:
        """Those of the document that is followed, in place of the last one's. Who was served by nobody yet begins with
        the first of them: it led when the document was made."""
        self._listed = tuple(controllers)
        if self._served is None and self._listed:
            self._at = self._listed[0]

    async def ask(
        self,
        question: Callable[[EngineAddress], Awaitable[T]],
        elsewhere: Callable[[T], bool],
        leader: Callable[[T], EngineAddress | None],
    ) -> T:
        """The first answer that is not ``elsewhere``, of one try at each controller; else what the last one answered.
        ``leader``: whom such an answer names as the one that leads, who is asked next; of those not known only the
        first. Raises ``PortUnavailable`` as the last one did."""
        asked: list[EngineAddress] = []
        met_stranger = False
        while True:
            at = self._next(self._at, asked) if self._at in asked else self._at
            asked.append(at)
            try:
                answer = await self._ask_one(at, question)
            except PortUnavailable:
                if self._go_on(at, asked):
                    continue
                raise
            if not elsewhere(answer):
                self._told_by(at)
                return answer
            named = leader(answer)
            if named is not None and named not in self.known and not met_stranger:
                self._named, met_stranger = named, True
            if not self._go_on(at, asked, named):
                return answer

    async def _ask_one(self, at: EngineAddress, question: Callable[[EngineAddress], Awaitable[T]]) -> T:
        scope = trio.CancelScope()
        self._waiting[scope] = at
        try:
            with scope:
                return await question(at)
        finally:
            del self._waiting[scope]
        raise PortUnavailable("the controller has ceased to serve")

    def _go_on(self, at: EngineAddress, asked: Sequence[EngineAddress], named: EngineAddress | None = None) -> bool:
        """Turns everybody away from ``at``; whether somebody is left to ask."""
        left = [one for one in self.known if one not in asked]
        if at == self._at and len(self.known) > 1:  # Else another task was first.
            self._at = named if named is not None and named in left else self._next(at, asked)
            for scope, place in self._waiting.items():
                if place == at:
                    scope.cancel("the controller does not serve")
        return bool(left) and len(asked) < CONTROLLERS_MAX

    def _next(self, at: EngineAddress, asked: Sequence[EngineAddress]) -> EngineAddress:
        """The next one that was not ``asked``; if all were, the next one."""
        known = self.known
        begin = known.index(at) + 1 if at in known else 0
        turn = (*known[begin:], *known[:begin])
        return next((one for one in turn if one not in asked), turn[0])

    def _told_by(self, at: EngineAddress) -> None:
        self._at = at
        if self._served not in (None, at):
            _log.info("controller_changed", host=at.host, port=at.port)
        self._served = at
