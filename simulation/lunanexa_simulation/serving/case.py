"""One fault as it is asked for, and what it needs to happen."""

from collections.abc import Awaitable, Callable, Mapping
from typing import TypeAlias

import attrs
import trio

from lunanexa_simulation.mishaps import Hands
from lunanexa_simulation.mishaps.field import Field
from lunanexa_simulation.rng import Stream

Value: TypeAlias = int | str


@attrs.frozen(kw_only=True)
class Parameter:
    """What may be said of a fault beside whom it befalls. ``choices``, or a whole number from ``least`` to ``most``."""

    name: str
    about: str
    default: Value
    choices: tuple[str, ...] = ()
    least: int = 0
    most: int = 0

    @property
    def told(self) -> str:
        """What it may be, for people."""
        return " or ".join(self.choices) if self.choices else f"a whole number from {self.least} to {self.most}"

    def takes(self, value: object) -> bool:
        """Whether it may be ``value``."""
        if self.choices:
            return value in self.choices
        return isinstance(value, int) and not isinstance(value, bool) and self.least <= value <= self.most


@attrs.define(kw_only=True)
class Case:
    """One fault in force."""

    field: Field
    number: int
    """Of what it befalls, from 0."""
    values: Mapping[str, Value]
    draw: Stream
    """What else is to be said of it."""
    for_ms: int | None = None
    """After so long it heals by itself."""
    told_to_heal: trio.Event = attrs.Factory(trio.Event)

    async def healed(self) -> None:
        """Returns when it is to be over."""
        with trio.move_on_after(float("inf") if self.for_ms is None else self.for_ms / 1_000):
            await self.told_to_heal.wait()

    def int_of(self, name: str) -> int:
        """The value of a parameter that is a number."""
        return int(self.values[name])

    def word_of(self, name: str) -> str:
        """The value of a parameter that is one of several words."""
        return str(self.values[name])


@attrs.frozen(kw_only=True)
class FaultKind:
    """One kind of fault that may be asked for."""

    name: str
    hands: Hands
    about: str
    befall: Callable[[Case], Awaitable[None]]
    """Returns when what it broke is well again."""
    parameters: tuple[Parameter, ...] = ()
    by_itself: bool = False
    """It heals by itself, after as long as the seed says, and not before."""
