"""What a recovery would lead to, before an operator says go."""

import enum
import hashlib

import attrs

from lunanexa_core.canonical import canonical_json
from lunanexa_core.events import Liveness
from lunanexa_core.ids import AssignmentId, DeploymentId, NodeId
from lunanexa_core.nodes.liveness import judge
from lunanexa_core.observed import Observed
from lunanexa_core.policy import Policy
from lunanexa_core.southbound.heartbeat import ReplicaState
from lunanexa_core.state import State
from lunanexa_core.time import Instant


class StepKind(enum.Enum):
    """What recovery does about one thing."""

    START_MISSING = "start_missing"
    """A replica that the store wants and no node has, or a deployment without so many as it wants."""
    STOP_ORPHAN = "stop_orphan"
    """A replica that a node has and the store does not know, or wants elsewhere."""
    EXPIRE_LEASE = "expire_lease"
    """A request without a receipt, whose gateway is gone: it is settled as failed."""
    MARK_UNREACHABLE = "mark_unreachable"
    """A node that was not heard of for as long as its lease."""


@attrs.frozen(kw_only=True)
class RecoveryStep:
    """``target`` is an assignment, a deployment, a workload or a node, as ``kind`` says."""

    kind: StepKind
    target: str
    node: NodeId | None = None


@attrs.frozen(kw_only=True)
class RecoveryPlan:
    """What the go would lead to, as of now. ``digest`` names it. ``waiting`` are nodes that may yet be heard."""

    steps: tuple[RecoveryStep, ...]
    waiting: tuple[NodeId, ...]
    digest: str


def recovery_plan(state: State, observed: Observed, policy: Policy, now: Instant) -> RecoveryPlan:
    """What the rules would do from here on, by what is known now."""
    steps = (
        *_starts(state, observed),
        *_orphans(state, observed),
        *(RecoveryStep(kind=StepKind.EXPIRE_LEASE, target=workload) for workload in sorted(state.open)),
        *_unreachable(state, observed, policy, now),
    )
    lines = [[step.kind.value, step.target, step.node] for step in steps]
    waiting = tuple(
        name
        for name, node in sorted(state.nodes.items())
        if node.public_key is not None
        and name not in observed.nodes
        and judge(observed, policy, name, now) is not Liveness.LOST
    )
    return RecoveryPlan(
        steps=steps, waiting=waiting, digest=hashlib.sha256(canonical_json([lines, list(waiting)])).hexdigest()
    )


def _starts(state: State, observed: Observed) -> list[RecoveryStep]:
    found = []
    placed: dict[DeploymentId, int] = {}
    for name, assignment in sorted(state.assignments.items()):
        placed[assignment.deployment] = placed.get(assignment.deployment, 0) + 1
        if assignment.node in observed.nodes and name not in _reported(observed, assignment.node):
            found.append(RecoveryStep(kind=StepKind.START_MISSING, target=name, node=assignment.node))
    for deployment_name, deployment in sorted(state.deployments.items()):
        if placed.get(deployment_name, 0) < deployment.spec.replicas:
            found.append(RecoveryStep(kind=StepKind.START_MISSING, target=deployment_name))
    return found


def _orphans(state: State, observed: Observed) -> list[RecoveryStep]:
    found = []
    for node in sorted(observed.nodes):
        for name in sorted(_reported(observed, node)):
            assignment = state.assignments.get(name)
            if assignment is None or assignment.node != node:
                found.append(RecoveryStep(kind=StepKind.STOP_ORPHAN, target=name, node=node))
    return found


def _reported(observed: Observed, node: NodeId) -> set[AssignmentId]:
    reports = observed.nodes[node].heartbeat.replicas
    return {report.assignment for report in reports if report.state is not ReplicaState.ABSENT}


def _unreachable(state: State, observed: Observed, policy: Policy, now: Instant) -> list[RecoveryStep]:
    return [
        RecoveryStep(kind=StepKind.MARK_UNREACHABLE, target=name, node=name)
        for name, node in sorted(state.nodes.items())
        if node.public_key is not None and judge(observed, policy, name, now) is Liveness.LOST
    ]
