"""The clock of a simulated run. Time passes when no task can go on, and only then.

Trio asks its clock how long to wait for the next deadline exactly when every task is blocked: that is the quiescent
instant. The checkers look, and then the clock stands at the deadline. It is not Trio's autojump, under which a deadlock
spins for ever: without a deadline nothing can happen any more, and the run ends.
"""

import math
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

import trio
import trio.testing

from lunanexa_simulation.tasks import open_shields, task_tree
from lunanexa_simulation.verdicts import LivenessBroken, StoppedHere

if TYPE_CHECKING:
    from lunanexa_simulation.run import Run

_AT_ONCE: Final = 0.0


class VirtualTime(trio.abc.Clock):
    """Of one run. It goes on when something broke and the run is torn down: cleanup that is shielded and timed needs
    time also then."""

    def __init__(self, run: "Run", horizon_ms: int) -> None:
        self._world = trio.CancelScope()
        self._broken: Exception | None = None
        self._over = False
        self._run = run
        self._horizon_ms = horizon_ms
        self._now_s = 0.0

    async def carry(self, main: Callable[["Run"], Awaitable[None]]) -> None:
        """Runs ``main`` to its end, or until something is broken. Raises an ``ExceptionGroup`` of all that broke."""
        broken: list[Exception] = []
        try:
            with self._world:
                await main(self._run)
        except Exception as error:  # noqa: BLE001  # which of all errors decides is for the verdict to say
            broken.append(error)
        self._over = True
        if self._broken is not None:
            broken.append(self._broken)
        if broken:
            raise ExceptionGroup("the run", broken)

    def start_clock(self) -> None:
        """It starts at 0, where it is."""

    def current_time(self) -> float:
        return self._now_s

    def deadline_to_sleep_time(self, deadline: float) -> float:
        """A quiescent instant."""
        if self._over:
            return _AT_ONCE  # What is left is Trio's own end.
        self._look()
        # A check may have woken somebody, for whom it is still this instant.
        if not trio.lowlevel.current_statistics().tasks_runnable:
            self._pass_to(deadline)
        return _AT_ONCE

    def _look(self) -> None:
        if self._broken is not None:
            return
        self._run.instants += 1
        try:
            # A thread ends when it likes: time that passes beside it is another time in each run.
            assert trio.testing.active_thread_count() == 0, "a simulated run has no threads"
            for check in tuple(self._run.checks):
                check()
        except Exception as broken:  # noqa: BLE001  # a checker's own bug ends the run too, and not by ending time
            self._end(broken)

    def _pass_to(self, due_s: float) -> None:
        due_ms, until_ms = due_s * 1_000, self._run.manner.until_ms
        if self._broken is None and until_ms is not None and due_ms > until_ms:
            self._run.manner.at_stop()
            self._end(StoppedHere(f"stopped at {until_ms} virtual ms"))
        elif self._broken is None and due_ms > self._horizon_ms:
            what = f"horizon: not over after {self._horizon_ms} virtual ms"
            if math.isinf(due_s):
                what = "deadlock: no task can go on and no timer is set"
            self._end(LivenessBroken(f"{what}\n{task_tree()}"))
        elif math.isinf(due_s):
            # Something waits shielded for what will never come: the run is broken already, so it may be torn down.
            open_shields(trio.lowlevel.current_root_task())
        else:
            self._now_s = max(self._now_s, due_s)

    def _end(self, broken: Exception) -> None:
        self._broken = broken
        self._world.cancel("the simulated run is broken")
