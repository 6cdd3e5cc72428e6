"""How long a replica may run on a node that nobody hears: what its deployment says, and what the node may have."""

from lunanexa_core.deployment import Assignment, DeploymentSpec
from lunanexa_core.southbound.heartbeat import ReplicaState
from lunanexa_core.southbound.lease import cut_off_bound_ms
from lunanexa_core.state import State


def bound_of(spec: DeploymentSpec) -> int | None:
    """For a replica that knows of no other specification. ``None``: without limit."""
    return cut_off_bound_ms(spec.cut_off_keep_ms, spec.engine.stop_timeout_ms)


def bound_in_force(state: State, assignment: Assignment) -> int | None:
    """The longest that its node may go by. A replica that is reported in the newest generation is of that one alone:
    a node ends the old one first."""
    deployment, report = state.deployments.get(assignment.deployment), state.replicas.get(assignment.assignment)
    if deployment is None or report is None or report.state is ReplicaState.ABSENT:
        return assignment.bound_ms
    newest = report.generation == assignment.generation == deployment.runs
    return bound_of(deployment.spec) if newest else assignment.bound_ms
