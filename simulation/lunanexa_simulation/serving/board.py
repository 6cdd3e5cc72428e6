"""Which faults are in force. What one has in its hands no other touches, or they would heal each other's."""

from collections import deque
from collections.abc import Callable
from typing import Final

import attrs
import trio

from lunanexa_simulation.mishaps.field import Field
from lunanexa_simulation.serving.answers import Problem
from lunanexa_simulation.serving.case import Case, FaultKind
from lunanexa_simulation.serving.kinds import Wish, things
from lunanexa_simulation.serving.watch import Watch
from lunanexa_simulation.trace import virtual_ms
from lunanexa_simulation.verdicts import LivenessBroken, SafetyBroken
from lunanexa_simulation.world import World

ENDED_KEPT: Final = 20


@attrs.define(eq=False, kw_only=True)
class Fault:
    """One fault, in force or over."""

    number: int
    kind: FaultKind
    case: Case
    began_ms: int
    ended_ms: int | None = None
    problem: str | None = None
    """What went wrong with it, beside what it broke."""

    @property
    def told(self) -> str:
        """For people."""
        return f"{self.kind.name} ({things(self.kind)} {self.case.number + 1})"


class FaultBoard:
    """Lets faults happen in one world. ``nursery`` carries them."""

    def __init__(self, world: World, nursery: trio.Nursery, watch: Watch, say: Callable[[str], None]) -> None:
        self._world = world
        self._nursery = nursery
        self._watch = watch
        self._say = say
        self._field = Field(world)
        self._numbers = 0
        self._none_left = trio.Event()
        self.in_force: dict[int, Fault] = {}
        self.ended: deque[Fault] = deque(maxlen=ENDED_KEPT)

    def begin(self, wish: Wish) -> Fault | Problem:
        """It is in force from now on; or what it would touch is in the hands of another."""
        kind = wish.kind
        for other in self.in_force.values():
            if (other.kind.hands, other.case.number) == (kind.hands, wish.number):
                message = f"Fault {other.number}, {other.told}, has the same in its hands: heal it, or wait."
                return Problem(status=409, code="fault_in_force", message=message, param="target")
        self._numbers += 1
        draw = self._world.run.streams.stream(f"fault/{self._numbers}")
        case = Case(field=self._field, number=wish.number, values=wish.values, draw=draw, for_ms=wish.for_ms)
        fault = Fault(number=self._numbers, kind=kind, case=case, began_ms=virtual_ms())
        self.in_force[fault.number] = fault
        self._world.run.happened[f"fault {kind.name}"] += 1
        self._tell(f"fault {fault.number}: {fault.told} begins")
        self._nursery.start_soon(self._carry, fault, name=f"fault {fault.number} {kind.name}")
        return fault

    def heal(self, number: int) -> Fault | Problem:
        """It is to be over: it heals from now on, and is gone when what it broke is well again."""
        fault = self.in_force.get(number)
        if fault is None:
            message = f"No fault {number} is in force; those are at GET /sim/faults."
            return Problem(status=404, code="not_found", message=message)
        if fault.kind.by_itself:
            message = f"Fault {number}, {fault.told}, heals by itself and not before."
            return Problem(status=409, code="heals_by_itself", message=message)
        fault.case.told_to_heal.set()
        return fault

    async def heal_all(self) -> None:
        """Returns when nothing is in force any more, which may take as long as what heals by itself."""
        for fault in self.in_force.values():
            fault.case.told_to_heal.set()
        while self.in_force:
            self._none_left = trio.Event()
            await self._none_left.wait()

    async def _carry(self, fault: Fault) -> None:
        try:
            await fault.kind.befall(fault.case)
        except SafetyBroken as broken:
            fault.problem = str(broken)
            self._watch.note(broken)
        except LivenessBroken as broken:
            # What a mishap waits for, another that somebody asked for may hold up as long as they like.
            fault.problem = str(broken)
        fault.ended_ms = virtual_ms()
        del self.in_force[fault.number]
        self.ended.append(fault)
        self._tell(f"fault {fault.number}: {fault.told} is over{f': {fault.problem}' if fault.problem else ''}")
        if not self.in_force:
            self._none_left.set()

    def _tell(self, line: str) -> None:
        self._world.trace(line)
        self._say(line)
