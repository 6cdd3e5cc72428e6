"""Exclusive deployments: however nodes are cut off, drained and found, and whoever leads, there are never more engines
than wanted; and a place is filled again once it is free."""

from collections.abc import Callable

import attrs
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from lunanexa_core import events
from lunanexa_core.commands import (
    ApplyDeployment,
    Command,
    Reconcile,
    RemoveDeployment,
    RevokeNode,
    SetDirective,
)
from lunanexa_core.commands import Tick as TimePassed
from lunanexa_core.deployment import Assignment, DeploymentSpec
from lunanexa_core.events import Event
from lunanexa_core.ids import AssignmentId, ClusterId, NodeId, StartId
from lunanexa_core.kernel.absorb import absorb
from lunanexa_core.kernel.apply import apply
from lunanexa_core.kernel.decide import Answer, decide
from lunanexa_core.observed import Observed
from lunanexa_core.outcomes import Refusal
from lunanexa_core.placement.bound import bound_in_force
from lunanexa_core.placement.preview import preview
from lunanexa_core.placement.reconcile import is_unsettled
from lunanexa_core.placement.roster import awaited_places
from lunanexa_core.placement.specification import KEEP_MS_MAX
from lunanexa_core.placement.standing import view_of
from lunanexa_core.policy import Policy
from lunanexa_core.southbound.build import desired_state
from lunanexa_core.southbound.documents import DesiredAssignment, Directive
from lunanexa_core.southbound.heartbeat import Heartbeat, ReplicaReport, ReplicaState, UnstartedReplica
from lunanexa_core.southbound.lease import NodeLease, cut_off_bound_ms, run_out_ms
from lunanexa_core.state import State
from lunanexa_core.time import Instant
from tests.core.builders import BOOT, DEPLOYMENT, NOW, engine, enrolled_events, report, reported, spec, state_of
from tests.examples import examples

POLICY = Policy(freeze_nodes_min=99)
FROZEN = Policy(freeze_nodes_min=1, freeze_per_mille=0)
"""One node that is late is many."""
LEASE_MS = POLICY.node_lease_ms
FLEET = tuple(NodeId(f"node-{number}") for number in range(1, 4))
KEEP_MS = 20_000
EXCLUSIVE = spec(exclusive=True, cut_off_keep_ms=KEEP_MS)
BOUND_MS = cut_off_bound_ms(KEEP_MS, engine().stop_timeout_ms)


@attrs.define
class Engine:
    """What lives on a node."""

    wanted: DesiredAssignment
    start: StartId


class Machine:
    """A node by its rules: the document that it follows, its lease, and what truly runs."""

    def __init__(self, name: NodeId) -> None:
        self.name = name
        self.cut = False
        self.lease = NodeLease()
        self.order = (0, 0)
        self.wanted: tuple[DesiredAssignment, ...] = ()
        self.engines: dict[AssignmentId, Engine] = {}
        self.sequence = 0
        self.on_its_way: tuple[Heartbeat, int] | None = None

    def end_cut_off(self, now_ms: int) -> None:
        """Each as late as it may: what is cut off lives until the whole of its bound is over."""
        until_ms = self.lease.until_mono_ms or 0
        for name, one in list(self.engines.items()):
            bound_ms = cut_off_bound_ms(one.wanted.cut_off_keep_ms, one.wanted.engine.stop_timeout_ms)
            if bound_ms is not None and now_ms >= until_ms + bound_ms:
                del self.engines[name]

    def beat(self) -> Heartbeat:
        self.sequence += 1
        told = tuple(_report(one) for _, one in sorted(self.engines.items()))
        missing = tuple(
            UnstartedReplica(one.assignment, ReplicaState.AWAITING_LEASE)
            for one in self.wanted
            if one.assignment not in self.engines
        )
        return Heartbeat(
            node=self.name,
            boot=BOOT,
            sequence=self.sequence,
            epoch=self.order[0],
            generation=self.order[1],
            agent_version="0.1.0",
            replicas=told,
            unstarted=missing,
        )


def _report(one: Engine) -> ReplicaReport:
    return report(assignment=one.wanted.assignment, generation=one.wanted.generation, start=one.start)


class Fleet:
    """A controller by its rules, and three nodes by theirs."""

    def __init__(self, wanted: DeploymentSpec = EXCLUSIVE, policy: Policy = POLICY) -> None:
        self.policy = policy
        begun: list[Event] = [events.ClusterCreated(ClusterId("cl_1")), events.EpochBegan(version="0.1.0")]
        self.state: State = state_of([*begun, *(event for node in FLEET for event in enrolled_events(node))])
        self.now = NOW
        self.observed = Observed(began_mono_ms=NOW.mono_ms)
        self.machines = {node: Machine(node) for node in FLEET}
        self.made = self.starts = 0
        self.ask(ApplyDeployment(spec=wanted))
        for machine in self.machines.values():
            self.talk(machine)

    def ask(self, command: Command) -> Answer:
        decision = decide(self.state, self.observed, self.policy, command, self.now)
        for event in decision.events:
            apply(self.state, event, epoch=1, wall_ms=self.now.wall_ms)
        absorb(self.state, self.observed, self.policy, command, decision, self.now)
        return decision.answer

    def reconcile(self) -> None:
        self.ask(TimePassed())
        for _ in range(50):
            self.made += 1
            decision = decide(
                self.state, self.observed, self.policy, Reconcile((AssignmentId(f"asg_{self.made:04}"),)), self.now
            )
            for event in decision.events:
                apply(self.state, event, epoch=1, wall_ms=self.now.wall_ms)
            if not decision.events:
                return
        raise AssertionError("reconciliation goes on and on")

    # --- what passes between controller and node, each step by itself ---

    def send(self, machine: Machine) -> None:
        machine.on_its_way = (machine.beat(), self.now.mono_ms)

    def arrive(self, machine: Machine, *, answered: bool = True) -> None:
        assert machine.on_its_way is not None
        (heartbeat, sent_ms), machine.on_its_way = machine.on_its_way, None
        refused = isinstance(self.ask(reported(heartbeat)), Refusal)
        if answered and not refused:
            machine.lease = machine.lease.answered(
                sent_mono_ms=sent_ms,
                now_mono_ms=self.now.mono_ms,
                lease_ms=LEASE_MS,
                newest=(self.state.epoch, self.state.nodes[machine.name].generation),
            )

    def fetch(self, machine: Machine) -> None:
        document = desired_state(self.state, machine.name, lambda _: "k")
        machine.order, machine.wanted = document.order, document.assignments
        if document.directive in (Directive.DRAIN, Directive.RETIRE):
            machine.wanted = ()

    def act(self, machine: Machine) -> None:
        wanted = {one.assignment: one for one in machine.wanted}
        old = [
            name
            for name, one in machine.engines.items()
            if name not in wanted or wanted[name].generation > one.wanted.generation
        ]
        for name in old:
            del machine.engines[name]
        if old:
            return  # To end something takes its time.
        if machine.lease.may_start(self.now.mono_ms, machine.order):
            for name, assignment in wanted.items():
                if name not in machine.engines:
                    self.starts += 1
                    machine.engines[name] = Engine(assignment, StartId(f"st_{self.starts}"))

    def talk(self, machine: Machine) -> None:
        """Everything passes at once."""
        for _ in range(3):
            self.send(machine)
            self.arrive(machine)
            self.reconcile()
            self.fetch(machine)
            self.act(machine)

    def pass_ms(self, ms: int) -> None:
        self.now = Instant(self.now.mono_ms + ms, self.now.wall_ms + ms)
        for machine in self.machines.values():
            machine.end_cut_off(self.now.mono_ms)

    def live(self, seconds: int) -> None:
        """Time passes in steps in which everybody who can talks."""
        for _ in range(seconds):
            self.pass_ms(1_000)
            for machine in self.machines.values():
                if not machine.cut:
                    self.talk(machine)
            self.reconcile()

    def lead_anew(self) -> None:
        self.observed = Observed(began_mono_ms=self.now.mono_ms)

    def direct(self, node: NodeId, directive: Directive) -> None:
        self.ask(SetDirective(node=node, directive=directive))
        self.reconcile()

    # --- what is ---

    def living(self) -> list[tuple[NodeId, StartId]]:
        return [(name, one.start) for name, machine in self.machines.items() for one in machine.engines.values()]

    def where(self) -> list[NodeId]:
        return [node for node, _ in self.living()]

    def awaited(self) -> list[tuple[NodeId, int | None]]:
        view = view_of(self.state, self.observed, self.policy, self.now)
        own = [one for one in self.state.assignments.values() if one.deployment == DEPLOYMENT]
        places = awaited_places(view, self.state.deployments[DEPLOYMENT], own)
        return [(place.node, place.for_ms) for place in places]


ONE, TWO, THREE = FLEET


def test_a_lost_nodes_place_is_filled_when_its_engine_must_be_gone_and_not_before() -> None:
    fleet = Fleet()
    assert fleet.where() == [ONE]
    fleet.machines[ONE].cut = True
    silence_ms = run_out_ms(LEASE_MS, BOUND_MS)
    assert silence_ms is not None
    fleet.live(silence_ms // 1_000)
    assert fleet.state.nodes[ONE].liveness is events.Liveness.LOST
    assert fleet.awaited() == [(ONE, silence_ms % 1_000)]
    assert is_unsettled(fleet.state)
    assert TWO not in fleet.where()
    fleet.live(2)
    assert fleet.where() == [TWO]
    fleet.machines[ONE].cut = False
    fleet.live(3)
    assert fleet.where() == [TWO], "who returns starts nothing that is another's by now"


def test_what_returns_in_time_goes_on() -> None:
    fleet = Fleet()
    before = fleet.living()
    fleet.machines[ONE].cut = True
    fleet.live((LEASE_MS + KEEP_MS) // 1_000)
    fleet.machines[ONE].cut = False
    fleet.live(3)
    assert fleet.living() == before


def test_who_returns_before_its_successor_has_started_starts_nothing() -> None:
    fleet = Fleet()
    silence_ms = run_out_ms(LEASE_MS, BOUND_MS)
    assert silence_ms is not None
    fleet.pass_ms(silence_ms)
    fleet.send(fleet.machines[TWO])
    fleet.arrive(fleet.machines[TWO])
    fleet.reconcile()
    fleet.fetch(fleet.machines[TWO])
    fleet.talk(fleet.machines[ONE])
    fleet.act(fleet.machines[TWO])
    assert fleet.where() == [TWO]


def test_a_document_that_comes_late_is_waited_for() -> None:
    """The node says that it has nothing, by the document before: what it was given meanwhile it may yet start."""
    fleet = Fleet(attrs.evolve(EXCLUSIVE, replicas=0))
    fleet.ask(ApplyDeployment(spec=EXCLUSIVE))
    fleet.reconcile()
    node = fleet.machines[next(iter(fleet.state.assignments.values())).node]
    on_its_way = desired_state(fleet.state, node.name, lambda _: "k")
    fleet.direct(node.name, Directive.DRAIN)
    fleet.send(node)
    fleet.arrive(node)
    assert fleet.state.leaving
    node.order, node.wanted = on_its_way.order, on_its_way.assignments
    fleet.send(node)
    fleet.arrive(node)
    assert fleet.state.leaving, "it has yet to start it"
    fleet.talk(node)
    assert not fleet.state.leaving


def test_what_is_being_prepared_is_there() -> None:
    """Its node follows the newest document, and has not ended yet what it had begun."""
    fleet = Fleet()
    fleet.direct(ONE, Directive.DRAIN)
    node = fleet.machines[ONE]
    (name,) = node.engines
    node.engines.clear()
    fleet.fetch(node)
    prepared = attrs.evolve(node.beat(), unstarted=(UnstartedReplica(name, ReplicaState.STARTING),))
    fleet.ask(reported(prepared))
    assert fleet.state.leaving
    fleet.ask(reported(node.beat()))
    assert not fleet.state.leaving


def test_a_new_leader_counts_from_its_own_beginning() -> None:
    fleet = Fleet()
    fleet.machines[ONE].cut = True
    silence_ms = run_out_ms(LEASE_MS, BOUND_MS)
    assert silence_ms is not None
    fleet.live(silence_ms // 1_000 - 1)
    fleet.lead_anew()
    fleet.live(silence_ms // 1_000 - 1)
    assert fleet.where() == []
    fleet.live(3)
    assert fleet.where() == [TWO]


def test_a_drain_moves_it_through_nothing() -> None:
    fleet = Fleet()
    fleet.direct(ONE, Directive.DRAIN)
    assert not fleet.state.assignments
    assert [node for node, _ in fleet.awaited()] == [ONE]
    fleet.live(2)
    assert fleet.where() == [TWO]
    assert not fleet.state.leaving


def test_what_a_node_never_told_of_is_waited_for_too() -> None:
    """It was told to run it, and is cut off before its next word."""
    fleet = Fleet(attrs.evolve(EXCLUSIVE, replicas=0))
    fleet.ask(ApplyDeployment(spec=EXCLUSIVE))
    fleet.reconcile()
    node = fleet.machines[next(iter(fleet.state.assignments.values())).node]
    node.cut = True
    fleet.fetch(node)
    fleet.act(node)
    assert fleet.where() == [node.name]
    fleet.direct(node.name, Directive.DRAIN)
    fleet.live(5)
    assert fleet.where() == [node.name]
    fleet.live(60)
    assert len(fleet.where()) == 1
    assert node.name not in fleet.where()


def test_a_shorter_keep_counts_when_the_node_has_it() -> None:
    fleet = Fleet()
    fleet.machines[ONE].cut = True
    shorter = attrs.evolve(EXCLUSIVE, cut_off_keep_ms=0)
    fleet.ask(ApplyDeployment(spec=shorter))
    fleet.reconcile()
    held = next(iter(fleet.state.assignments.values()))
    assert bound_in_force(fleet.state, held) == BOUND_MS
    fleet.machines[ONE].cut = False
    fleet.live(2)
    assert bound_in_force(fleet.state, held) == cut_off_bound_ms(0, engine().stop_timeout_ms)
    assert fleet.where() == [ONE]


@pytest.mark.thorough
def test_without_limit_only_the_node_or_its_retirement_frees_the_place() -> None:
    """It became exclusive while its node, which keeps it, could not be told."""
    fleet = Fleet(spec())
    fleet.machines[ONE].cut = True
    fleet.live(1)
    fleet.ask(ApplyDeployment(spec=EXCLUSIVE))
    fleet.live(600)
    assert fleet.awaited() == [(ONE, None)]
    assert fleet.where() == [ONE]
    fleet.direct(ONE, Directive.RETIRE)
    fleet.machines[ONE].engines.clear()
    fleet.live(2)
    assert fleet.where() == [TWO]


def test_a_revoked_nodes_place_is_free_when_its_engine_must_be_gone() -> None:
    fleet = Fleet()
    fleet.machines[ONE].cut = True
    fleet.ask(RevokeNode(node=ONE))
    fleet.live(5)
    assert fleet.where() == [ONE]
    fleet.live(60)
    assert fleet.where() == [TWO]


def test_what_a_revoked_node_keeps_without_limit_is_given_up_with_it() -> None:
    fleet = Fleet(spec())
    fleet.machines[ONE].cut = True
    fleet.ask(ApplyDeployment(spec=EXCLUSIVE))
    fleet.ask(RevokeNode(node=ONE))
    fleet.live(2)
    assert sorted(fleet.where()) == [ONE, TWO]


def test_what_is_left_to_a_silent_node_holds_its_place() -> None:
    """While many are late nothing is taken from them, and what ran out there starts again when one returns."""
    fleet = Fleet(attrs.evolve(EXCLUSIVE, replicas=2), FROZEN)
    fleet.live(3)
    assert fleet.where() == [ONE, TWO]
    fleet.machines[ONE].cut = True
    fleet.live(60)
    assert fleet.where() == [TWO]
    fleet.machines[TWO].cut = True
    fleet.direct(TWO, Directive.DRAIN)
    fleet.live(1)
    fleet.machines[ONE].cut = False
    fleet.live(1)
    assert fleet.where() == [ONE, TWO]
    assert [node for node, _ in fleet.awaited()] == [TWO]
    fleet.live(60)
    assert fleet.where() == [ONE, THREE]


def test_others_are_replaced_at_once() -> None:
    fleet = Fleet(spec(cut_off_keep_ms=KEEP_MS))
    fleet.machines[ONE].cut = True
    fleet.live(LEASE_MS // 1_000 + 1)
    assert sorted(fleet.where()) == [ONE, TWO]
    fleet.live(60)
    assert fleet.where() == [TWO], "and what is cut off ends in its time"


def test_what_stays_is_replaced_only_when_what_is_too_much_has_ended() -> None:
    """Else its next generation would start beside what has yet to end."""
    fleet = Fleet(attrs.evolve(EXCLUSIVE, replicas=2))
    fleet.live(3)
    before = fleet.living()
    assert len(before) == 2
    fleet.ask(ApplyDeployment(spec=attrs.evolve(EXCLUSIVE, engine=engine(slots=9))))
    fleet.reconcile()
    (stays,) = fleet.state.assignments.values()
    (other,) = set(FLEET[:2]) - {stays.node}
    assert [node for node, _ in fleet.awaited()] == [other]
    for _ in range(5):
        fleet.talk(fleet.machines[stays.node])
    assert fleet.living() == before, "the other has not heard of it"
    fleet.talk(fleet.machines[other])
    fleet.talk(fleet.machines[stays.node])
    (after,) = fleet.living()
    assert after[0] == stays.node
    assert after not in before
    assert fleet.awaited() == []


def test_a_plan_tells_what_a_place_waits_for() -> None:
    fleet = Fleet()
    fleet.direct(ONE, Directive.DRAIN)
    planned = preview(fleet.state, fleet.observed, POLICY, EXCLUSIVE, fleet.now)
    assert not isinstance(planned, Refusal)
    assert planned.unplaced == 1
    assert [place.node for place in planned.awaited_places] == [ONE]


def test_a_removed_deployment_is_waited_for_by_the_next_of_its_name() -> None:
    fleet = Fleet()
    fleet.machines[ONE].cut = True
    fleet.ask(RemoveDeployment(DEPLOYMENT))
    fleet.reconcile()
    fleet.ask(ApplyDeployment(spec=EXCLUSIVE))
    fleet.live(5)
    assert fleet.where() == [ONE]
    fleet.live(60)
    assert fleet.where() == [TWO]


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"exclusive": True}, "cut_off_keep_ms"),
        ({"cut_off_keep_ms": -1}, "cut_off_keep_ms"),
        ({"cut_off_keep_ms": KEEP_MS_MAX + 1}, "cut_off_keep_ms"),
        ({"cut_off_keep_ms": 0, "engine": engine(binary=None, url="http://127.0.0.1:1")}, "cut_off_keep_ms"),
        ({"exclusive": True, "engine": engine(binary=None, url="http://127.0.0.1:1")}, "exclusive"),
    ],
)
def test_what_can_not_be_kept_is_refused_with_its_field(changes: dict[str, object], param: str) -> None:
    fleet = Fleet()
    refused = fleet.ask(ApplyDeployment(spec=spec(**changes)))
    assert isinstance(refused, Refusal)
    assert refused.param == param
    assert param in refused.message


def test_only_what_nodes_are_told_restarts_engines() -> None:
    fleet = Fleet()
    before = fleet.living()
    fleet.ask(ApplyDeployment(spec=attrs.evolve(EXCLUSIVE, exclusive=False)))
    fleet.live(2)
    assert fleet.living() == before
    fleet.ask(ApplyDeployment(spec=attrs.evolve(EXCLUSIVE, cut_off_keep_ms=1)))
    fleet.live(2)
    assert fleet.living() != before
    assert fleet.where() == [ONE]


NODES = st.sampled_from(FLEET)


class ExclusiveFleet(RuleBasedStateMachine):
    """Anything in any order, each heartbeat, answer and document by itself."""

    fleet: Fleet
    allowed = 1
    orders: frozenset[tuple[AssignmentId, int]] = frozenset()

    @initialize(policy=st.sampled_from([POLICY, FROZEN]))
    def begins(self, policy: Policy) -> None:
        self.fleet = Fleet(policy=policy)

    def _note(self) -> None:
        deployment = self.fleet.state.deployments.get(DEPLOYMENT)
        wanted = 0 if deployment is None else deployment.spec.replicas
        living = {name for machine in self.fleet.machines.values() for name in machine.engines}
        orders = frozenset((one.assignment, one.generation) for one in self.fleet.state.assignments.values())
        # Nobody can call back what was ordered while there were more places, nor what is being started.
        self.orders = orders & self.orders if wanted < self.allowed else orders
        ordered = {name for name, _ in self.orders} | self.fleet.state.leaving.keys()
        may_live = len(self.fleet.living()) + len(ordered - living)
        self.allowed = max(wanted, min(self.allowed, may_live))

    @rule(node=NODES)
    def send(self, node: NodeId) -> None:
        self.fleet.send(self.fleet.machines[node])

    @rule(node=NODES, answered=st.booleans())
    def arrive(self, node: NodeId, answered: bool) -> None:
        machine = self.fleet.machines[node]
        if machine.on_its_way is not None and not machine.cut:
            self.fleet.arrive(machine, answered=answered)

    @rule(node=NODES)
    def fetch(self, node: NodeId) -> None:
        if not self.fleet.machines[node].cut:
            self.fleet.fetch(self.fleet.machines[node])

    @rule(node=NODES)
    def act(self, node: NodeId) -> None:
        self.fleet.act(self.fleet.machines[node])

    @rule(node=NODES)
    def talk(self, node: NodeId) -> None:
        if not self.fleet.machines[node].cut:
            self.fleet.talk(self.fleet.machines[node])

    @rule(node=NODES)
    def cut_or_join(self, node: NodeId) -> None:
        self.fleet.machines[node].cut ^= True

    @rule(node=NODES)
    def agent_anew(self, node: NodeId) -> None:
        """A new process, which knows nothing of its predecessor's lease: what runs by one ends."""
        machine = self.fleet.machines[node]
        kept = {name: one for name, one in machine.engines.items() if one.wanted.cut_off_keep_ms is None}
        machine.engines, machine.lease = kept, NodeLease()

    @rule(seconds=st.sampled_from([1, 5, 11, 30, 60]))
    def time_passes(self, seconds: int) -> None:
        for _ in range(seconds):
            self.fleet.pass_ms(1_000)
        self.fleet.reconcile()

    @rule(node=NODES, directive=st.sampled_from([Directive.ACTIVE, Directive.DRAIN, Directive.CORDON]))
    def direct(self, node: NodeId, directive: Directive) -> None:
        self.fleet.direct(node, directive)

    @rule(replicas=st.integers(0, 2))
    def scale(self, replicas: int) -> None:
        self._change(lambda current: attrs.evolve(current, replicas=replicas))

    @rule(keep_ms=st.sampled_from([0, 1_000, KEEP_MS]))
    def keep(self, keep_ms: int) -> None:
        self._change(lambda current: attrs.evolve(current, cut_off_keep_ms=keep_ms))

    @rule(slots=st.integers(1, 3))
    def change_engine(self, slots: int) -> None:
        self._change(lambda current: attrs.evolve(current, engine=engine(slots=slots)))

    @rule()
    def remove_and_apply(self) -> None:
        self.fleet.ask(RemoveDeployment(DEPLOYMENT))
        self.fleet.reconcile()
        self.fleet.ask(ApplyDeployment(spec=EXCLUSIVE))
        self._note()

    @rule()
    def another_leads(self) -> None:
        self.fleet.lead_anew()

    @rule()
    def reconcile(self) -> None:
        self.fleet.reconcile()

    @invariant()
    def never_more_than_wanted(self) -> None:
        self._note()
        assert len(self.fleet.living()) <= self.allowed, (self.fleet.living(), self.fleet.state.leaving)

    @precondition(lambda self: self.fleet.living())
    @invariant()
    def none_twice(self) -> None:
        starts = [name for machine in self.fleet.machines.values() for name in machine.engines]
        assert len(set(starts)) == len(starts)

    def teardown(self) -> None:
        """And in the end, when all are heard, there is what is wanted."""
        fleet = self.fleet
        for node, machine in fleet.machines.items():
            machine.cut = False
            fleet.direct(node, Directive.ACTIVE)
        fleet.pass_ms(120_000)
        fleet.live(4)
        assert len(fleet.living()) == fleet.state.deployments[DEPLOYMENT].spec.replicas
        assert not fleet.state.leaving

    def _change(self, change: Callable[[DeploymentSpec], DeploymentSpec]) -> None:
        self.fleet.ask(ApplyDeployment(spec=change(self.fleet.state.deployments[DEPLOYMENT].spec)))
        self._note()


ExclusiveFleet.TestCase.settings = settings(max_examples=examples(15), stateful_step_count=30, deadline=None)
TestExclusiveFleet = ExclusiveFleet.TestCase


def test_the_bound_of_a_place_is_what_its_node_may_have() -> None:
    fleet = Fleet()
    held: Assignment = next(iter(fleet.state.assignments.values()))
    assert held.bound_ms == BOUND_MS
