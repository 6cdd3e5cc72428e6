"""One process that we start, kill and start again."""

import os
import signal
from pathlib import Path
from typing import Final

import attrs
import trio

from lunanexa_ports.children import Child, ChildOrder, Children
from lunanexa_simulation.real.promises import ProcessCrashed

KILL_S: Final = 10.0
LOOK_S: Final = 0.05
TAIL_BYTES: Final = 16_384


class Managed:
    """A program with its log. ``nursery`` watches its processes: one that ends untold is a crash."""

    def __init__(self, order: ChildOrder, log: Path, children: Children, nursery: trio.Nursery) -> None:
        self.name = order.name
        self.log = log
        self._order = attrs.evolve(order, output=str(log))
        self._children = children
        self._nursery = nursery
        self._child: Child | None = None
        self._told_to_end = False

    @property
    def pid(self) -> int | None:
        """The process that runs; ``None``: none does."""
        return None if self._child is None else self._child.pid

    async def start(self) -> None:
        """Raises ``PortFault`` where the program can't be run."""
        assert self._child is None, f"{self.name} runs"
        self._told_to_end = False
        self._child = await self._children.start(self._order)
        self._nursery.start_soon(self._watch, self._child)

    async def kill(self) -> None:
        """SIGKILL; returns when it is gone."""
        child = self._running()
        child.kill()
        with trio.fail_after(KILL_S):
            await child.wait()
        self._child = None

    async def stop(self, within_s: float) -> int | None:
        """SIGTERM; the exit status, or nothing where it has not ended in time."""
        child, status = self._running(), None
        child.terminate()
        with trio.move_on_after(within_s):
            status = await child.wait()
            self._child = None
        return status

    async def crash(self) -> ProcessCrashed | None:
        """Whether the process has ended untold."""
        if self._child is not None and not self._told_to_end:
            with trio.move_on_after(LOOK_S):
                return ProcessCrashed(self.name, await self._child.wait())
        return None

    def signal(self, number: signal.Signals) -> None:
        """To the process that runs, and no other of its group."""
        assert self._child is not None, f"{self.name} does not run"
        os.kill(self._child.pid, number)

    def _running(self) -> Child:
        assert self._child is not None, f"{self.name} does not run"
        self._told_to_end = True
        return self._child

    async def _watch(self, child: Child) -> None:
        status = await child.wait()
        if child is self._child and not self._told_to_end:
            raise ProcessCrashed(self.name, status)


def tail_of(file: Path, lines: int) -> list[str]:
    """The last lines of a file, nothing where there is none."""
    try:
        with file.open("rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - TAIL_BYTES))
            return log.read().decode(errors="replace").splitlines()[-lines:]
    except FileNotFoundError:
        return []
