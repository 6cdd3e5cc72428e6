"""Admission, waited for within the request's time.

The kernel answers an admission when it is durable, and can't be interrupted: where the store fails in the middle of
a write, that takes until the store is back. A request does not wait for so long; what may have been admitted for it
is settled as soon as the kernel hears again.
"""

from collections.abc import Callable
from typing import Final, TypeAlias

import attrs
import trio

from lunanexa_apps.controller.gateway.progress import Progress
from lunanexa_apps.controller.gateway.settling import NO_KERNEL
from lunanexa_core.outcomes import Outcome, Refusal
from lunanexa_core.workload import WorkloadRequest
from lunanexa_ports.dispatch import Admitted, Dispatch, Repeated
from lunanexa_ports.errors import PortUnavailable

PATIENCE_S: Final = 10.0
"""A store that takes longer is down: its callers are to come again."""
DEADLINE: Final = Refusal(
    outcome=Outcome.DEADLINE_EXCEEDED, message="The request's deadline passed before it was answered."
)


Admission: TypeAlias = Admitted | Repeated | Refusal


@attrs.define(eq=False)
class _Question:
    request: WorkloadRequest
    progress: Progress
    answer: Admission | None = None
    done: trio.Event = attrs.Factory(trio.Event)
    abandoned: Outcome | None = None
    """How the request ended when nobody waited for the answer any more."""


class Admitter:
    """Asks the kernel for requests of one gateway; a question has a task of its own. There are never more of them than
    requests in progress and such as were in progress when the store failed. What was admitted when nobody waited for
    it any more goes to ``settle_late``."""

    def __init__(self, dispatch: Dispatch, settle_late: Callable[[Progress, Outcome], None]) -> None:
        self._dispatch = dispatch
        self._settle_late = settle_late
        self._nursery: trio.Nursery | None = None

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serves until it is cancelled."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            task_status.started()
            try:
                await trio.sleep_forever()
            finally:
                self._nursery = None

    async def admit(self, request: WorkloadRequest, progress: Progress, deadline_s: float) -> Admission:
        """The kernel's answer, or a refusal when there was none by ``deadline_s`` (of the loop's clock) or within
        :data:`PATIENCE_S`."""
        if self._nursery is None:
            return NO_KERNEL
        question, left = _Question(request, progress), True
        self._nursery.start_soon(self._ask, question)
        try:
            with trio.move_on_at(min(deadline_s, trio.current_time() + PATIENCE_S)):
                await question.done.wait()
            left = False
        finally:
            if left:
                self._abandon(question, Outcome.CANCELLED_BY_CALLER)
        if question.answer is not None:
            return question.answer
        refusal = DEADLINE if trio.current_time() >= deadline_s else NO_KERNEL
        self._abandon(question, refusal.outcome)
        return refusal

    def _abandon(self, question: _Question, outcome: Outcome) -> None:
        question.abandoned = outcome
        self._settle(question)

    async def _ask(self, question: _Question) -> None:
        try:
            question.answer = await self._dispatch.admit(question.request)
        except PortUnavailable:
            question.answer = NO_KERNEL
        finally:
            question.done.set()
        self._settle(question)

    def _settle(self, question: _Question) -> None:
        """Called when it is abandoned and when it is answered: the later of both finds what is to be done."""
        if question.abandoned is not None and isinstance(question.answer, Admitted):
            self._settle_late(question.progress, question.abandoned)
