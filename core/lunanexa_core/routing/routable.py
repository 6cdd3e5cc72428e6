"""The one predicate of service: may this replica be granted a request now? Listing, readiness and
routing all ask it, so that what is listed is what can be called."""

import enum
from collections.abc import Iterator

from lunanexa_core.ids import DeploymentId, NodeId
from lunanexa_core.observed import Observed
from lunanexa_core.placement.roster import covering
from lunanexa_core.policy import Policy
from lunanexa_core.routing.reach import reach
from lunanexa_core.southbound.documents import Directive
from lunanexa_core.southbound.heartbeat import IdentityGrade, ReplicaReport, ReplicaState
from lunanexa_core.state import State
from lunanexa_core.time import Instant


class NotRoutable(enum.Enum):
    """Why a replica is not granted requests, in the order of the checks."""

    NOT_ASSIGNED = "no longer assigned"
    OLD_GENERATION = "of an older generation"
    NODE_UNHEARD = "its node was not heard since this controller began"
    NODE_LOST = "its node is lost"
    NODE_UNLEASED = "its node has no lease yet"
    NODE_WITHHELD = "its node reports more changes than may be written down"
    NODE_REVOKED = "its node is not trusted any more"
    NODE_DIRECTIVE = "its node takes no new work"
    NOT_READY = "not ready"
    IDENTITY = "its identity is not proven"
    NO_ADDRESS = "it has no address"
    UNREACHABLE = "its node has no data listener, and it is not on this machine"


def node_hears(observed: Observed, policy: Policy, node: NodeId, now: Instant) -> NotRoutable | None:
    """Whether a node was heard within its lease, by our own clock."""
    reading = observed.nodes.get(node)
    if reading is None:
        return NotRoutable.NODE_UNHEARD
    if now.mono_ms - reading.arrived_mono_ms >= policy.node_lease_ms:
        return NotRoutable.NODE_LOST
    return None


def why_not_routable(
    state: State, observed: Observed, policy: Policy, report: ReplicaReport, now: Instant
) -> NotRoutable | None:
    """``None`` when ``report``'s replica may be granted a request now."""
    assignment = state.assignments.get(report.assignment)
    if assignment is None or assignment.deployment not in state.deployments:
        return NotRoutable.NOT_ASSIGNED
    if report.generation != assignment.generation:
        return NotRoutable.OLD_GENERATION
    if state.nodes[assignment.node].revoked:
        return NotRoutable.NODE_REVOKED
    unheard = node_hears(observed, policy, assignment.node, now)
    if unheard is not None:
        return unheard
    reading = observed.nodes[assignment.node]
    if reading.leased is False or (reading.leased and not reading.may_be_leased(now.mono_ms, policy.node_lease_ms)):
        return NotRoutable.NODE_UNLEASED
    if reading.withheld:
        return NotRoutable.NODE_WITHHELD
    directive = state.nodes[assignment.node].directive
    if directive is not Directive.ACTIVE and assignment.assignment not in covering(
        state, observed, policy, assignment.deployment, now
    ):
        return NotRoutable.NODE_DIRECTIVE
    if report.state is not ReplicaState.READY:
        return NotRoutable.NOT_READY
    declared_is_enough = state.deployments[assignment.deployment].spec.allow_declared
    if not report.identity.routable and not (declared_is_enough and report.identity is IdentityGrade.DECLARED):
        return NotRoutable.IDENTITY
    if report.host is None or report.port is None:
        return NotRoutable.NO_ADDRESS
    return NotRoutable.UNREACHABLE if reach(state, report) is None else None


def replicas_of(state: State, deployment: DeploymentId) -> Iterator[ReplicaReport]:
    """The replicas of a deployment as last reported, in stable order."""
    for assignment_id in sorted(state.assignments):
        if state.assignments[assignment_id].deployment == deployment and assignment_id in state.replicas:
            yield state.replicas[assignment_id]


def routable_replicas(
    state: State, observed: Observed, policy: Policy, deployment: DeploymentId, now: Instant
) -> list[ReplicaReport]:
    """All replicas of a deployment that may be granted a request now. A deployment is servable when
    there is one (nothing is loaded on demand yet)."""
    return [
        report
        for report in replicas_of(state, deployment)
        if why_not_routable(state, observed, policy, report, now) is None
    ]
