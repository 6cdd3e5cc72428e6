"""What the kernel knows and never journals: arrivals, readings, sessions, queue places and grants.

``apply`` never reads it. After a restart it begins empty, and nothing is served on what it does not know.
"""

from collections.abc import Set

import attrs

from lunanexa_core.admission.queue import ServiceQueue
from lunanexa_core.ids import AssignmentId, BootId, DeploymentId, NodeId, SessionId, StartId, WorkloadId
from lunanexa_core.nodes.budget import RowBudget
from lunanexa_core.policy import Policy
from lunanexa_core.routing.decision import DECISIONS_KEPT, RoutingDecision
from lunanexa_core.southbound.heartbeat import Heartbeat, ReplicaReport
from lunanexa_core.time import Instant


@attrs.frozen(kw_only=True)
class NodeReading:
    """The newest heartbeat of a node, and when it arrived by our own clock."""

    boot: BootId
    sequence: int
    arrived_mono_ms: int
    heartbeat: Heartbeat
    leased: bool | None = None
    """Whether the node has a lease, by its own word, and by ours can have one; ``None``: it does not say."""
    withheld: bool = False
    """Whether it told of changes for which the node had no budget: what the journal has of its replicas is not so."""
    moved_ms: int = 0
    """By how much the arrival was moved because we stood still. The lease of the node was not."""

    def may_be_leased(self, now_mono_ms: int, lease_ms: int) -> bool:
        """Whether the lease that our answer to this heartbeat grants can still run: the node counts from before it
        arrived."""
        return now_mono_ms - self.arrived_mono_ms + self.moved_ms < lease_ms


@attrs.frozen(kw_only=True)
class Declined:
    """A node does not run what a deployment is in this generation, by the word of its owner."""

    node: NodeId
    boot: BootId
    deployment: DeploymentId
    runs: int
    refusal: str
    beside: frozenset[tuple[AssignmentId, int]] = frozenset()
    """Assignments of the node with their generations, all of which it has to have for this to count."""


@attrs.frozen(kw_only=True)
class Held:
    """A grant in use: a slot of one replica."""

    start: StartId
    deployment: DeploymentId
    node: NodeId
    by_door: bool
    """Whether the way there passes the node's data listener."""
    granted_mono_ms: int


@attrs.define(kw_only=True)
class Observed:
    """Everything volatile. ``began_mono_ms`` is when this leader began: nothing is lost before a lease from then.
    What the fleet has no more is dropped with a tick, so that no table outgrows it."""

    began_mono_ms: int
    stood_still_until_mono_ms: int = 0
    """When the kernel last went on after it had done nothing for a while."""
    draining: bool = False
    admissions: int = 0
    sessions: dict[SessionId, int] = attrs.Factory(dict)
    """Until when (monotonic ms) each gateway's session lives."""
    left: frozenset[WorkloadId] = frozenset()
    """Open when this leader began. Their gateway let go of them with the leader before, even if its session lives."""
    nodes: dict[NodeId, NodeReading] = attrs.Factory(dict)
    budgets: dict[NodeId, RowBudget] = attrs.Factory(dict)
    """Of nodes that do not have all of it."""
    shown: dict[NodeId, tuple[int, int]] = attrs.Factory(dict)
    """The order of the newest document that each node has handed in, where the store had given none of that order."""
    claiming: set[NodeId] = attrs.Factory(set)
    """Nodes that say to follow a document which the store can't have given them, and have shown none: they are not
    heard."""
    renewed: set[tuple[int, NodeId, DeploymentId]] = attrs.Factory(set)
    """Deployments that were given a generation above what a node says to have of them, after which go. That says it
    all: who says it again lies."""
    declined: frozenset[Declined] = frozenset()
    """Replaced when it changes."""
    replicas: dict[AssignmentId, ReplicaReport] = attrs.Factory(dict)
    """The newest whole report of each replica, with readings and log lines."""
    read_mono_ms: dict[AssignmentId, int] = attrs.Factory(dict)
    """When the readings in it were taken, by our own clock."""
    admitted_mono_ms: dict[WorkloadId, int] = attrs.Factory(dict)
    queues: dict[DeploymentId, ServiceQueue] = attrs.Factory(dict)
    service_ms: dict[DeploymentId, int] = attrs.Factory(dict)
    """Smoothed time from grant to receipt, a service."""
    held: dict[WorkloadId, Held] = attrs.Factory(dict)
    slots_held: dict[StartId, int] = attrs.Factory(dict)
    released_mono_ms: dict[StartId, int] = attrs.Factory(dict)
    """When a slot of each start was last given back; older ones than a reading may be are dropped."""

    decisions: dict[WorkloadId, RoutingDecision] = attrs.Factory(dict)
    """The last decision on each workload, oldest first, :data:`DECISIONS_KEPT` at most."""

    def decided(self, decision: RoutingDecision) -> None:
        """Keeps a decision, and the newest others."""
        self.decisions.pop(decision.workload, None)
        self.decisions[decision.workload] = decision
        if len(self.decisions) > DECISIONS_KEPT:
            del self.decisions[next(iter(self.decisions))]

    def queue(self, deployment: DeploymentId) -> ServiceQueue:
        """The queue of a service, made at its first use."""
        return self.queues.setdefault(deployment, ServiceQueue())

    def hold(self, workload: WorkloadId, held: Held) -> None:
        """Takes one slot. A workload holds one at a time."""
        assert workload not in self.held, workload
        self.held[workload] = held
        self.slots_held[held.start] = self.slots_held.get(held.start, 0) + 1

    def release(self, workload: WorkloadId) -> Held | None:
        """Gives back the slot that a workload holds, if it holds one."""
        held = self.held.pop(workload, None)
        if held is not None:
            left = self.slots_held[held.start] - 1
            assert left >= 0, held.start
            if left:
                self.slots_held[held.start] = left
            else:
                del self.slots_held[held.start]
        return held

    def stood_still(self, by_ms: int, now_mono_ms: int) -> None:
        """Time in which the kernel itself did nothing (suspend, stall) counts against no gateway and no node."""
        self.began_mono_ms += by_ms
        self.stood_still_until_mono_ms = now_mono_ms
        self.sessions = {session: until + by_ms for session, until in self.sessions.items()}
        self.nodes = {
            node: attrs.evolve(
                reading, arrived_mono_ms=reading.arrived_mono_ms + by_ms, moved_ms=reading.moved_ms + by_ms
            )
            for node, reading in self.nodes.items()
        }

    def spare_sessions(self, until_mono_ms: int) -> None:
        """No session lapses before then: for as long as nobody could renew one, its silence said nothing."""
        for session, until in self.sessions.items():
            self.sessions[session] = max(until, until_mono_ms)

    def drop_outdated(self, policy: Policy, now: Instant) -> None:
        """Drops the sessions that have lapsed, the releases that are older than any reading counts, and the budgets
        that are whole again."""
        self.sessions = {session: until for session, until in self.sessions.items() if until > now.mono_ms}
        self.budgets = {
            node: budget for node, budget in self.budgets.items() if not budget.at(policy, now).is_full(policy)
        }
        past_ms = now.mono_ms - policy.reading_fresh_ms
        self.released_mono_ms = {start: at for start, at in self.released_mono_ms.items() if at >= past_ms}

    def keep_only(self, *, assignments: Set[AssignmentId], deployments: Set[DeploymentId]) -> None:
        """Drops what is known of every other assignment and deployment; a queue once nobody waits in it."""
        for by_assignment in (self.replicas, self.read_mono_ms):
            for assignment in by_assignment.keys() - assignments:
                del by_assignment[assignment]
        self.renewed = {one for one in self.renewed if one[2] in deployments}
        for deployment in self.service_ms.keys() - deployments:
            del self.service_ms[deployment]
        for deployment in self.queues.keys() - deployments:
            if not self.queues[deployment]:
                del self.queues[deployment]

    def forget(self, workload: WorkloadId) -> None:
        """Releases everything that a workload held here: its slot, its place and its times."""
        self.release(workload)
        for queue in self.queues.values():
            if queue.remove(workload):
                break
        self.admitted_mono_ms.pop(workload, None)
