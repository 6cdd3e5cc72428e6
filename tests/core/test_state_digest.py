"""The digest of a state: equal states have equal ones, and whatever differs shows."""

from collections.abc import Callable
from typing import Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lunanexa_core.deployment import Assignment
from lunanexa_core.events import (
    AssignmentPlaced,
    AssignmentRemoved,
    EnrolmentTokenMinted,
    EpochBegan,
    KeyCreated,
    NodeEnrolled,
    WorkloadAdmitted,
    WorkloadSettled,
)
from lunanexa_core.ids import AssignmentId, HolderId, KeyId, NodeId, TenantId
from lunanexa_core.kernel.apply import apply
from lunanexa_core.keys import Role
from lunanexa_core.state import State
from lunanexa_core.state_digest import digest_parts, state_digest, table_sizes
from lunanexa_core.workload import Attempt, LedgerPlace, Receipt, Settlement, Usage
from tests.core.builders import (
    DEPLOYMENT,
    NODE,
    NOW,
    START,
    api_key,
    certificate,
    joining,
    request,
    serving_events,
    state_of,
)
from tests.examples import examples


def place_of(sequence: int) -> LedgerPlace:
    return LedgerPlace(sequence=sequence, previous="0" * 64, hash="1" * 64)


TABLES = [field.name for field in attrs.fields(State) if isinstance(getattr(State(), field.name), dict)]


def full_state() -> State:
    """Something in every table that changes by itself."""
    state = state_of(
        [*serving_events(), KeyCreated(api_key(key=KeyId("key_2"), digest="cd" * 32, tokens_per_minute=9))]
    )
    for number in range(1, 4):
        asked = request(number, idempotency=f"{number:064x}", binding="ab" * 32, retain_ms=5)
        key = KeyId("key_2" if number == 2 else api_key().key)
        admitted = WorkloadAdmitted(request=asked, key=key, tenant=TenantId("local"), deployment=DEPLOYMENT)
        apply(state, admitted, epoch=1, wall_ms=NOW.wall_ms, place=place_of(number))
    mint, _ = joining(NodeId("node-2"))
    minted = EnrolmentTokenMinted(node=mint.node, token=mint.token, digest=mint.digest, expires_wall_ms=NOW.wall_ms)
    again = NodeEnrolled(
        node=NODE, public_key="bb" * 32, agent_version="0.1.0", token="tok_2", certificate=certificate(2)
    )
    spare = Assignment(assignment=AssignmentId("asg_2"), deployment=DEPLOYMENT, node=NODE, generation=1)
    began = EpochBegan(version="0.1.0", holder=HolderId("holder_1"), node_url="https://ctl-1:8401")
    for event in (minted, again, AssignmentPlaced(spare), AssignmentRemoved(spare.assignment), began):
        apply(state, event, epoch=1, wall_ms=NOW.wall_ms)
    settled = Receipt(
        workload=request(1).workload,
        request=request(1).request,
        tenant=TenantId("local"),
        key=api_key().key,
        alias=request(1).alias,
        deployment=DEPLOYMENT,
        dialect=request(1).dialect,
        settlement=Settlement(
            workload=request(1).workload,
            outcome=None,
            usage=Usage(input_tokens=3),
            attempts=(Attempt(start=START),),
            kept=True,
        ),
    )
    apply(state, WorkloadSettled(settled), epoch=1, wall_ms=NOW.wall_ms, place=place_of(4))
    return state


@settings(max_examples=examples(25))
@given(st.randoms(use_true_random=False))
def test_equal_states_have_equal_digests(random: Any) -> None:
    state, other = full_state(), State()
    for field in attrs.fields(State):
        value = getattr(state, field.name)
        if isinstance(value, dict):
            entries = list(value.items())
            random.shuffle(entries)
            value = dict(entries)
        setattr(other, field.name, value)
    assert other == state
    assert state_digest(other) == state_digest(state)


def test_the_order_of_a_set_does_not_count() -> None:
    orders = ([Role.OPERATOR, Role.AUDITOR, Role.INFERENCE], [Role.INFERENCE, Role.AUDITOR, Role.OPERATOR])
    digests = {state_digest(state_of([KeyCreated(api_key(roles=frozenset(order)))])) for order in orders}
    assert len(digests) == 1


@pytest.mark.parametrize("table", TABLES)
def test_every_entry_counts(table: str) -> None:
    state = full_state()
    whole, entries = state_digest(state), getattr(state, table)
    assert table_sizes(state)[table] == len(entries)
    assert entries, "the test looks at nothing"
    entries.pop(next(iter(entries)))
    assert state_digest(state) != whole


@pytest.mark.parametrize(
    "change",
    [
        lambda state: setattr(state, "epoch", 2),
        lambda state: setattr(state, "cluster", None),
        lambda state: state.keys.update({KeyId("key_2"): attrs.evolve(state.keys[KeyId("key_2")], name="")}),
        lambda state: state.open_of_key.update({KeyId("key_2"): 7}),
        lambda state: state.admitted.update({request(1).workload: 8}),
    ],
)
def test_every_value_counts(change: Callable[[State], None]) -> None:
    state = full_state()
    whole = state_digest(state)
    change(state)
    assert state_digest(state) != whole


def test_parts_are_small() -> None:
    """Whoever counts them together may pause between any two."""
    state = full_state()
    entries = sum(table_sizes(state).values())
    assert len(list(digest_parts(state))) == entries + len(attrs.fields(State)) - len(table_sizes(state))
