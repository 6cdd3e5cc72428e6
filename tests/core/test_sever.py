"""Which requests in progress end because of what happened to their node, and which go on."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lunanexa_core.commands import (
    AdmitWorkload,
    ApplyDeployment,
    Command,
    FailAttempt,
    OpenSession,
    Reconcile,
    RevokeNode,
    SetDirective,
    Tick,
)
from lunanexa_core.events import Liveness
from lunanexa_core.ids import AssignmentId, BootId, NodeId, StartId, WorkloadId
from lunanexa_core.kernel.absorb import absorb
from lunanexa_core.kernel.apply import apply
from lunanexa_core.kernel.decide import Answer, decide
from lunanexa_core.observed import Observed
from lunanexa_core.outcomes import Refusal
from lunanexa_core.policy import Policy
from lunanexa_core.routing.pick import deny_waiting, grant_waiting
from lunanexa_core.routing.sever import severed
from lunanexa_core.southbound.documents import Directive
from lunanexa_core.southbound.heartbeat import ReplicaState
from lunanexa_core.state import State
from lunanexa_core.time import Instant
from lunanexa_core.workload import Attempt
from tests.core.builders import (
    NOW,
    SESSION,
    api_key,
    begin,
    heartbeat,
    joining,
    report,
    reported,
    request,
    spec,
)
from tests.examples import examples

BY_DOOR, ON_LOOPBACK = NODES = NodeId("node-1"), NodeId("node-2")
POLICY = Policy(session_lease_ms=1 << 40)
LATE_MS = POLICY.node_lease_ms - 1
STARTS = {BY_DOOR: StartId("st_1"), ON_LOOPBACK: StartId("st_2")}


class Fleet:
    """A node with a data listener and one without, with a replica each, and what a kernel makes of them."""

    def __init__(self) -> None:
        self.now = NOW
        self.state = State()
        self.observed = Observed(began_mono_ms=NOW.mono_ms)
        self.told: set[tuple[WorkloadId, StartId, str]] = set()
        self.boots = dict.fromkeys(NODES, 1)
        self.sequence = self.number = 0
        self.ask(begin(keys=(api_key(),)))
        for command in (*joining(BY_DOOR, data_address="10.0.0.7:8410"), *joining(ON_LOOPBACK)):
            self.ask(command)
        self.ask(OpenSession(SESSION))
        self.ask(ApplyDeployment(spec=spec(replicas=2)))
        for number in range(2):
            self.ask(Reconcile((AssignmentId(f"asg_{number}"),)))
        assert {one.node for one in self.state.assignments.values()} == set(NODES)
        for node in NODES:
            self.hear(node)

    def ask(self, command: Command) -> Answer:
        decision = decide(self.state, self.observed, POLICY, command, self.now)
        for event in decision.events:
            apply(self.state, event, epoch=1, wall_ms=self.now.wall_ms)
        absorb(self.state, self.observed, POLICY, command, decision, self.now)
        self.told |= {(one.workload, one.start, one.failure) for one in severed(self.observed, decision.events)}
        grant_waiting(self.state, self.observed, POLICY, self.now)
        deny_waiting(self.state, self.observed, POLICY, self.now)
        return decision.answer

    def hear(self, node: NodeId, state: ReplicaState = ReplicaState.READY) -> None:
        self.sequence += 1
        mine = [one for one in self.state.assignments.values() if one.node == node]
        reports = [
            report(assignment=one.assignment, generation=one.generation, start=STARTS[node], state=state)
            for one in mine
        ]
        boot = BootId(f"boot_{node}_{self.boots[node]}")
        self.ask(reported(heartbeat(self.sequence, *reports, node=node, boot=boot)))

    def pass_ms(self, ms: int) -> None:
        self.now = Instant(self.now.mono_ms + ms, self.now.wall_ms + ms)
        self.ask(Tick())

    def request(self) -> WorkloadId:
        self.number += 1
        asked = request(self.number, deadline_ms=1 << 40)
        self.ask(AdmitWorkload(asked))
        return asked.workload

    def requests(self) -> dict[NodeId, WorkloadId]:
        """One in progress on each node."""
        asked = [self.request() for _ in NODES]
        return {self.observed.held[workload].node: workload for workload in asked}

    def liveness(self, node: NodeId) -> Liveness:
        return self.state.nodes[node].liveness


@pytest.fixture
def world() -> Fleet:
    return Fleet()


def test_a_lost_node_ends_what_passes_its_data_listener(world: Fleet) -> None:
    running = world.requests()
    world.pass_ms(POLICY.node_lease_ms)
    assert {world.liveness(node) for node in NODES} == {Liveness.LOST}
    # What needs no agent on its way may go on; if its engine goes, this machine is told.
    assert world.told == {(running[BY_DOOR], STARTS[BY_DOOR], "node_lost")}


def test_who_is_late_and_comes_back_within_its_lease_loses_nothing(world: Fleet) -> None:
    world.requests()
    world.pass_ms(LATE_MS)
    assert {world.liveness(node) for node in NODES} == {Liveness.SUSPECT}
    world.hear(BY_DOOR)
    world.pass_ms(LATE_MS)
    assert world.told == set()


def test_an_agent_that_began_anew_passes_nothing_of_before(world: Fleet) -> None:
    """So it is with a machine that lost power and is back within its lease."""
    running = world.requests()
    world.boots = dict.fromkeys(NODES, 2)
    for node in NODES:
        world.hear(node)
    assert world.told == {(running[BY_DOOR], STARTS[BY_DOOR], "node_restarted")}


@pytest.mark.parametrize("node", NODES)
def test_a_revoked_node_is_not_listened_to(world: Fleet, node: NodeId) -> None:
    running = world.requests()
    world.ask(RevokeNode(node=node))
    assert world.told == {(running[node], STARTS[node], "node_revoked")}


@pytest.mark.parametrize("directive", [Directive.CORDON, Directive.DRAIN, Directive.RETIRE])
@pytest.mark.parametrize("state", [ReplicaState.DRAINING, ReplicaState.STOPPING, ReplicaState.ABSENT])
def test_drains_and_planned_stops_cut_nothing(world: Fleet, directive: Directive, state: ReplicaState) -> None:
    world.requests()
    assert not isinstance(world.ask(SetDirective(node=BY_DOOR, directive=directive)), Refusal)
    world.ask(ApplyDeployment(spec=spec(replicas=0)))
    world.ask(Reconcile(()))
    world.hear(BY_DOOR, state)
    world.pass_ms(LATE_MS)
    assert world.told == set()


def test_what_was_cut_is_granted_elsewhere_once(world: Fleet) -> None:
    workload = world.requests()[BY_DOOR]
    world.pass_ms(LATE_MS)
    world.hear(ON_LOOPBACK)
    world.pass_ms(1)
    ((told, start, failure),) = world.told
    world.ask(FailAttempt(told, Attempt(start=start, failure=failure)))
    assert told == workload
    assert world.observed.held[workload].node == ON_LOOPBACK
    assert STARTS[BY_DOOR] not in world.observed.slots_held


def test_a_new_leader_cuts_nothing_that_it_did_not_grant(world: Fleet) -> None:
    world.requests()
    world.observed = Observed(began_mono_ms=world.now.mono_ms)
    world.pass_ms(LATE_MS)
    assert Liveness.LOST not in {world.liveness(node) for node in NODES}
    world.pass_ms(1)
    assert {world.liveness(node) for node in NODES} == {Liveness.LOST}
    assert world.told == set()


STEPS = st.one_of(
    st.tuples(st.just("request"), st.none()),
    st.tuples(st.just("pass"), st.sampled_from((1_000, LATE_MS, 1))),
    st.tuples(st.sampled_from(("hear", "reboot", "revoke", "fail")), st.sampled_from(NODES)),
)


@given(steps=st.lists(STEPS, max_size=25))
@settings(max_examples=examples(60), deadline=None)
def test_told_are_those_whose_node_has_ended_since_their_grant_and_no_others(
    steps: list[tuple[str, NodeId | int | None]],
) -> None:
    """By events it is what state says: nobody waits for a node that is gone, and nobody else is cut."""
    world = Fleet()
    boot_of: dict[tuple[WorkloadId, StartId], BootId | None] = {}
    ended: set[tuple[WorkloadId, StartId]] = set()
    failed: set[WorkloadId] = set()
    """Their second attempt is their last."""
    for step, of in steps:
        match step, of:
            case "request", _:
                world.request()
            case "pass", int():
                world.pass_ms(of)
            case "hear", str():
                world.hear(of)
            case "reboot", str():
                world.boots[of] += 1
                world.hear(of)
            case "revoke", str():
                world.ask(RevokeNode(node=of))
            case "fail", str():
                first = [one for one, held in world.observed.held.items() if held.node == of and one not in failed]
                for workload in first[:1]:
                    failed.add(workload)
                    world.ask(FailAttempt(workload, Attempt(start=STARTS[NodeId(of)], failure="engine_cut")))
            case _:
                raise AssertionError(step)
        for workload, held in world.observed.held.items():
            node, grant = world.state.nodes[held.node], (workload, held.start)
            began_with = boot_of.setdefault(grant, node.boot)
            gone = node.liveness is Liveness.LOST or node.boot != began_with
            if node.revoked or (gone and held.node == BY_DOOR):
                ended.add(grant)
        there = {(workload, held.start) for workload, held in world.observed.held.items()}
        told = {(workload, start) for workload, start, _ in world.told}
        assert told & there == ended & there
