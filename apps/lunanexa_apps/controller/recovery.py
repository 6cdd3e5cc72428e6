"""Recovery as operators see it, and the task that keeps how far the store was seen."""

from collections import Counter
from typing import Final

import trio

from lunanexa_apps.codec import unstructure
from lunanexa_apps.controller.authority import find_operator
from lunanexa_apps.controller.high_water import WRITE_MS
from lunanexa_apps.controller.kernel import Kernel
from lunanexa_apps.controller.unreadable import read_document
from lunanexa_core.canonical import JsonValue
from lunanexa_core.commands import Rebase
from lunanexa_core.contract.recovery import PlanDocument, RecoveryDocument, RecoveryEnded, RecoveryGo
from lunanexa_core.keys import Role
from lunanexa_core.outcomes import Outcome, Refusal
from lunanexa_core.recovery_plan import recovery_plan
from lunanexa_ports.errors import PortUnavailable
from lunanexa_ports.recovery_plane import RecoveryPlane

STEPS_MAX: Final = 500
"""Steps of a plan that are told one by one."""


class KernelRecovery(RecoveryPlane):
    """Operators' face of a kernel that recovers."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel

    async def recovery(self, token: str | None) -> JsonValue | Refusal:
        operator = find_operator(self._kernel, token, Role.OPERATOR, Role.AUDITOR)
        return operator if isinstance(operator, Refusal) else unstructure(self._document())

    async def rebase(self, token: str | None, document: JsonValue) -> JsonValue | Refusal:
        operator = find_operator(self._kernel, token, Role.OPERATOR)
        if isinstance(operator, Refusal):
            return operator
        go = read_document(RecoveryGo, document)
        if isinstance(go, Refusal):
            return go
        try:
            answer = await self._kernel.ask(Rebase(go.plan), operator.key)
        except PortUnavailable:
            return Refusal(outcome=Outcome.STORE_UNAVAILABLE, message="The controller is ending.")
        if isinstance(answer, Refusal):
            return answer
        state = self._kernel.state
        return unstructure(RecoveryEnded(rebased=state.rebased, epoch=state.epoch, sequence=self._kernel.head.sequence))

    def _document(self) -> RecoveryDocument:
        kernel, state = self._kernel, self._kernel.state
        return RecoveryDocument(
            recovering=state.recovery is not None,
            reasons=state.recovery or (),
            plan=None if state.recovery is None else self._plan(),
            sequence=kernel.head.sequence,
            epoch=kernel.epoch,
            rebased=state.rebased,
        )

    def _plan(self) -> PlanDocument:
        kernel = self._kernel
        plan = recovery_plan(kernel.state, kernel.observed, kernel.policy, kernel.now())
        counts = Counter(step.kind.value for step in plan.steps)
        return PlanDocument(steps=plan.steps[:STEPS_MAX], counts=dict(counts), waiting=plan.waiting, digest=plan.digest)


async def run_high_water(kernel: Kernel, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
    """Keeps how far the store was seen, every few seconds and at the end."""
    task_status.started()
    try:
        while True:
            await trio.sleep(WRITE_MS / 1_000)
            _keep(kernel)
    finally:
        _keep(kernel)


def _keep(kernel: Kernel) -> None:
    if kernel.leading:  # Who follows looks for itself whether the store still holds what it saw.
        kernel.water.saw(kernel.head)
    kernel.water.keep()
