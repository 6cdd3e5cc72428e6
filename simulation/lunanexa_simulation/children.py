"""Children as tasks: each program is a coroutine function that plays a process until it returns its status."""

import signal
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import trio

from lunanexa_ports.children import Child, ChildOrder, Children
from lunanexa_ports.errors import PortFault

KILLED: Final = -int(signal.SIGKILL)
FIRST_PID: Final = 1000

Program = Callable[["SimulatedChild"], Awaitable[int]]
"""What a child does. It returns its exit status; it learns of SIGTERM and SIGINT by
:meth:`SimulatedChild.wait_terminated`."""


class SimulatedChild(Child):
    """One simulated process."""

    def __init__(self, pid: int, order: ChildOrder) -> None:
        self.order = order
        self.terminations = 0
        self.interrupts = 0
        self._pid = pid
        self._status: int | None = None
        self._ended = trio.Event()
        self._terminated = trio.Event()
        self._scope = trio.CancelScope()

    @property
    def pid(self) -> int:
        return self._pid

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        return self._status is None

    async def wait(self) -> int:
        await self._ended.wait()
        assert self._status is not None
        return self._status

    def terminate(self) -> None:
        if self._status is None:
            self.terminations += 1
            self._terminated.set()

    def interrupt(self) -> None:
        if self._status is None:
            self.interrupts += 1
            self._terminated.set()

    def kill(self) -> None:
        if self._status is None:
            self.exit(KILLED)

    def exit(self, status: int) -> None:
        """Ends it from outside, as a crash does."""
        if self._status is None:
            self._status = status
            self._ended.set()
            self._scope.cancel()

    async def wait_terminated(self) -> None:
        """For programs: returns when SIGTERM or SIGINT came."""
        await self._terminated.wait()

    async def _play(self, program: Program) -> None:
        with self._scope:
            self.exit(await program(self))


class SimulatedChildren(Children):
    """``programs`` are found by the name of the order. Children live in ``nursery``; cancelling it is the end
    of the supervisor, and so of them."""

    def __init__(self, nursery: trio.Nursery, programs: Mapping[str, Program]) -> None:
        self._nursery = nursery
        self._programs = programs
        self.started: list[SimulatedChild] = []

    async def start(self, order: ChildOrder) -> Child:
        await trio.lowlevel.checkpoint()
        program = self._programs.get(order.name)
        if program is None:
            raise PortFault(f"{order.name}: {order.argv[0]} can't be run: no such program")
        child = SimulatedChild(FIRST_PID + len(self.started), order)
        self.started.append(child)
        self._nursery.start_soon(child._play, program)
        return child


async def serve_until_terminated(child: SimulatedChild) -> int:
    """The usual good program: runs until SIGTERM, then exits 0."""
    await child.wait_terminated()
    return 0
