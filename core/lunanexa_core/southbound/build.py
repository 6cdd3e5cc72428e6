"""The desired state of one node, from the state of the fleet. The same state gives the same document."""

from collections.abc import Callable

from lunanexa_core.deployment import Assignment
from lunanexa_core.ids import NodeId
from lunanexa_core.placement.standing import EMPTYING
from lunanexa_core.southbound.controllers import controller_urls
from lunanexa_core.southbound.documents import DesiredAssignment, DesiredState, Directive
from lunanexa_core.state import State


def desired_state(state: State, node_id: NodeId, engine_key: Callable[[Assignment], str]) -> DesiredState:
    """What ``node_id`` shall make true now. ``engine_key`` derives the key of an assignment's engine."""
    node = state.nodes[node_id]
    assert state.cluster is not None
    mine = [one for _, one in sorted(entry for entry in state.assignments.items() if entry[1].node == node_id)]
    # A node that is told to drain stops everything: it is told when nothing is left that must wait for a successor.
    directive = Directive.CORDON if mine and node.directive in EMPTYING else node.directive
    return DesiredState(
        cluster=state.cluster,
        node=node_id,
        epoch=state.epoch,
        generation=node.generation,
        directive=directive,
        assignments=tuple(
            DesiredAssignment(
                assignment=assignment.assignment,
                generation=assignment.generation,
                deployment=assignment.deployment,
                engine=state.deployments[assignment.deployment].spec.engine,
                engine_key=_key(state, assignment, engine_key),
                cut_off_keep_ms=state.deployments[assignment.deployment].spec.cut_off_keep_ms,
            )
            for assignment in mine
            if assignment.deployment in state.deployments
        ),
        trust=state.trust,
        revoked=tuple(sorted(state.revoked)),
        controllers=controller_urls(state),
    )


def _key(state: State, assignment: Assignment, engine_key: Callable[[Assignment], str]) -> str | None:
    """An adopted engine has its own key, or none; ours is for engines that we start."""
    adopted = state.deployments[assignment.deployment].spec.engine.url is not None
    return None if adopted else engine_key(assignment)
