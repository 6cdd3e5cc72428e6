"""A node whose owner does not let a deployment run there: another one has it, where there is one, and nobody goes on
asking."""

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lunanexa_core.commands import ApplyDeployment, RemoveDeployment
from lunanexa_core.ids import AssignmentId, BootId, NodeId
from lunanexa_core.nodes.policy import PolicyRefusal
from lunanexa_core.placement.declined import declined_by
from lunanexa_core.placement.feasible import NotFeasible
from lunanexa_core.placement.roster import refusals
from lunanexa_core.southbound.heartbeat import RefusedAssignment
from tests.core.builders import BOOT, DEPLOYMENT, engine, heartbeat, reported, spec
from tests.core.test_placement import FLEET, Placed
from tests.examples import examples

WORD = PolicyRefusal.PROGRAM.value
NEXT_BOOT = BootId("boot_2")
ONE, TWO, THREE = FLEET[:3]


def say(
    placed: Placed, node: NodeId, refusal: str | None, *, boot: BootId = BOOT, late: int = 0, of: NodeId | None = None
) -> None:
    """A heartbeat of ``node`` that refuses what is on ``of`` (itself), or nothing."""
    placed.sequence += 1
    on = [one.assignment for one in placed.state.assignments.values() if one.node == (of or node)]
    told = tuple(RefusedAssignment(assignment=name, refusal=refusal) for name in on if refusal is not None)
    runs = [placed.state.replicas[name] for name in on if name in placed.state.replicas]
    beat = heartbeat(placed.sequence + 1, *runs, node=node, boot=boot)
    generation = placed.state.nodes[node].generation - late
    placed.ask(reported(attrs.evolve(beat, generation=generation, refused=told)))
    placed.reconcile()


def settle(placed: Placed, declining: frozenset[NodeId]) -> int:
    """All report, until nothing changes; how many replicas were placed anew."""
    moves = 0
    for _ in range(len(FLEET) + 1):
        before = {one.assignment for one in placed.state.assignments.values()}
        for node in FLEET:
            say(placed, node, WORD if node in declining else None)
        new = {one.assignment for one in placed.state.assignments.values()} - before
        if not new:
            return moves
        moves += len(new)
    raise AssertionError("it goes on and on")


nodes = st.frozensets(st.sampled_from(FLEET))


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(st.tuples(nodes, st.integers(0, 5)), min_size=1, max_size=3))
def test_who_declines_has_none_while_another_can_and_it_comes_to_an_end(
    steps: list[tuple[frozenset[NodeId], int]],
) -> None:
    placed = Placed(replicas=1)
    for slots, (declining, replicas) in enumerate(steps, start=10):
        placed.ask(ApplyDeployment(spec=spec(replicas=replicas, engine=engine(slots=slots))))
        placed.reconcile()
        moves = settle(placed, declining)
        assert moves <= len(declining), "each node is asked once"
        where, willing = set(placed.where()), set(FLEET) - declining
        if replicas <= len(willing):
            assert where <= willing
            assert len(where) == replicas
        else:
            assert willing <= where
        known = declined_by(placed.state, placed.observed, DEPLOYMENT)
        assert where & declining <= known.keys() <= declining


def test_what_is_held_against_a_node_ends_with_the_engine_and_with_its_agent() -> None:
    placed = Placed(nodes=2)
    say(placed, ONE, WORD)
    assert placed.where() == [TWO]
    deployment = placed.state.deployments[DEPLOYMENT]
    assert refusals(placed.state, placed.observed, deployment)[ONE] == (NotFeasible.DECLINED,)
    say(placed, ONE, None)
    assert declined_by(placed.state, placed.observed, DEPLOYMENT) == {ONE: WORD}, "it has nothing to refuse any more"
    say(placed, TWO, WORD)
    assert placed.where() == [TWO], "nobody else can have it"
    say(placed, ONE, None, boot=NEXT_BOOT)
    assert placed.where() == [ONE], "another agent may know another policy"
    say(placed, ONE, WORD, boot=NEXT_BOOT)
    assert placed.where() == [ONE]
    placed.ask(ApplyDeployment(spec=spec(engine=engine(slots=9))))
    assert declined_by(placed.state, placed.observed, DEPLOYMENT) == {}
    placed.ask(ApplyDeployment(spec=spec(replicas=2, engine=engine(slots=9))))
    placed.reconcile()
    assert sorted(placed.where()) == [ONE, TWO]


def test_what_no_owner_said_moves_nothing() -> None:
    placed = Placed(nodes=2)
    say(placed, ONE, "no_engine_key")
    assert placed.where() == [ONE]
    assert not placed.observed.declined


@pytest.mark.parametrize("word", [PolicyRefusal.MEMORY.value, PolicyRefusal.REPLICAS.value])
def test_what_is_too_much_goes_elsewhere_and_the_operator_is_told_of_room(word: str) -> None:
    placed = Placed(nodes=2)
    say(placed, ONE, word)
    assert placed.where() == [TWO]
    assert declined_by(placed.state, placed.observed, DEPLOYMENT) == {ONE: word}
    deployment = placed.state.deployments[DEPLOYMENT]
    assert refusals(placed.state, placed.observed, deployment)[ONE] == (NotFeasible.FULL,)


def test_what_a_node_takes_it_declines_no_more() -> None:
    placed = Placed(nodes=1)
    say(placed, ONE, WORD)
    assert declined_by(placed.state, placed.observed, DEPLOYMENT) == {ONE: WORD}
    say(placed, ONE, None)
    assert declined_by(placed.state, placed.observed, DEPLOYMENT) == {}


def test_another_deployment_of_its_name_is_another() -> None:
    placed = Placed(nodes=2)
    say(placed, ONE, WORD)
    placed.ask(RemoveDeployment(deployment=DEPLOYMENT))
    placed.reconcile()
    placed.ask(ApplyDeployment(spec=spec()))
    assert declined_by(placed.state, placed.observed, DEPLOYMENT) == {}


def test_a_word_on_an_older_document_or_on_anothers_replica_is_none() -> None:
    placed = Placed(nodes=3)
    say(placed, ONE, WORD, late=1)
    say(placed, THREE, WORD, of=ONE)
    assert placed.where() == [ONE]
    assert not placed.observed.declined
    placed.ask(reported(attrs.evolve(heartbeat(99, node=TWO), refused=(_unknown(),))))
    assert not placed.observed.declined


def _unknown() -> RefusedAssignment:
    return RefusedAssignment(assignment=AssignmentId("asg_none"), refusal=WORD)


def test_requests_in_progress_end_first() -> None:
    placed = Placed(nodes=2)
    placed.be(placed.on(ONE))
    placed.hold(ONE)
    say(placed, ONE, WORD)
    assert placed.where() == [ONE]
    for workload in list(placed.observed.held):
        placed.observed.release(workload)
    placed.reconcile()
    assert placed.where() == [TWO]
