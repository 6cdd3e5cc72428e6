"""What a replica's place is worth: it stays, its node is being emptied, or its node is lost.

If many nodes are late at once the fault is rather the controller's or the network's: then no node counts as lost here,
until an operator says that it shall be emptied.
"""

import enum
from collections.abc import Mapping
from typing import Final

import attrs

from lunanexa_core.deployment import Assignment
from lunanexa_core.events import Liveness
from lunanexa_core.ids import AssignmentId, NodeId
from lunanexa_core.nodes.liveness import is_heard, silent_ms
from lunanexa_core.observed import Observed
from lunanexa_core.placement.bound import bound_in_force
from lunanexa_core.policy import Policy
from lunanexa_core.routing.reach import reach
from lunanexa_core.southbound.documents import Directive
from lunanexa_core.southbound.heartbeat import IdentityGrade, ReplicaState
from lunanexa_core.southbound.lease import run_out_ms
from lunanexa_core.state import State
from lunanexa_core.time import Instant

EMPTYING: Final = frozenset((Directive.DRAIN, Directive.RETIRE))
"""What ends with a node that runs nothing."""


class Standing(enum.Enum):
    """What becomes of a replica where it is."""

    STAYS = "stays"
    LEAVES = "leaves"
    """Its node is to be emptied."""
    LOST = "lost"
    """Nobody hears of it; it may come back."""
    GONE = "gone"
    """Its node is lost, and to be emptied, or none of ours any more; or it is exclusive, and by now its engine is gone
    for certain."""


@attrs.frozen(kw_only=True)
class View:
    """The facts that placement goes by, and the instant."""

    state: State
    observed: Observed
    policy: Policy
    now: Instant
    frozen: bool

    def standing(self, assignment: Assignment) -> Standing:
        node = self.state.nodes[assignment.node]
        if node.revoked:
            return Standing.GONE
        emptying = node.directive in EMPTYING
        if node.liveness is not Liveness.LOST:
            return Standing.LEAVES if emptying else Standing.STAYS
        if emptying:
            return Standing.GONE
        if self.frozen:
            return Standing.STAYS
        exclusive = self.state.deployments[assignment.deployment].spec.exclusive
        if exclusive and self.runs_out_in_ms(assignment.node, bound_in_force(self.state, assignment)) == 0:
            return Standing.GONE
        return Standing.LOST

    def runs_out_in_ms(self, node: NodeId, bound_ms: int | None) -> int | None:
        """How much longer ``node`` must stay silent until what runs there for ``bound_ms`` at most after its lease is
        gone; 0: it is. ``None``: no silence tells."""
        needed_ms = run_out_ms(self.policy.node_lease_ms, bound_ms)
        if needed_ms is None:
            return None
        return max(0, needed_ms - silent_ms(self.observed, node, self.now))

    def is_ready(self, assignment: Assignment) -> bool:
        """Whether it could be granted requests, whatever is wanted of its node."""
        report = self.state.replicas.get(assignment.assignment)
        deployment = self.state.deployments[assignment.deployment]
        if report is None or report.state is not ReplicaState.READY or reach(self.state, report) is None:
            return False
        if not report.generation == assignment.generation == deployment.runs:
            return False
        declared = deployment.spec.allow_declared and report.identity is IdentityGrade.DECLARED
        return (report.identity.routable or declared) and is_heard(
            self.observed, self.policy, assignment.node, self.now
        )

    def is_due(self, assignment: Assignment) -> bool:
        """Whether its node has been emptying for as long as it may take."""
        node = self.state.nodes[assignment.node]
        within_ms = self.policy.node_drain_ms if node.directive_within_ms is None else node.directive_within_ms
        return self.now.wall_ms - node.directive_wall_ms >= within_ms

    def in_flight(self, assignment: AssignmentId) -> int:
        """Requests that its present start holds."""
        report = self.state.replicas.get(assignment)
        return 0 if report is None else self.observed.slots_held.get(report.start, 0)


def view_of(state: State, observed: Observed, policy: Policy, now: Instant) -> View:
    """The facts as they are now."""
    frozen = bool(late_if_frozen(state, policy))
    return View(state=state, observed=observed, policy=policy, now=now, frozen=frozen)


def late_if_frozen(state: State, policy: Policy) -> tuple[NodeId, ...]:
    """The late nodes, where they are so many that nothing is re-placed; else none. Those to be emptied don't count:
    an operator knows of them."""
    fleet = [node for node in state.nodes.values() if node.public_key is not None and node.directive not in EMPTYING]
    late = sorted(node.node for node in fleet if node.liveness in (Liveness.SUSPECT, Liveness.LOST))
    if len(late) < policy.freeze_nodes_min or len(late) * 1_000 <= len(fleet) * policy.freeze_per_mille:
        return ()
    return tuple(late)


def by_deployment(state: State) -> Mapping[str, list[Assignment]]:
    """Assignments of each deployment, in stable order."""
    found: dict[str, list[Assignment]] = {}
    for _, assignment in sorted(state.assignments.items()):
        found.setdefault(assignment.deployment, []).append(assignment)
    return found
