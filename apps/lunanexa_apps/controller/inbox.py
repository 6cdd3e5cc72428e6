"""The kernel's inbox: two bounded lines, so that what frees resources never waits behind what takes them.

Overflow of either line: the asker waits. A command that was taken into the inbox is always answered:
with its answer, or with :class:`PortUnavailable` when the kernel has gone.
"""

from collections import deque
from collections.abc import Sequence

import attrs
import trio

from lunanexa_core import commands
from lunanexa_core.commands import Command
from lunanexa_core.kernel.decide import Answer
from lunanexa_ports.errors import PortUnavailable

LINE_MAX = 1_024
BATCH_MAX = 256

_URGENT = (
    commands.SettleWorkload,
    commands.CancelWorkload,
    commands.FailAttempt,
    commands.OpenSession,
    commands.Tick,
    commands.BeginDrain,
)


@attrs.define(eq=False)
class Slot:
    """One command on its way, and where its answer arrives."""

    command: Command
    actor: str
    done: trio.Event = attrs.Factory(trio.Event)
    answer: Answer | None = None

    def reply(self, answer: Answer | None) -> None:
        """``None``: the kernel went without deciding."""
        self.answer = answer
        self.done.set()


class Inbox:
    """Both lines; one reader, any number of askers."""

    def __init__(self) -> None:
        self._urgent: deque[Slot] = deque()
        self._ordinary: deque[Slot] = deque()
        self._asked: dict[int, Slot] = {}
        self._room = {True: trio.Semaphore(LINE_MAX), False: trio.Semaphore(LINE_MAX)}
        self._arrived = trio.Event()
        self.closed = False

    async def ask(self, command: Command, actor: str) -> Answer:
        """Waits for room, then for the answer. Once there was room, cancellation waits for the answer:
        the outcome is never unknown to the asker. Raises :class:`PortUnavailable` when the kernel is gone."""
        urgent = isinstance(command, _URGENT)
        room = self._room[urgent]
        await room.acquire()
        try:
            if self.closed:
                raise PortUnavailable("the kernel is gone")
            slot = Slot(command, actor)
            self._asked[id(slot)] = slot
            (self._urgent if urgent else self._ordinary).append(slot)
            self._arrived.set()
            with trio.CancelScope(shield=True):  # Bounded: the kernel answers, or answers for all as it goes.
                await slot.done.wait()
            del self._asked[id(slot)]
        finally:
            room.release()
        if slot.answer is None:
            raise PortUnavailable("the kernel is gone")
        return slot.answer

    async def batch(self) -> list[Slot]:
        """What is there, urgent first, at most :data:`BATCH_MAX`; waits for the first."""
        while not self._urgent and not self._ordinary:
            self._arrived = trio.Event()
            await self._arrived.wait()
        return self.drain(BATCH_MAX)

    def drain(self, limit: int, *, urgent: bool = True) -> list[Slot]:
        """Takes up to ``limit`` commands without waiting; ordinary ones alone when not ``urgent``."""
        taken: list[Slot] = []
        for line in (self._urgent, self._ordinary) if urgent else (self._ordinary,):
            while line and len(taken) < limit:
                taken.append(line.popleft())
        return taken

    def put_back(self, slots: Sequence[Slot]) -> list[Slot]:
        """Puts urgent commands that were taken and not decided before all others, in their order; returns the
        ordinary ones, which their askers may repeat."""
        urgent = [slot for slot in slots if isinstance(slot.command, _URGENT)]
        self._urgent.extendleft(reversed(urgent))
        return [slot for slot in slots if slot not in urgent]

    def refuse_all(self, answer: Answer | None) -> None:
        """Answers everything that was asked and not answered, in a batch or not."""
        for slot in self._asked.values():
            if not slot.done.is_set():
                slot.reply(answer)
        self._urgent.clear()
        self._ordinary.clear()

    def close(self) -> None:
        """Answers all, and takes nothing any more."""
        self.closed = True
        self.refuse_all(None)
