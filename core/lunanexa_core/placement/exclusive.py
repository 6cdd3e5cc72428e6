"""The places of an exclusive deployment: which are taken for all that is known, and for how long at most.

A place is free again when the node says that nothing runs there, or when it was silent for so long that its engine,
which the node stops when it is cut off, must be gone. Elsewhere a successor may serve before its predecessor ends; here
never.
"""

from collections.abc import Sequence

import attrs

from lunanexa_core.deployment import Assignment, Deployment
from lunanexa_core.events import ReplicasGone
from lunanexa_core.ids import AssignmentId, NodeId
from lunanexa_core.placement.bound import bound_in_force
from lunanexa_core.placement.standing import Standing, View


@attrs.frozen(kw_only=True)
class TakenPlace:
    """A replica that runs, or may. ``for_ms``: how long its place stays taken though its node stays silent; ``None``:
    for as long as it does."""

    assignment: AssignmentId
    node: NodeId
    for_ms: int | None


def taken_places(view: View, deployment: Deployment, own: Sequence[Assignment]) -> tuple[TakenPlace, ...]:
    """The places of ``deployment`` that are not free, those of ``own``, which are its assignments, first."""
    taken = []
    for one in own:
        left_ms = view.runs_out_in_ms(one.node, bound_in_force(view.state, one))
        # What is not taken from its node, as while many are late, starts again there when the node returns.
        if left_ms != 0 or view.standing(one) is not Standing.GONE:
            taken.append(TakenPlace(assignment=one.assignment, node=one.node, for_ms=left_ms or None))
    for name, leaving in sorted(view.state.leaving.items()):
        left_ms = view.runs_out_in_ms(leaving.node, leaving.bound_ms)
        if leaving.deployment == deployment.spec.deployment and left_ms != 0:
            taken.append(TakenPlace(assignment=name, node=leaving.node, for_ms=left_ms))
    return tuple(taken)


def run_out(view: View) -> list[ReplicasGone]:
    """What was taken from silent nodes and is gone by now, whatever its node could say."""
    gone: dict[NodeId, list[AssignmentId]] = {}
    for name, leaving in sorted(view.state.leaving.items()):
        left_ms = view.runs_out_in_ms(leaving.node, leaving.bound_ms)
        if left_ms is not None and left_ms <= 0:
            gone.setdefault(leaving.node, []).append(name)
    return [ReplicasGone(node=node, assignments=tuple(names)) for node, names in sorted(gone.items())]
