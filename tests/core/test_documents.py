"""Which signed document may follow which on a node."""

from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lunanexa_core.deployment import EngineSpec
from lunanexa_core.ids import AssignmentId, ClusterId, DeploymentId, NodeId
from lunanexa_core.southbound.documents import (
    DesiredAssignment,
    DesiredState,
    Directive,
    DocumentRefusal,
    check_order,
)

CLUSTER, NODE = ClusterId("cl_1"), NodeId("node-1")

assignments = st.builds(
    lambda name, generation: DesiredAssignment(
        assignment=AssignmentId(name),
        generation=generation,
        deployment=DeploymentId("d1"),
        engine=EngineSpec(driver="reference", served_name="tiny"),
    ),
    st.sampled_from(["asg_1", "asg_2"]),
    st.integers(1, 2),
)
documents = st.builds(
    DesiredState,
    cluster=st.just(CLUSTER),
    node=st.just(NODE),
    epoch=st.integers(1, 3),
    generation=st.integers(1, 3),
    directive=st.sampled_from([Directive.ACTIVE, Directive.DRAIN]),
    assignments=st.lists(assignments, max_size=1).map(tuple),
)


def order(accepted: DesiredState | None, offered: DesiredState) -> DocumentRefusal | None:
    return check_order(accepted, offered, cluster=CLUSTER, node=NODE)


@given(documents)
def test_a_node_without_a_document_takes_any_of_its_own(offered: DesiredState) -> None:
    assert order(None, offered) is None


@given(documents)
def test_the_same_document_may_come_again(document: DesiredState) -> None:
    assert order(document, document) is None


@given(st.lists(documents, max_size=12))
def test_neither_epoch_nor_generation_ever_falls(offers: list[DesiredState]) -> None:
    accepted: DesiredState | None = None
    for offered in offers:
        if order(accepted, offered) is None:
            if accepted is not None:
                assert offered.epoch >= accepted.epoch
                assert offered.generation >= accepted.generation
                assert offered.order >= accepted.order
            accepted = offered


@given(documents, documents)
def test_each_refusal_has_its_cause(accepted: DesiredState, offered: DesiredState) -> None:
    fallen = offered.epoch < accepted.epoch or offered.generation < accepted.generation
    same_content = attrs.evolve(offered, epoch=accepted.epoch) == accepted
    changed = offered.generation == accepted.generation and not same_content
    expected = DocumentRefusal.ROLLED_BACK if fallen else DocumentRefusal.CONTENT_CHANGED if changed else None
    assert order(accepted, offered) is expected


@given(documents, documents, documents)
def test_following_is_transitive(first: DesiredState, second: DesiredState, third: DesiredState) -> None:
    if order(first, second) is None and order(second, third) is None:
        assert order(first, third) is None


@given(documents, st.integers(1, 3))
def test_a_new_leader_may_sign_the_same_again(accepted: DesiredState, step: int) -> None:
    assert order(accepted, attrs.evolve(accepted, epoch=accepted.epoch + step)) is None


@pytest.mark.parametrize(
    ("change", "refusal"),
    [
        ({"cluster": ClusterId("cl_2")}, DocumentRefusal.OTHER_CLUSTER),
        ({"node": NodeId("node-2")}, DocumentRefusal.OTHER_NODE),
    ],
)
@given(document=documents, accepts=st.booleans())
def test_a_document_for_another_is_never_followed(
    change: dict[str, Any], refusal: DocumentRefusal, document: DesiredState, accepts: bool
) -> None:
    offered = attrs.evolve(document, generation=9, **change)
    assert order(document if accepts else None, offered) is refusal
