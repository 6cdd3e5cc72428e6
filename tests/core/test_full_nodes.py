"""Fleets whose machines are full by their owners' rules: what one refuses goes where there is room, wherever that is,
and where there is none it waits; whatever is deployed, removed, changed and drained, and however late nodes are."""

from collections.abc import Sequence

import attrs
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from lunanexa_core.commands import ApplyDeployment, Command, Reconcile, RemoveDeployment, SetDirective
from lunanexa_core.events import ClusterCreated, EpochBegan
from lunanexa_core.ids import Alias, AssignmentId, BootId, ClusterId, DeploymentId, NodeId
from lunanexa_core.kernel.absorb import absorb
from lunanexa_core.kernel.apply import apply
from lunanexa_core.kernel.decide import Answer, Done, decide
from lunanexa_core.lifecycle.reconcile import RefuseAssignment, reconcile
from lunanexa_core.lifecycle.record import ReplicaRecord
from lunanexa_core.nodes.policy import NO_RULES, OF_SUMS, NodePolicy, PolicyRefusal, policy_refusal
from lunanexa_core.observed import Observed
from lunanexa_core.outcomes import Refusal
from lunanexa_core.placement.declined import declined_by
from lunanexa_core.policy import Policy
from lunanexa_core.southbound.build import desired_state
from lunanexa_core.southbound.documents import DesiredAssignment, DesiredState, Directive
from lunanexa_core.southbound.heartbeat import RefusedAssignment, ReplicaReport, ReplicaState, UnstartedReplica
from tests.core.builders import NOW, engine, enrolled_events, heartbeat, report, reported, spec, state_of
from tests.core.test_policy import carry_out, end_those_that_stop
from tests.examples import examples

POLICY = Policy()
NODES = tuple(NodeId(f"node-{number}") for number in range(1, 5))
NAMES = tuple(map(DeploymentId, ("a", "b", "c", "d")))
ROUNDS = 60


@attrs.define(kw_only=True)
class Machine:
    """A node with its owner's policy: it looks, and tells what it saw, each in its own time."""

    policy: NodePolicy = NodePolicy()
    boot: BootId = BootId("boot_1")
    sequence: int = 0
    followed: DesiredState | None = None
    refused: tuple[RefusedAssignment, ...] = ()
    present: dict[AssignmentId, ReplicaRecord] = attrs.Factory(dict)
    ended: dict[AssignmentId, ReplicaReport] = attrs.Factory(dict)
    told: bool = False
    """It has told of what ended since it looked last; then it looks before it tells of anything else."""

    def look(self, document: DesiredState) -> None:
        self.followed = document
        actions = reconcile(document, self.present, (), policy=self.policy)
        carry_out(self.present, actions)
        self.ended = {name: told for name, told in self.ended.items() if name not in self.present}
        self.told = False
        told = [one for one in actions if isinstance(one, RefuseAssignment)]
        self.refused = tuple(RefusedAssignment(assignment=one.assignment, refusal=one.refusal.value) for one in told)

    def end(self) -> None:
        before = dict(self.present)
        end_those_that_stop(self.present)
        for name in before.keys() - self.present.keys():
            self.ended[name] = attrs.evolve(_report(before[name]), state=ReplicaState.ABSENT)

    def starts_anew(self, boot: int) -> None:
        self.boot, self.sequence, self.followed, self.refused = BootId(f"boot_{boot}"), 0, None, ()

    def takes(self, assignment: DesiredAssignment) -> bool:
        beside = [record.assignment for record in self.present.values()]
        return policy_refusal(self.policy, assignment, beside=beside) is None


def _report(record: ReplicaRecord) -> ReplicaReport:
    assert record.start is not None
    name, generation = record.assignment.assignment, record.assignment.generation
    return report(assignment=name, generation=generation, start=record.start, state=record.state)


class Fleet:
    """A controller's rules and the machines that go by them, without a task or a network between."""

    def __init__(self, nodes: tuple[NodeId, ...] = NODES) -> None:
        enrolled = [event for node in nodes for event in enrolled_events(node)]
        self.state = state_of([ClusterCreated(ClusterId("cl_1")), EpochBegan(version="0.1.0"), *enrolled])
        self.observed = Observed(began_mono_ms=NOW.mono_ms)
        self.machines = {node: Machine() for node in nodes}
        self.made = self.boots = 1
        self.placed = 0
        """New replicas since all came to rest last."""

    def ask(self, command: Command) -> Answer:
        decision = decide(self.state, self.observed, POLICY, command, NOW)
        for event in decision.events:
            apply(self.state, event, epoch=1, wall_ms=NOW.wall_ms)
        absorb(self.state, self.observed, POLICY, command, decision, NOW)
        return decision.answer

    def place(self) -> None:
        """To where nothing is left to do."""
        for _ in range(50):
            self.made += 1
            decision = decide(self.state, self.observed, POLICY, Reconcile((AssignmentId(f"asg_{self.made:04}"),)), NOW)
            for event in decision.events:
                known = len(self.state.assignments)
                apply(self.state, event, epoch=1, wall_ms=NOW.wall_ms)
                self.placed += len(self.state.assignments) > known
            if not decision.events:
                return
        raise AssertionError("placing goes on and on")

    def deploy(
        self, name: DeploymentId, *, replicas: int = 1, limit_mib: int | None = 1, exclusive: bool = False
    ) -> None:
        wanted = spec(
            deployment=name,
            alias=Alias(name),
            replicas=replicas,
            exclusive=exclusive,
            cut_off_keep_ms=0 if exclusive else None,
            engine=engine(memory_limit_mib=limit_mib),
        )
        assert not isinstance(self.ask(ApplyDeployment(spec=wanted)), Refusal)
        self.place()

    def remove(self, name: DeploymentId) -> None:
        self.ask(RemoveDeployment(deployment=name))
        self.place()

    def direct(self, node: NodeId, directive: Directive) -> None:
        self.ask(SetDirective(node=node, directive=directive))
        self.place()

    def say(self, node: NodeId, policy: NodePolicy) -> None:
        """The owner writes it and starts the agent anew."""
        self.boots += 1
        self.machines[node].policy = policy
        self.machines[node].starts_anew(self.boots)

    def look(self, node: NodeId) -> None:
        self.machines[node].look(desired_state(self.state, node, lambda _: "k"))

    def hear(self, node: NodeId) -> None:
        machine = self.machines[node]
        if machine.told and machine.followed is not None:
            machine.look(machine.followed)
        reports = [*map(_report, machine.present.values()), *machine.ended.values()]
        machine.told, machine.ended = machine.told or bool(machine.ended), {}
        self.tell(node, reports, machine.refused, 0 if machine.followed is None else machine.followed.generation)

    def tell(
        self,
        node: NodeId,
        reports: Sequence[ReplicaReport],
        refused: Sequence[RefusedAssignment],
        followed: int | None = None,
        unstarted: tuple[UnstartedReplica, ...] = (),
    ) -> None:
        """A heartbeat of the node, of this generation (the newest)."""
        machine = self.machines[node]
        machine.sequence += 1
        beat = heartbeat(machine.sequence, *reports, node=node, boot=machine.boot)
        generation = self.state.nodes[node].generation if followed is None else followed
        beat = attrs.evolve(beat, generation=generation, refused=tuple(refused), unstarted=unstarted)
        assert self.ask(reported(beat)) == Done()
        self.place()

    def settle(self) -> int:
        """All go on until nothing changes any more; how many new replicas it took."""
        for _ in range(ROUNDS):
            before = self._world()
            for node in self.machines:
                self.machines[node].end()
                self.look(node)
                self.hear(node)
            if before == self._world():
                placed, self.placed = self.placed, 0
                return placed
        raise AssertionError("replicas move on and on")

    def _world(self) -> tuple[object, ...]:
        present = [dict(machine.present) for machine in self.machines.values()]
        return dict(self.state.assignments), dict(self.state.leaving), self.observed.declined, present

    def where(self, name: DeploymentId) -> list[NodeId]:
        return sorted(one.node for one in self.state.assignments.values() if one.deployment == name)

    def runs(self, name: DeploymentId) -> list[NodeId]:
        return sorted(
            node
            for node, machine in self.machines.items()
            if any(record.assignment.deployment == name for record in machine.present.values())
        )

    def room_for(self, name: DeploymentId) -> list[NodeId]:
        """Nodes that would take one more replica, by what is there and by their owners' rules themselves."""
        deployment = self.state.deployments[name]
        one = DesiredAssignment(
            assignment=AssignmentId("new"),
            generation=deployment.runs,
            deployment=name,
            engine=deployment.spec.engine,
        )
        active = [node for node in self.machines if self.state.nodes[node].directive is Directive.ACTIVE]
        return [node for node in active if node not in self.where(name) and self.machines[node].takes(one)]

    def waiting(self) -> list[DeploymentId]:
        """Of which a replica has no place, or one that its node refuses."""
        refused = {one.assignment for machine in self.machines.values() for one in machine.refused}
        found = {one.deployment for name, one in self.state.assignments.items() if name in refused}
        found |= {name for name, one in self.state.deployments.items() if len(self.where(name)) < one.spec.replicas}
        return sorted(found)


A, B, C = NAMES[:3]
ONE, TWO, THREE = NODES[:3]
FOR_ONE = NodePolicy(replicas=1)
MIB = NodePolicy(memory_mib=8)


def full(*policies: NodePolicy, others: int = 1, limit_mib: int = 5) -> Fleet:
    """The first node runs A and refuses the others; beside it there are cordoned ones, for one policy each."""
    fleet = Fleet(NODES[: len(policies)])
    for node, policy in zip(NODES, policies, strict=False):
        fleet.say(node, policy)
        fleet.direct(node, Directive.CORDON if node != ONE else Directive.ACTIVE)
    for name in (A, B, C)[: others + 1]:
        fleet.deploy(name, limit_mib=limit_mib)
        fleet.settle()
    assert fleet.runs(A) == [ONE]
    assert fleet.waiting() == list((B, C)[:others])
    return fleet


@pytest.mark.parametrize("policy", [FOR_ONE, MIB])
@pytest.mark.parametrize("exclusive", [False, True])
def test_what_a_full_node_refuses_goes_where_there_is_room(policy: NodePolicy, exclusive: bool) -> None:
    fleet = full(policy, NO_RULES)
    fleet.deploy(B, limit_mib=5, exclusive=exclusive)
    fleet.direct(TWO, Directive.ACTIVE)
    assert fleet.settle() == 1
    assert (fleet.runs(A), fleet.runs(B)) == ([ONE], [TWO])
    fleet.deploy(C, replicas=2, limit_mib=5)
    fleet.settle()
    assert fleet.runs(C) == [TWO], "a second node has no room for it"


def test_of_two_that_are_refused_each_goes_once() -> None:
    fleet = full(FOR_ONE, FOR_ONE, FOR_ONE, others=2)
    fleet.direct(TWO, Directive.ACTIVE)
    assert fleet.settle() == 2, "both try it, as far as anybody knows there is room for both"
    assert fleet.waiting() == [C]
    assert (fleet.runs(A), fleet.runs(B)) == ([ONE], [TWO])
    fleet.direct(THREE, Directive.ACTIVE)
    assert fleet.settle() == 1
    assert fleet.runs(C) == [THREE]


@pytest.mark.parametrize("ends", [A, B])
def test_where_all_are_full_it_stays_until_one_has_room_and_then_it_is_there(ends: DeploymentId) -> None:
    fleet = full(FOR_ONE, FOR_ONE, others=2)
    fleet.direct(TWO, Directive.ACTIVE)
    fleet.settle()
    assert declined_by(fleet.state, fleet.observed, C).keys() == {ONE, TWO}
    assert fleet.settle() == 0
    (sits,), had = fleet.where(C), fleet.runs(ends)
    fleet.remove(ends)
    assert fleet.settle() == (sits not in had)
    assert fleet.runs(C) == had
    assert not declined_by(fleet.state, fleet.observed, C).keys() & set(had)


def test_who_waits_for_what_is_leaving_stays() -> None:
    fleet = full(FOR_ONE, NO_RULES)
    fleet.remove(A)
    fleet.direct(TWO, Directive.ACTIVE)
    for _ in range(2):
        fleet.look(ONE)
        fleet.hear(ONE)
        assert fleet.where(B) == [ONE]
    fleet.machines[ONE].end()
    fleet.hear(ONE)
    assert fleet.where(B) == [ONE], "it has gone, and the node has not looked since"
    assert fleet.settle() == 0
    assert fleet.runs(B) == [ONE]


Told = tuple[str, int, ReplicaState]
ENDS, SERVES = ReplicaState.STOPPING, ReplicaState.READY


@pytest.mark.parametrize(
    ("told", "refused", "moves"),
    [
        ((), "b", True),
        ((("a", 2, SERVES),), "b", True),
        ((("a", 2, ENDS),), "b", False),
        ((("a", 2, SERVES),), "ab", False),  # It is about to be stopped.
        ((("a", 1, SERVES),), "b", False),  # As much: its newer one is taken.
        ((("a", 1, SERVES),), "ab", True),
        ((("a", 1, ENDS),), "ab", False),
        ((("x", 1, SERVES),), "b", False),
        ((("b", 2, ENDS),), "b", True),
        ((("b", 1, SERVES),), "b", True),
        ((("b", 1, ENDS),), "b", False),  # An older engine of its own is in its way.
    ],
)
@pytest.mark.parametrize("word", sorted(OF_SUMS))
def test_a_node_that_something_leaves_is_not_held_for_full(
    told: tuple[Told, ...], refused: str, moves: bool, word: str
) -> None:
    fleet = full(FOR_ONE, NO_RULES)
    fleet.say(ONE, FOR_ONE)
    for name in (A, B):
        fleet.deploy(name, limit_mib=4)
    names = {one.deployment: name for name, one in fleet.state.assignments.items()}
    reports = [
        report(assignment=names.get(DeploymentId(name), AssignmentId(name)), generation=generation, state=state)
        for name, generation, state in told
    ]
    words = {"a": "no_engine_key", "b": word}
    fleet.tell(
        ONE, reports, [RefusedAssignment(assignment=names[DeploymentId(one)], refusal=words[one]) for one in refused]
    )
    fleet.direct(TWO, Directive.ACTIVE)
    assert (fleet.where(B) == [TWO]) is moves


def test_what_has_just_gone_may_have_been_counted() -> None:
    fleet = full(FOR_ONE, NO_RULES, others=2)
    fleet.say(ONE, FOR_ONE)
    fleet.tell(ONE, [], [], followed=0)
    names = {one.deployment: name for name, one in fleet.state.assignments.items()}
    fleet.remove(C)
    fleet.direct(TWO, Directive.ACTIVE)
    refused = [RefusedAssignment(assignment=names[B], refusal=PolicyRefusal.REPLICAS.value)]
    leaves = UnstartedReplica(names[C], ReplicaState.AWAITING_MEMORY)
    for unstarted, where in (((leaves,), ONE), ((), ONE), ((), TWO)):
        fleet.tell(ONE, [], refused, unstarted=unstarted)
        assert fleet.where(B) == [where]


def test_an_older_engine_that_goes_on_is_in_the_way_until_it_is_gone() -> None:
    fleet = full(MIB, MIB)
    fleet.direct(TWO, Directive.ACTIVE)
    fleet.deploy(A, replicas=2, limit_mib=5)
    fleet.deploy(B, limit_mib=9)
    fleet.settle()
    fleet.deploy(A, replicas=2, limit_mib=9)
    fleet.deploy(B, limit_mib=4)
    fleet.settle()
    assert fleet.runs(A) == [ONE, TWO]
    (sits,) = fleet.where(B)
    other = next(node for node in (ONE, TWO) if node != sits)
    assert fleet.waiting() == [A, B]
    fleet.direct(other, Directive.CORDON)
    fleet.deploy(A, limit_mib=9)
    fleet.direct(other, Directive.ACTIVE)
    assert fleet.where(A) == [sits]
    fleet.settle()
    assert fleet.runs(B) == [other]


def test_a_smaller_engine_makes_room_and_a_larger_one_of_its_own_goes() -> None:
    fleet = full(MIB, NodePolicy(replicas=0))
    fleet.direct(TWO, Directive.ACTIVE)
    assert fleet.settle() == 1
    assert fleet.where(B) == [TWO]
    fleet.deploy(A, limit_mib=3)
    assert fleet.settle() == 1
    assert (fleet.runs(A), fleet.runs(B)) == ([ONE], [ONE])
    fleet.direct(TWO, Directive.CORDON)
    fleet.say(TWO, MIB)
    fleet.deploy(B, limit_mib=8)
    fleet.settle()
    assert fleet.waiting() == [B]
    assert fleet.runs(B) == [ONE], "in its older generation"
    fleet.direct(TWO, Directive.ACTIVE)
    assert fleet.settle() == 1
    assert fleet.runs(B) == [TWO]
    fleet.deploy(B, limit_mib=9)
    fleet.settle()
    assert fleet.waiting() == [B], "which is too much for either, alone"
    fleet.remove(A)
    assert fleet.settle() == 0


def test_an_agent_that_starts_anew_is_asked_anew() -> None:
    fleet = full(FOR_ONE, NodePolicy(replicas=0))
    fleet.direct(TWO, Directive.ACTIVE)
    fleet.settle()
    assert fleet.where(B) == [TWO]
    fleet.say(ONE, NodePolicy(replicas=2))
    assert fleet.settle() == 1
    assert fleet.runs(B) == [ONE]
    fleet.say(ONE, FOR_ONE)
    fleet.say(TWO, FOR_ONE)
    assert fleet.settle() == 1, "of what runs one ends, and goes"
    assert (fleet.runs(A), fleet.runs(B)) == ([ONE], [TWO])


POLICIES = st.builds(
    NodePolicy, replicas=st.sampled_from([None, 0, 1, 1, 2]), memory_mib=st.sampled_from([None, None, 8])
)
nodes, names = st.sampled_from(NODES), st.sampled_from(NAMES)


class Owners(RuleBasedStateMachine):
    """What is placed comes to rest, and then nobody waits for whom there is room."""

    @initialize(policies=st.lists(POLICIES, min_size=len(NODES), max_size=len(NODES)))
    def begin(self, policies: list[NodePolicy]) -> None:
        self.fleet = Fleet()
        for node, policy in zip(NODES, policies, strict=True):
            self.fleet.say(node, policy)

    @rule(name=names, replicas=st.integers(1, 3), limit_mib=st.sampled_from([None, 3, 5, 9]), exclusive=st.booleans())
    def deploy(self, name: DeploymentId, replicas: int, limit_mib: int | None, exclusive: bool) -> None:
        self.fleet.deploy(name, replicas=replicas, limit_mib=limit_mib, exclusive=exclusive)

    @rule(name=names)
    def remove(self, name: DeploymentId) -> None:
        self.fleet.remove(name)

    @rule(node=nodes, policy=POLICIES)
    def say(self, node: NodeId, policy: NodePolicy) -> None:
        self.fleet.say(node, policy)

    @rule(node=nodes)
    def lose_power(self, node: NodeId) -> None:
        machine = self.fleet.machines[node]
        machine.present.clear()
        self.fleet.say(node, machine.policy)

    @rule(node=nodes, directive=st.sampled_from([Directive.ACTIVE, Directive.CORDON, Directive.DRAIN]))
    def direct(self, node: NodeId, directive: Directive) -> None:
        self.fleet.direct(node, directive)

    @rule(node=nodes, steps=st.lists(st.sampled_from(["end", "look", "hear"]), min_size=1, max_size=5))
    def go_on(self, node: NodeId, steps: list[str]) -> None:
        for step in steps:
            match step:
                case "end":
                    self.fleet.machines[node].end()
                case "look":
                    self.fleet.look(node)
                case _:
                    self.fleet.hear(node)

    @rule()
    def rest(self) -> None:
        self.fleet.settle()
        for name in self.fleet.waiting():
            assert not self.fleet.room_for(name), f"{name} waits, and there is room"

    def teardown(self) -> None:
        if hasattr(self, "fleet"):
            self.rest()


TestOwners = Owners.TestCase
TestOwners.settings = settings(max_examples=examples(60), stateful_step_count=20, deadline=None)
