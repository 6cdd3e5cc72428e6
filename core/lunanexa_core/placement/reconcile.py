"""Deployments against assignments: what must be placed, moved to a new generation or taken away."""

from collections.abc import Sequence

import attrs

from lunanexa_core.deployment import Assignment, Deployment
from lunanexa_core.events import AssignmentPlaced, AssignmentRemoved
from lunanexa_core.ids import AssignmentId, NodeId
from lunanexa_core.placement.feasible import NotFeasible, why_not_feasible
from lunanexa_core.placement.rank import load
from lunanexa_core.state import State

Change = AssignmentPlaced | AssignmentRemoved


def plan(state: State, fresh: Sequence[AssignmentId]) -> list[Change]:
    """The next changes, at most one a deployment and assignment; called again until it is empty.

    ``fresh`` are unused identifiers; a replica for which none is left, or no node is feasible, waits.
    """
    changes: list[Change] = [
        AssignmentRemoved(assignment_id)
        for assignment_id, assignment in sorted(state.assignments.items())
        if assignment.deployment not in state.deployments
    ]
    unused = list(fresh)
    for _, deployment in sorted(state.deployments.items()):
        changes.extend(_deployment_changes(state, deployment, unused))
    return changes


def _deployment_changes(state: State, deployment: Deployment, unused: list[AssignmentId]) -> list[Change]:
    spec = deployment.spec
    own = [
        assignment for _, assignment in sorted(state.assignments.items()) if assignment.deployment == spec.deployment
    ]
    changes: list[Change] = [AssignmentRemoved(assignment.assignment) for assignment in own[spec.replicas :]]
    changes.extend(
        AssignmentPlaced(attrs.evolve(assignment, generation=deployment.generation))
        for assignment in own[: spec.replicas]
        if assignment.generation != deployment.generation
    )
    if len(own) < spec.replicas and unused:
        node = _best_node(state, deployment)
        if node is not None:
            changes.append(
                AssignmentPlaced(
                    Assignment(
                        assignment=unused.pop(0),
                        deployment=spec.deployment,
                        node=node,
                        generation=deployment.generation,
                    )
                )
            )
    return changes


def _best_node(state: State, deployment: Deployment) -> NodeId | None:
    feasible = [node for node in state.nodes.values() if not why_not_feasible(state, deployment.spec, node)]
    if not feasible:
        return None
    return min(feasible, key=lambda node: (load(state, node), node.node)).node


def refusals(state: State, deployment: Deployment) -> dict[NodeId, tuple[NotFeasible, ...]]:
    """Why each node can't take one more replica; a feasible one has no reasons."""
    return {node_id: why_not_feasible(state, deployment.spec, node) for node_id, node in sorted(state.nodes.items())}
