"""What a mishap is given: the world, and what mishaps must not do at once."""

from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias

import attrs
import trio

from lunanexa_simulation.controller_host import ControllerHost
from lunanexa_simulation.rng import Stream
from lunanexa_simulation.world import World

LONG_MS: Final = 15_000
"""Longer than a lease."""
_BACK_MS: Final = 300_000


@attrs.define
class Field:
    """A world that things befall."""

    world: World
    store: trio.Lock = attrs.Factory(trio.Lock)
    """Of who lets the journal's disk fail, and of who starts a controller: one that finds no store does not start."""

    @property
    def back_ms(self) -> int:
        """Within which an operator is obeyed, at the latest when no other mishap is in the way."""
        return _BACK_MS + (self.world.run.manner.faults_ms or 0)

    async def start_controller(self, host: ControllerHost) -> None:
        """As its supervisor does it, when there is a store."""
        async with self.store:
            await host.start()
        self.world.trace(f"{host.host}: the controller is started")


Befall: TypeAlias = Callable[[Field, int, Stream], Awaitable[None]]
"""Of a field, the number of what it befalls, and what else the seed has to say. It returns when what it broke is well
again."""


async def a_while(draw: Stream, at_most_ms: int = LONG_MS) -> None:
    """Some time, as the seed says."""
    await trio.sleep(draw.randint(50, at_most_ms) / 1_000)
