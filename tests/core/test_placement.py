"""Where replicas run when nodes are drained, lost and found: one more than wanted at most, and the last that serves
is not taken away for as long as another may come."""

import attrs
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from lunanexa_core import events
from lunanexa_core.commands import ApplyDeployment, Command, Reconcile, ScaleDeployment, SetDirective
from lunanexa_core.deployment import Assignment
from lunanexa_core.events import AssignmentPlaced, Event, Liveness, LivenessChanged
from lunanexa_core.ids import AssignmentId, ClusterId, DeploymentId, NodeId, StartId
from lunanexa_core.kernel.absorb import absorb
from lunanexa_core.kernel.apply import apply
from lunanexa_core.kernel.decide import Answer, Done, decide
from lunanexa_core.nodes.directive import WITHIN_MS_MAX
from lunanexa_core.observed import Held, NodeReading, Observed
from lunanexa_core.outcomes import Outcome, Refusal
from lunanexa_core.placement.reconcile import is_unsettled
from lunanexa_core.placement.roster import nodes_free_for
from lunanexa_core.placement.standing import EMPTYING, late_if_frozen
from lunanexa_core.policy import Policy
from lunanexa_core.routing.routable import NotRoutable, routable_replicas, why_not_routable
from lunanexa_core.southbound.build import desired_state
from lunanexa_core.southbound.documents import Directive
from lunanexa_core.southbound.heartbeat import ReplicaReport, ReplicaState
from lunanexa_core.time import Instant
from tests.core.builders import (
    BOOT,
    DEPLOYMENT,
    NOW,
    engine,
    enrolled_events,
    heartbeat,
    report,
    reported,
    request,
    spec,
    state_of,
)
from tests.examples import examples

POLICY = Policy()
FLEET = tuple(NodeId(f"node-{number}") for number in range(1, 6))


class Placed:
    """A fleet of which every node is heard, without a task or a node around it."""

    def __init__(self, nodes: int = 5, replicas: int = 1) -> None:
        begun: list[Event] = [events.ClusterCreated(ClusterId("cl_1")), events.EpochBegan(version="0.1.0")]
        enrolled = [event for node in FLEET[:nodes] for event in enrolled_events(node)]
        self.state = state_of([*begun, *enrolled])
        self.now = NOW
        self.observed = Observed(began_mono_ms=NOW.mono_ms)
        self.sequence = self.made = self.starts = 0
        for node in FLEET[:nodes]:
            self.hear(node)
        self.ask(ApplyDeployment(spec=spec(replicas=replicas)))
        self.reconcile()

    def ask(self, command: Command) -> Answer:
        decision = decide(self.state, self.observed, POLICY, command, self.now)
        for event in decision.events:
            apply(self.state, event, epoch=1, wall_ms=self.now.wall_ms)
        absorb(self.state, self.observed, POLICY, command, decision, self.now)
        return decision.answer

    def reconcile(self) -> None:
        """To where nothing is left to do; each placement within the bound."""
        for _ in range(50):
            fresh = (AssignmentId(f"asg_{self.made:04}"),)
            self.made += 1
            decision = decide(self.state, self.observed, POLICY, Reconcile(fresh), self.now)
            for event in decision.events:
                apply(self.state, event, epoch=1, wall_ms=self.now.wall_ms)
                if isinstance(event, AssignmentPlaced) and event.assignment.assignment in fresh:
                    assert self.state.nodes[event.assignment.node].directive is Directive.ACTIVE
                    assert self.counted() <= self.wanted + 1
            if not decision.events:
                return
        raise AssertionError("reconciliation goes on and on")

    def hear(self, node: NodeId) -> None:
        """A heartbeat that tells nothing new."""
        self.observed.nodes[node] = NodeReading(
            boot=BOOT, sequence=1, arrived_mono_ms=self.now.mono_ms, heartbeat=heartbeat(1, node=node)
        )

    def be(self, assignment: Assignment, state: ReplicaState = ReplicaState.READY) -> None:
        self.starts += 1
        told = report(
            assignment=assignment.assignment,
            generation=assignment.generation,
            start=StartId(f"st_{self.starts}"),
            state=state,
        )
        self.tell(assignment.node, told)

    def tell(self, node: NodeId, told: ReplicaReport) -> None:
        apply(self.state, events.ReplicaChanged(node, told), epoch=1)

    def lose(self, node: NodeId) -> None:
        apply(self.state, LivenessChanged(node, Liveness.LOST), epoch=1)
        self.observed.nodes.pop(node, None)
        self.reconcile()

    def find(self, node: NodeId) -> None:
        apply(self.state, LivenessChanged(node, Liveness.READY), epoch=1)
        self.hear(node)
        for name in [name for name, owner in self.state.replica_node.items() if owner == node]:
            if name not in self.state.assignments:
                self.tell(node, attrs.evolve(self.state.replicas[name], state=ReplicaState.ABSENT))
        self.reconcile()

    def direct(self, node: NodeId, directive: Directive) -> Answer:
        answer = self.ask(SetDirective(node=node, directive=directive))
        self.reconcile()
        return answer

    def pass_ms(self, ms: int) -> None:
        self.now = Instant(self.now.mono_ms + ms, self.now.wall_ms + ms)
        for node in list(self.observed.nodes):
            self.hear(node)

    @property
    def wanted(self) -> int:
        return self.state.deployments[DEPLOYMENT].spec.replicas

    def counted(self) -> int:
        """Assignments that run for all that is known."""
        lost = {name for name, node in self.state.nodes.items() if node.liveness is Liveness.LOST}
        return sum(assignment.node not in lost for assignment in self.state.assignments.values())

    def where(self) -> list[NodeId]:
        return [assignment.node for _, assignment in sorted(self.state.assignments.items())]

    def on(self, node: NodeId) -> Assignment:
        return next(one for one in self.state.assignments.values() if one.node == node)

    def served_by(self) -> list[NodeId]:
        found = routable_replicas(self.state, self.observed, POLICY, DEPLOYMENT, self.now)
        return [self.state.assignments[one.assignment].node for one in found]

    def hold(self, node: NodeId) -> None:
        """A request in progress."""
        start = self.state.replicas[self.on(node).assignment].start
        held = Held(start=start, deployment=DEPLOYMENT, node=node, by_door=False, granted_mono_ms=self.now.mono_ms)
        self.observed.hold(request(1).workload, held)


ONE, TWO = FLEET[:2]
OFTEN = (Directive.DRAIN, *[Directive.ACTIVE] * 4, Directive.CORDON, Directive.RETIRE)


def serving(**more: int) -> Placed:
    placed = Placed(**more)
    for assignment in placed.state.assignments.values():
        placed.be(assignment)
    return placed


def test_a_drained_nodes_replica_serves_until_its_successor_does() -> None:
    placed = serving()
    assert placed.direct(ONE, Directive.DRAIN) == Done()
    assert placed.where() == [ONE, TWO]
    assert placed.served_by() == [ONE]
    assert desired_state(placed.state, ONE, lambda _: "k").directive is Directive.CORDON
    placed.be(placed.on(TWO))
    assert placed.served_by() == [TWO]
    placed.hold(ONE)
    placed.reconcile()
    assert placed.where() == [ONE, TWO], "what is in progress may end"
    placed.observed.release(request(1).workload)
    placed.reconcile()
    assert placed.where() == [TWO]
    document = desired_state(placed.state, ONE, lambda _: "k")
    assert (document.directive, document.assignments) == (Directive.DRAIN, ())


def test_drained_nodes_are_replaced_one_by_one() -> None:
    placed = serving(replicas=2)
    for node in (ONE, TWO):
        placed.direct(node, Directive.DRAIN)
    assert placed.where() == [ONE, TWO, FLEET[2]]
    assert placed.served_by() == [ONE, TWO]
    placed.be(placed.on(FLEET[2]))
    placed.reconcile()
    assert placed.where() == [ONE, FLEET[2], FLEET[3]]
    assert placed.served_by() == [ONE, FLEET[2]]


def test_a_drain_waits_for_no_successor_that_no_node_can_have() -> None:
    placed = serving(nodes=1)
    placed.direct(ONE, Directive.DRAIN)
    assert not placed.where()
    placed.direct(ONE, Directive.ACTIVE)
    assert placed.where() == [ONE]


def test_a_drain_ends_in_its_time_though_the_successor_never_serves() -> None:
    placed = serving()
    placed.direct(ONE, Directive.DRAIN)
    placed.be(placed.on(TWO), ReplicaState.FAILED)
    placed.hold(ONE)
    placed.pass_ms(POLICY.node_drain_ms - 1)
    placed.reconcile()
    assert placed.served_by() == [ONE]
    assert is_unsettled(placed.state)
    placed.pass_ms(1)
    placed.reconcile()
    assert placed.where() == [TWO]
    assert not is_unsettled(placed.state)


@pytest.mark.parametrize("within_ms", [0, 5_000, 2 * POLICY.node_drain_ms])
def test_a_drain_ends_in_the_time_that_its_operator_gave_it(within_ms: int) -> None:
    placed = serving()
    node = placed.state.nodes[ONE]
    for _ in range(2):
        placed.ask(SetDirective(node=ONE, directive=Directive.DRAIN, within_ms=within_ms))
        # Without a time the same drain goes on as it is.
        placed.ask(SetDirective(node=ONE, directive=Directive.DRAIN))
        assert placed.state.nodes[ONE].directive_within_ms == within_ms
        assert placed.state.nodes[ONE].generation == node.generation + 1
    placed.hold(ONE)
    placed.pass_ms(max(0, within_ms - 1))
    placed.reconcile()
    assert (ONE in placed.where()) is (within_ms > 0)
    placed.pass_ms(1)
    placed.reconcile()
    assert ONE not in placed.where()
    placed.direct(ONE, Directive.RETIRE)
    assert placed.state.nodes[ONE].directive_within_ms is None, "another directive, another time"


def test_a_drain_that_is_taken_back_drops_the_successor_that_is_not_ready() -> None:
    placed = serving()
    placed.direct(ONE, Directive.DRAIN)
    placed.direct(ONE, Directive.ACTIVE)
    assert placed.where() == placed.served_by() == [ONE]


def test_a_cordoned_node_keeps_what_it_has_and_is_granted_nothing() -> None:
    placed = serving()
    placed.direct(ONE, Directive.CORDON)
    assert placed.where() == [ONE]
    assert not placed.served_by()
    placed.ask(ScaleDeployment(deployment=DEPLOYMENT, replicas=2))
    placed.reconcile()
    assert placed.where() == [ONE, TWO]


def test_a_lost_node_is_replaced_at_once_and_given_up_when_its_successor_serves() -> None:
    placed = serving()
    placed.lose(ONE)
    assert placed.where() == [ONE, TWO]
    placed.be(placed.on(TWO))
    placed.reconcile()
    assert placed.where() == [TWO]
    placed.find(ONE)
    assert placed.where() == placed.served_by() == [TWO]


def test_a_lost_node_that_returns_before_its_successor_serves_serves_on() -> None:
    placed = serving()
    placed.lose(ONE)
    placed.find(ONE)
    assert placed.where() == placed.served_by() == [ONE]


def test_nothing_is_replaced_while_most_of_the_fleet_is_late() -> None:
    placed = serving(replicas=2)
    for node in FLEET[:3]:
        apply(placed.state, LivenessChanged(node, Liveness.SUSPECT), epoch=1)
    assert late_if_frozen(placed.state, POLICY) == FLEET[:3]
    for node in FLEET[:3]:
        placed.lose(node)
    assert placed.where() == [ONE, TWO]
    placed.find(FLEET[2])
    assert not late_if_frozen(placed.state, POLICY)
    placed.reconcile()
    assert placed.where() == [ONE, TWO, FLEET[2], FLEET[3]]


def test_an_operator_who_drains_dead_nodes_ends_the_freeze() -> None:
    placed = serving()
    for node in FLEET[:3]:
        apply(placed.state, LivenessChanged(node, Liveness.LOST), epoch=1)
    placed.direct(ONE, Directive.RETIRE)
    assert placed.where() == [FLEET[3]]
    assert placed.state.nodes[ONE].retired


def test_an_empty_node_that_retires_is_heard_no_more() -> None:
    placed = serving()
    assignment = placed.on(ONE)
    placed.direct(ONE, Directive.RETIRE)
    placed.be(placed.on(TWO))
    placed.reconcile()
    assert not placed.state.nodes[ONE].retired, "it has not said that its engine is gone"
    gone = attrs.evolve(placed.state.replicas[assignment.assignment], state=ReplicaState.ABSENT)
    placed.tell(ONE, gone)
    placed.reconcile()
    assert placed.state.nodes[ONE].retired
    for refused in (
        placed.ask(reported(heartbeat(9, node=ONE))),
        placed.direct(ONE, Directive.ACTIVE),
    ):
        assert isinstance(refused, Refusal)
        assert refused.outcome is Outcome.NODE_RETIRED


def test_replicas_run_on_when_their_number_or_another_name_changes() -> None:
    placed = serving()
    placed.ask(ScaleDeployment(deployment=DEPLOYMENT, replicas=2))
    placed.reconcile()
    assert [one.generation for one in placed.state.assignments.values()] == [1, 1]
    assert placed.served_by() == [ONE]
    placed.ask(ApplyDeployment(spec=spec(replicas=2, engine=engine(slots=3))))
    placed.reconcile()
    assert [one.generation for one in placed.state.assignments.values()] == [3, 3]


def test_scaling_down_keeps_what_serves() -> None:
    placed = Placed(replicas=2)
    placed.be(placed.on(TWO))
    placed.ask(ScaleDeployment(deployment=DEPLOYMENT, replicas=1))
    placed.reconcile()
    assert placed.where() == [TWO]


@pytest.mark.parametrize(
    ("command", "outcome"),
    [
        (SetDirective(node=NodeId("none"), directive=Directive.DRAIN), Outcome.NOT_FOUND),
        (SetDirective(node=ONE, directive=Directive.DRAIN, if_match=7), Outcome.STALE_GENERATION),
        (SetDirective(node=ONE, directive=Directive.DRAIN, reason="x" * 257), Outcome.INVALID_REQUEST),
        (SetDirective(node=ONE, directive=Directive.DRAIN, reason="a\nb"), Outcome.INVALID_REQUEST),
        (SetDirective(node=ONE, directive=Directive.DRAIN, within_ms=-1), Outcome.INVALID_REQUEST),
        (SetDirective(node=ONE, directive=Directive.RETIRE, within_ms=WITHIN_MS_MAX + 1), Outcome.INVALID_REQUEST),
        (SetDirective(node=ONE, directive=Directive.CORDON, within_ms=1), Outcome.INVALID_REQUEST),
        (ScaleDeployment(deployment=DeploymentId("none"), replicas=1), Outcome.NOT_FOUND),
        (ScaleDeployment(deployment=DEPLOYMENT, replicas=65), Outcome.INVALID_REQUEST),
        (ScaleDeployment(deployment=DEPLOYMENT, replicas=2, if_match=7), Outcome.STALE_GENERATION),
    ],
)
def test_what_can_not_be_done_is_refused(command: Command, outcome: Outcome) -> None:
    refused = Placed().ask(command)
    assert isinstance(refused, Refusal)
    assert refused.outcome is outcome


def test_a_directive_raises_the_generation_once() -> None:
    placed = Placed()
    before = placed.state.nodes[TWO].generation
    for _ in range(2):
        placed.ask(SetDirective(node=TWO, directive=Directive.CORDON, reason="fan", if_match=None))
    node = placed.state.nodes[TWO]
    assert (node.generation, node.directive_reason, node.directive_wall_ms) == (before + 1, "fan", NOW.wall_ms)


class PlacementMachine(RuleBasedStateMachine):
    """Operators, losses and replicas in any order, each followed by what reconciliation makes of it."""

    def __init__(self) -> None:
        super().__init__()
        self.placed = serving(replicas=2)

    @rule(node=st.sampled_from(FLEET), directive=st.sampled_from(OFTEN))
    def direct(self, node: NodeId, directive: Directive) -> None:
        self.placed.direct(node, directive)

    @precondition(lambda self: self.placed.served_by())
    @rule(data=st.data())
    def drain_what_serves(self, data: st.DataObject) -> None:
        """Emptying a node that serves never ends the service where another may come."""
        placed = self.placed
        served = placed.served_by()
        node = data.draw(st.sampled_from(served))
        free = nodes_free_for(placed.state, placed.observed, placed.state.deployments[DEPLOYMENT])
        placed.direct(node, Directive.DRAIN)
        if placed.wanted and (free or len(served) > 1):
            assert placed.served_by()

    @rule(node=st.sampled_from(FLEET))
    def lose(self, node: NodeId) -> None:
        if not self.placed.state.nodes[node].retired:
            self.placed.lose(node)

    @rule(node=st.sampled_from(FLEET))
    def find(self, node: NodeId) -> None:
        if self.placed.state.nodes[node].liveness is Liveness.LOST:
            self.placed.find(node)

    @rule(data=st.data(), state=st.sampled_from((ReplicaState.READY, ReplicaState.STARTING, ReplicaState.FAILED)))
    def tell(self, data: st.DataObject, state: ReplicaState) -> None:
        live = [one for one in self.placed.state.assignments.values() if one.node in self.placed.observed.nodes]
        if live:
            self.placed.be(data.draw(st.sampled_from(live)), state)
            self.placed.reconcile()

    @rule(replicas=st.integers(0, 4))
    def scale(self, replicas: int) -> None:
        self.placed.ask(ScaleDeployment(deployment=DEPLOYMENT, replicas=replicas))
        self.placed.reconcile()

    @rule(slots=st.integers(1, 3))
    def change(self, slots: int) -> None:
        self.placed.ask(ApplyDeployment(spec=spec(replicas=self.placed.wanted, engine=engine(slots=slots))))
        self.placed.reconcile()

    @rule(ms=st.sampled_from([1_000, POLICY.node_drain_ms]))
    def time_passes(self, ms: int) -> None:
        self.placed.pass_ms(ms)
        self.placed.reconcile()

    @precondition(lambda self: self.placed.state.assignments)
    @rule()
    def all_get_ready(self) -> None:
        """When everything that is placed serves, every node that is to be emptied is empty, and the places are full;
        but where most are late, of which some may come back."""
        placed = self.placed
        for _ in range(12):
            for assignment in list(placed.state.assignments.values()):
                if assignment.node in placed.observed.nodes:
                    placed.be(assignment)
            placed.reconcile()
        if late_if_frozen(placed.state, POLICY):
            return
        emptying = [name for name, node in placed.state.nodes.items() if node.directive in EMPTYING]
        assert not set(emptying) & set(placed.where())
        free = nodes_free_for(placed.state, placed.observed, placed.state.deployments[DEPLOYMENT])
        assert placed.counted() == placed.wanted or not free

    @invariant()
    def one_replica_a_node(self) -> None:
        where = self.placed.where()
        assert len(set(where)) == len(where)

    @invariant()
    def the_last_that_serves_stays(self) -> None:
        """A healthy replica on a node that drains is granted requests while nothing else is and another may come."""
        placed = self.placed
        state, served = placed.state, placed.served_by()
        if served or not placed.wanted or late_if_frozen(state, POLICY):
            return
        for assignment in state.assignments.values():
            told = state.replicas.get(assignment.assignment)
            if told is None or state.nodes[assignment.node].directive not in EMPTYING:
                continue
            due_ms = state.nodes[assignment.node].directive_wall_ms + POLICY.node_drain_ms
            reason = why_not_routable(state, placed.observed, POLICY, told, placed.now)
            assert reason is not NotRoutable.NODE_DIRECTIVE or told.state is not ReplicaState.READY or (
                due_ms <= placed.now.wall_ms
            )  # fmt: skip

    @invariant()
    def a_cordoned_node_serves_nothing(self) -> None:
        for node in self.placed.served_by():
            assert self.placed.state.nodes[node].directive is not Directive.CORDON


PlacementMachine.TestCase.settings = settings(max_examples=examples(30), stateful_step_count=25, deadline=None)
TestPlacementMachine = PlacementMachine.TestCase
