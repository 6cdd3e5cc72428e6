"""Deployments and directives against assignments: what must be placed, moved to a new generation or taken away."""

from collections.abc import Iterator, Sequence

import attrs

from lunanexa_core.deployment import Assignment, Deployment
from lunanexa_core.events import AssignmentPlaced, AssignmentRemoved, Liveness, NodeRetired, ReplicasGone
from lunanexa_core.ids import AssignmentId, NodeId
from lunanexa_core.observed import Observed
from lunanexa_core.placement.bound import bound_in_force, bound_of
from lunanexa_core.placement.exclusive import run_out
from lunanexa_core.placement.rank import loads
from lunanexa_core.placement.roster import Roster, declining, nodes_free_for, roster
from lunanexa_core.placement.standing import EMPTYING, View, by_deployment, view_of
from lunanexa_core.policy import Policy
from lunanexa_core.southbound.documents import Directive
from lunanexa_core.southbound.lease import longer
from lunanexa_core.state import State
from lunanexa_core.time import Instant

Change = AssignmentPlaced | AssignmentRemoved | NodeRetired | ReplicasGone


def plan(state: State, observed: Observed, policy: Policy, fresh: Sequence[AssignmentId], now: Instant) -> list[Change]:
    """The next changes, at most one placement a deployment; called again until it is empty.

    ``fresh`` are unused identifiers; a replica for which none is left, or no node is feasible, waits.
    """
    view = view_of(state, observed, policy, now)
    changes: list[Change] = [
        AssignmentRemoved(assignment_id)
        for assignment_id, assignment in sorted(state.assignments.items())
        if assignment.deployment not in state.deployments
    ]
    unused, own = list(fresh), by_deployment(state)
    for name, deployment in sorted(state.deployments.items()):
        found = roster(view, deployment, own.get(name, ()))
        changes.extend(_deployment_changes(view, deployment, found, unused))
    changes.extend(run_out(view))
    changes.extend(NodeRetired(node) for node in _retired(state))
    return changes


def is_unsettled(state: State) -> bool:
    """Whether something is to leave a node, or is lost: then time alone, or who is heard, may bring changes."""
    nodes = (state.nodes[assignment.node] for assignment in state.assignments.values())
    ends = any(leaving.bound_ms is not None for leaving in state.leaving.values())
    return ends or any(node.directive in EMPTYING or node.liveness is Liveness.LOST for node in nodes)


def _deployment_changes(
    view: View, deployment: Deployment, found: Roster, unused: list[AssignmentId]
) -> Iterator[Change]:
    for assignment in found.surplus:
        yield AssignmentRemoved(assignment.assignment)
    for assignment in found.leaves:
        if assignment.assignment not in found.covers and (
            view.is_due(assignment) or not view.in_flight(assignment.assignment)
        ):
            yield AssignmentRemoved(assignment.assignment)
    elsewhere = declining(view, deployment, found)
    for assignment in elsewhere:
        yield AssignmentRemoved(assignment.assignment)
    for assignment in (*found.keeps, *found.returns):
        if assignment in elsewhere:
            continue
        if assignment.generation != deployment.runs and not found.crowded:
            bound_ms = longer(bound_in_force(view.state, assignment), bound_of(deployment.spec))
            yield AssignmentPlaced(attrs.evolve(assignment, generation=deployment.runs, bound_ms=bound_ms))
    if found.places and unused:
        node = _best_node(view, deployment)
        if node is not None:
            yield AssignmentPlaced(
                Assignment(
                    assignment=unused.pop(0),
                    deployment=deployment.spec.deployment,
                    node=node,
                    generation=deployment.runs,
                    bound_ms=bound_of(deployment.spec),
                )
            )


def _best_node(view: View, deployment: Deployment) -> NodeId | None:
    free, load = nodes_free_for(view.state, view.observed, deployment), loads(view.state)
    return min(free, key=lambda node: (load[node], node), default=None)


def _retired(state: State) -> list[NodeId]:
    """Those that were to retire and run nothing, as far as they tell; of lost ones nobody waits to hear it."""
    nodes = (node for _, node in sorted(state.nodes.items()))
    retiring = [node for node in nodes if node.directive is Directive.RETIRE and not node.retired]
    if not retiring:
        return []
    assigned = {assignment.node for assignment in state.assignments.values()}
    reported = set(state.replica_node.values())
    return [
        node.node
        for node in retiring
        if node.node not in assigned and (node.node not in reported or node.liveness is Liveness.LOST)
    ]
