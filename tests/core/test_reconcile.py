"""Reconciliation: what is wanted against what there is."""

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lunanexa_core.deployment import EngineSpec
from lunanexa_core.ids import AssignmentId, ClusterId, DeploymentId, NodeId, StartId
from lunanexa_core.lifecycle.reconcile import (
    MAX_ASSIGNMENTS,
    AssignmentRefusal,
    NodeAction,
    RefuseAssignment,
    StartReplica,
    StopCause,
    StopReplica,
    StopStray,
    reconcile,
)
from lunanexa_core.lifecycle.record import Ending, ReplicaRecord
from lunanexa_core.southbound.documents import DesiredAssignment, DesiredState, Directive
from lunanexa_core.southbound.heartbeat import ReplicaState

ENGINE = EngineSpec(driver="reference", served_name="tiny", binary="/bin/engine")


def assignment(name: str, generation: int = 1, served_name: str = "tiny") -> DesiredAssignment:
    engine = attrs.evolve(ENGINE, served_name=served_name)
    return DesiredAssignment(
        assignment=AssignmentId(name), generation=generation, deployment=DeploymentId("de_1"), engine=engine
    )


def document(*assignments: DesiredAssignment, directive: Directive = Directive.ACTIVE) -> DesiredState:
    return DesiredState(
        cluster=ClusterId("cl_1"), node=NodeId("no_1"), epoch=1, generation=1, directive=directive,
        assignments=assignments,
    )  # fmt: skip


def records(*running: ReplicaRecord) -> dict[AssignmentId, ReplicaRecord]:
    return {record.assignment.assignment: record for record in running}


def running(name: str, generation: int = 1, **changes: object) -> ReplicaRecord:
    record = ReplicaRecord(
        assignment=assignment(name, generation), state=ReplicaState.READY, start=StartId(f"start_{name}"), launched=True
    )
    return attrs.evolve(record, **changes)  # type: ignore[arg-type]  # one field each


def test_what_is_missing_starts_and_what_is_not_wanted_stops_first() -> None:
    actions = reconcile(document(assignment("b"), assignment("a")), records(running("b"), running("c")), ())
    assert actions == (
        StopReplica(AssignmentId("c"), StopCause.NOT_DESIRED),
        StartReplica(assignment("a")),
    )


def test_a_newer_generation_stops_the_old_one_and_starts_after_it_is_gone() -> None:
    wanted = document(assignment("a", 2))
    assert reconcile(wanted, records(running("a")), ()) == (StopReplica(AssignmentId("a"), StopCause.REPLACED),)
    stopping = running("a", state=ReplicaState.STOPPING, ending=Ending.ABSENT)
    assert reconcile(wanted, records(stopping), ()) == ()
    assert reconcile(wanted, {}, ()) == (StartReplica(assignment("a", 2)),)


def test_one_bad_assignment_stops_nothing_else() -> None:
    wanted = document(
        assignment("../etc"), assignment("a"), assignment("a"), assignment("old"), assignment("new", served_name="x")
    )
    actions = reconcile(wanted, records(running("old", 2), running("new")), ())
    assert actions == (
        RefuseAssignment(AssignmentId("../etc"), AssignmentRefusal.BAD_IDENTIFIER),
        RefuseAssignment(AssignmentId("a"), AssignmentRefusal.DUPLICATE),
        RefuseAssignment(AssignmentId("old"), AssignmentRefusal.ROLLED_BACK),
        RefuseAssignment(AssignmentId("new"), AssignmentRefusal.CONTENT_CHANGED),
        StartReplica(assignment("a")),
    )


def test_the_number_of_assignments_is_bounded() -> None:
    actions = reconcile(document(*(assignment(f"a{n}") for n in range(MAX_ASSIGNMENTS + 1))), {}, ())
    assert sum(isinstance(action, StartReplica) for action in actions) == MAX_ASSIGNMENTS
    assert RefuseAssignment(AssignmentId(f"a{MAX_ASSIGNMENTS}"), AssignmentRefusal.TOO_MANY) in actions


def test_a_recorded_start_that_no_replica_knows_is_stopped() -> None:
    strays = (StartId("start_x"), StartId("start_a"))
    assert reconcile(None, records(running("a")), strays) == (StopStray(StartId("start_x")),)


def test_before_the_first_document_what_was_found_goes_on() -> None:
    assert reconcile(None, records(running("a")), ()) == ()


@pytest.mark.parametrize("directive", [Directive.DRAIN, Directive.RETIRE])
def test_a_directive_empties_the_node(directive: Directive) -> None:
    wanted = document(assignment("a"), assignment("b"), directive=directive)
    assert reconcile(wanted, records(running("a")), ()) == (StopReplica(AssignmentId("a"), StopCause.DIRECTIVE),)


def test_a_cordoned_node_goes_on_with_what_is_assigned() -> None:
    wanted = document(assignment("a"), directive=Directive.CORDON)
    assert reconcile(wanted, {}, ()) == (StartReplica(assignment("a")),)


def test_shutdown_stops_everything_and_starts_nothing() -> None:
    actions = reconcile(document(assignment("a"), assignment("b")), records(running("a")), (), shutdown=True)
    assert actions == (StopReplica(AssignmentId("a"), StopCause.SHUTDOWN),)


NAMES = st.sampled_from(["a", "b", "c", "d"])


@st.composite
def worlds(draw: st.DrawFn) -> tuple[DesiredState, dict[AssignmentId, ReplicaRecord]]:
    wanted = draw(
        st.lists(st.builds(assignment, NAMES, st.integers(1, 3)), max_size=4, unique_by=lambda a: a.assignment)
    )
    present = draw(st.lists(st.builds(running, NAMES, st.integers(1, 3)), max_size=4))
    directive = draw(st.sampled_from(list(Directive)))
    return document(*wanted, directive=directive), records(*present)


def settle(present: dict[AssignmentId, ReplicaRecord], actions: tuple[NodeAction, ...]) -> None:
    """A world in which each action is carried out wholly."""
    for action in actions:
        match action:
            case StopReplica(assignment=name):
                del present[name]
            case StartReplica(assignment=new):
                assert new.assignment not in present, "started beside an older one"
                present[new.assignment] = running(new.assignment, new.generation)
            case StopStray() | RefuseAssignment():
                pass


@given(worlds())
def test_two_rounds_settle_any_world(world: tuple[DesiredState, dict[AssignmentId, ReplicaRecord]]) -> None:
    wanted, present = world
    for _ in range(2):
        settle(present, reconcile(wanted, present, ()))
    rest = reconcile(wanted, present, ())
    assert all(isinstance(action, RefuseAssignment) for action in rest)
    if wanted.directive in (Directive.ACTIVE, Directive.CORDON):
        generations = {one.assignment: one.generation for one in wanted.assignments}
        assert set(present) == set(generations)
        assert all(present[name].assignment.generation >= generations[name] for name in present)
    else:
        assert not present
