"""Keeps one child process running: restarted with a growing pause when it ends, stopped when told."""

from collections.abc import Callable
from typing import Final

import attrs
import trio

from lunanexa_ports.children import Child, ChildOrder, Children
from lunanexa_ports.errors import PortFault

FIRST_PAUSE_MS: Final = 250
LONGEST_PAUSE_MS: Final = 10_000
STEADY_MS: Final = 60_000
"""A child that ran for this long is thought well again: its next crash pauses as the first did."""


def pause_ms(crashes: int) -> int:
    """The pause before the next start, after so many ends in a row: doubling, capped."""
    assert crashes >= 1, crashes
    return min(LONGEST_PAUSE_MS, FIRST_PAUSE_MS << min(crashes - 1, 16))


@attrs.frozen(kw_only=True)
class ChildEnded:
    """A child ended without being told to. ``status`` is negative for a signal, ``None`` when it could not
    even be started again. ``in_a_row`` counts the ends since it last ran steadily."""

    name: str
    status: int | None
    in_a_row: int
    pause_ms: int

    @property
    def title(self) -> str:
        """What people call it."""
        return "node agent" if self.name == "node" else self.name

    @property
    def reason(self) -> str:
        if self.status is None:
            return "could not be started"
        return f"was ended by signal {-self.status}" if self.status < 0 else f"ended with status {self.status}"


class Supervised:
    """One child and its replacements."""

    def __init__(self, order: ChildOrder, children: Children, on_end: Callable[[ChildEnded], None]) -> None:
        self._order = order
        self._children = children
        self._on_end = on_end
        self._child: Child | None = None
        self.started = False
        """Whether there was a first process; if not, there is nothing to stop."""
        self._stop = trio.Event()
        self._gone = trio.Event()

    @property
    def pid(self) -> int | None:
        """The process that runs now; ``None`` between two."""
        return None if self._child is None else self._child.pid

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Returns once the child was told to stop and is gone. Raises ``PortFault`` when the first start is
        impossible; later ones are tried again."""
        try:
            child: Child | None = await self._children.start(self._order)
            self.started = True
            task_status.started()
            crashes = 0
            while True:
                began = trio.current_time()
                status = await self._watch(child)
                if self._stop.is_set():
                    return
                crashes = 1 if trio.current_time() - began >= STEADY_MS / 1000 else crashes + 1
                if await self._rest(status, crashes):
                    return
                child = await self._start_again()
        finally:
            self._gone.set()

    async def stop(self, *, patience_ms: int) -> None:
        """Asks the child to end, waits, kills it when ``patience_ms`` are over; returns when it is gone.
        A cancelled stop leaves it asked to end."""
        self.terminate()
        with trio.move_on_after(patience_ms / 1000):
            await self._gone.wait()
            return
        self.kill()
        await self._gone.wait()

    def terminate(self) -> None:
        """Asks the child to end, and starts no other; returns at once."""
        self._stop.set()
        if self._child is not None:
            self._child.terminate()

    def hurry(self) -> None:
        """Asks the child to end at once, whether or not it was asked to end before; starts no other."""
        self.terminate()
        if self._child is not None:
            self._child.interrupt()

    def kill(self) -> None:
        """Ends the child at once, and starts no other."""
        self._stop.set()
        if self._child is not None:
            self._child.kill()

    async def wait_gone(self) -> None:
        """Returns when there is no child and won't be one."""
        await self._gone.wait()

    async def _watch(self, child: Child | None) -> int | None:
        if child is None:
            return None
        self._child = child
        if self._stop.is_set():
            child.terminate()  # told to stop while it was being started
        status = await child.wait()
        self._child = None
        return status

    async def _rest(self, status: int | None, crashes: int) -> bool:
        """Pauses; True when told to stop meanwhile."""
        pause = pause_ms(crashes)
        self._on_end(ChildEnded(name=self._order.name, status=status, in_a_row=crashes, pause_ms=pause))
        with trio.move_on_after(pause / 1000):
            await self._stop.wait()
        return self._stop.is_set()

    async def _start_again(self) -> Child | None:
        try:
            return await self._children.start(self._order)
        except PortFault:
            return None
