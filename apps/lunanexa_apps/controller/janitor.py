"""The janitor: tells the kernel that time passed, and brings assignments in line with deployments."""

from collections.abc import Set

import structlog
import trio

from lunanexa_apps.controller.kernel import Kernel
from lunanexa_core.commands import Reconcile, Tick
from lunanexa_core.ids import AssignmentId
from lunanexa_core.lifecycle.backoff import backoff_ms
from lunanexa_core.observed import Declined
from lunanexa_core.outcomes import Refusal
from lunanexa_core.placement.reconcile import is_unsettled, plan
from lunanexa_ports.ids import IdSource

TICK_S = 0.25
_ACTOR = "janitor"
_FRESH_MAX = 16
_LOOK_AGAIN_S = 1.0
_DECLINED_S = 5.0
_PAUSE_S_A_NODE = 0.000_1
_log = structlog.get_logger()


async def run_janitor(kernel: Kernel, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
    """Asks for a tick four times a second: expiry is a predicate, and here it becomes events."""
    task_status.started()
    while True:
        await kernel.wait_leading()
        await kernel.ask(Tick(), _ACTOR)
        await trio.sleep(TICK_S)


async def run_reconciliation(
    kernel: Kernel, ids: IdSource, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    """Places, moves and removes replicas whenever state changed, until nothing is left to do. It looks at
    state, not at signals: what a crash cut short is found again at the start."""
    task_status.started()
    # Each request changes state, so that identifiers are made anew only after some may have been used.
    fresh, refusals = _fresh(ids), 0
    # The journal's hash, and what nodes don't run, when there was nothing to do: what only the ledger tells of changes
    # no place.
    settled: tuple[str, Set[Declined]] | None = None
    while True:
        await kernel.wait_leading()
        state, known = kernel.state, (kernel.head.journal, kernel.observed.declined)
        look = state.recovery is None and (known != settled or is_unsettled(state))
        if look and plan(state, kernel.observed, kernel.policy, fresh, kernel.now()):
            answer = await kernel.ask(Reconcile(fresh), "reconciliation")
            fresh = _fresh(ids)
            refusals = refusals + 1 if isinstance(answer, Refusal) else 0
            if isinstance(answer, Refusal):
                _log.error("reconciliation_refused", outcome=answer.outcome.value, refusals=refusals)
                # Nothing changed: asked again at once, it would be refused again.
                await trio.sleep(backoff_ms(refusals, ids.below(1_000)) / 1_000)
        else:
            settled = None if state.recovery is not None else known
            # What leaves a node does so in time, also when nothing else happens. And what a node does not run is heard
            # of without a change of state.
            with trio.move_on_after(_LOOK_AGAIN_S if is_unsettled(state) else _DECLINED_S):
                await kernel.wait_changed()
            # A look passes over the whole fleet: where hundreds of nodes come at once, one is for many changes.
            await trio.sleep(_PAUSE_S_A_NODE * len(kernel.state.nodes))


def _fresh(ids: IdSource) -> tuple[AssignmentId, ...]:
    return tuple(AssignmentId(ids.new("asg")) for _ in range(_FRESH_MAX))
