"""Accepted: an adapter inherits its port; a small double fits without inheriting."""

from abc import abstractmethod
from typing import Protocol

import attrs


class Clock(Protocol):
    @abstractmethod
    def mono_ms(self) -> int:
        """Milliseconds that never go back."""

    @abstractmethod
    async def settle(self) -> None:
        """Waits until the clock can be trusted."""


@attrs.define
class InheritingClock(Clock):
    value_ms: int

    def mono_ms(self) -> int:
        return self.value_ms

    async def settle(self) -> None:
        return None


class StructuralClock:
    def mono_ms(self) -> int:
        return 0

    async def settle(self) -> None:
        return None


CLOCKS: tuple[Clock, ...] = (InheritingClock(value_ms=1), StructuralClock())
