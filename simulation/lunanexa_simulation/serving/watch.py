"""Asks the invariants of a world that goes on: what is broken is told once and never asked again, the rest is."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Final

import trio
import trio.testing

from lunanexa_simulation.verdicts import SafetyBroken
from lunanexa_simulation.world import World

EVERY_S: Final = 0.05
"""Two looks are not closer than that."""


class Watch:
    """Looks at one world at quiescent instants: no task can go on, and nothing is due."""

    def __init__(
        self, world: World, held: Callable[[], AbstractContextManager[None]], say: Callable[[str], None]
    ) -> None:
        """``held``: while it is entered no time passes; ``say``: told of what is broken."""
        self._world = world
        self._held = held
        self._say = say
        self.broken: dict[str, str] = {}
        """What broke, in this order, and how."""

    async def run(self) -> None:
        """For ever."""
        while True:
            await trio.testing.wait_all_tasks_blocked()
            with self._held():
                self.look()
            await trio.sleep(EVERY_S)

    def look(self) -> None:
        """One look."""
        self._world.run.instants += 1
        for check in tuple(self._world.run.checks):
            try:
                check()
            except SafetyBroken as broken:
                self.note(broken)

    def note(self, broken: SafetyBroken) -> None:
        """Something is broken, wherever that was seen."""
        name, _, told = str(broken).partition(": ")
        if name in self.broken:
            return
        self.broken[name] = told
        checkers = self._world.checkers
        # One that is broken would stand before all that are asked after it.
        checkers.invariants = [one for one in checkers.invariants if getattr(one, "__name__", "") != name]
        self._world.trace(f"BROKEN: {broken}")
        self._say(f"broken: {broken}")
