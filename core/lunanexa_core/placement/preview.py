"""What a specification would change, worked out on a copy: the rules that act are those that tell beforehand."""

import enum

import attrs

from lunanexa_core.deployment import Deployment, DeploymentSpec
from lunanexa_core.events import AssignmentPlaced, AssignmentRemoved, DeploymentApplied
from lunanexa_core.ids import AssignmentId, DeploymentId, NodeId
from lunanexa_core.kernel.apply import apply
from lunanexa_core.observed import Observed
from lunanexa_core.outcomes import Refusal
from lunanexa_core.placement.change import changed
from lunanexa_core.placement.exclusive import TakenPlace
from lunanexa_core.placement.feasible import NotFeasible
from lunanexa_core.placement.reconcile import Change, plan
from lunanexa_core.placement.roster import awaited_places, refusals
from lunanexa_core.placement.standing import view_of
from lunanexa_core.policy import Policy
from lunanexa_core.state import State
from lunanexa_core.time import Instant


class Kind(enum.Enum):
    """What the specification is to the one in force."""

    CREATE = "create"
    CHANGE = "change"
    NONE = "none"


class Action(enum.Enum):
    """What is done about one replica."""

    PLACE = "place"
    RESTART = "restart"
    """The same place, with another engine."""
    REMOVE = "remove"


@attrs.frozen(kw_only=True)
class PlannedChange:
    """``assignment`` is ``None`` for a replica that has no name yet."""

    action: Action
    node: NodeId
    assignment: AssignmentId | None


@attrs.frozen(kw_only=True)
class PlannedNode:
    """Why a node gets no replica that it does not have; without ``reasons`` it could."""

    node: NodeId
    reasons: tuple[NotFeasible, ...]


@attrs.frozen(kw_only=True)
class Preview:
    """``generation`` is the next one, or the present one where nothing changes. ``unplaced`` replicas find no node, or
    wait for ``awaited_places`` to be free."""

    deployment: DeploymentId
    kind: Kind
    generation: int
    changes: tuple[PlannedChange, ...]
    unplaced: int
    awaited_places: tuple[TakenPlace, ...]
    nodes: tuple[PlannedNode, ...]


def preview(state: State, observed: Observed, policy: Policy, spec: DeploymentSpec, now: Instant) -> Preview | Refusal:
    """What applying ``spec`` would do at once, as far as no replica has to get ready first."""
    deployment = changed(state, spec)
    if isinstance(deployment, Refusal):
        return deployment
    current, trial = state.deployments.get(spec.deployment), _fleet_of(state)
    if deployment != current:
        apply(trial, DeploymentApplied(deployment), epoch=state.epoch)
    against = refusals(trial, observed, deployment)
    nodes = tuple(PlannedNode(node=node, reasons=found) for node, found in against.items())
    changes: list[PlannedChange] = []
    number = 0
    while found := plan(trial, observed, policy, (AssignmentId(f"new-{number}"),), now):
        number += 1
        for change in found:
            told = _planned(state, trial, deployment, change)
            apply(trial, change, epoch=state.epoch)
            changes += [] if told is None else [told]
    own = [one for _, one in sorted(trial.assignments.items()) if one.deployment == spec.deployment]
    return Preview(
        deployment=spec.deployment,
        kind=Kind.CREATE if current is None else Kind.NONE if deployment == current else Kind.CHANGE,
        generation=deployment.generation,
        changes=tuple(changes),
        unplaced=max(0, spec.replicas - len(own)),
        awaited_places=awaited_places(view_of(trial, observed, policy, now), deployment, own),
        nodes=nodes,
    )


def _fleet_of(state: State) -> State:
    """What placement reads of it, to be changed at will."""
    return State(
        cluster=state.cluster,
        epoch=state.epoch,
        nodes=dict(state.nodes),
        deployments=dict(state.deployments),
        deployment_of_alias=dict(state.deployment_of_alias),
        assignments=dict(state.assignments),
        replicas=dict(state.replicas),
        replica_node=dict(state.replica_node),
        leaving=dict(state.leaving),
    )


def _planned(state: State, trial: State, deployment: Deployment, change: Change) -> PlannedChange | None:
    match change:
        case AssignmentPlaced(assignment=assignment) if assignment.deployment == deployment.spec.deployment:
            known = assignment.assignment in state.assignments
            return PlannedChange(
                action=Action.RESTART if known else Action.PLACE,
                node=assignment.node,
                assignment=assignment.assignment if known else None,
            )
        case AssignmentRemoved(assignment=name) if trial.assignments[name].deployment == deployment.spec.deployment:
            return PlannedChange(action=Action.REMOVE, node=trial.assignments[name].node, assignment=name)
        case _:
            return None
