"""A replay that stands on what was carried gives the state of one from the beginning; and only what may leave does."""

from collections.abc import Iterator
from typing import Any, TypeAlias

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lunanexa_core.admission.idempotency import freed
from lunanexa_core.admission.settle import settled
from lunanexa_core.commands import PruneLedger
from lunanexa_core.events import (
    KIND_OF_TYPE,
    Event,
    KeyCreated,
    KeyRevoked,
    LedgerPruned,
    WorkloadAdmitted,
    WorkloadSettled,
)
from lunanexa_core.ids import KeyId, TenantId, WorkloadId
from lunanexa_core.journal import Chain, Pruned
from lunanexa_core.kernel.apply import apply
from lunanexa_core.kernel.decide import Done, decide
from lunanexa_core.ledger_carry import carry_of, install_carry
from lunanexa_core.ledger_retention import (
    AT_ONCE_RECEIPTS,
    SLACK_MS_MAX,
    outdated,
    prune_limit,
    surplus_receipts,
)
from lunanexa_core.outcomes import Outcome, Refusal
from lunanexa_core.policy import Policy
from lunanexa_core.state import RECENT_RECEIPTS, State
from lunanexa_core.state_digest import state_digest
from lunanexa_core.time import Instant
from lunanexa_core.workload import LedgerPlace, Settlement, Usage
from tests.core.builders import DEPLOYMENT, NOW, api_key, heard, request, serving_events

POLICY = Policy(idempotency_ms=5_000)
LIMITED = api_key(key=KeyId("key_2"), digest="d" * 64, tenant=TenantId("other"), requests_per_minute=9**9)


@attrs.frozen
class Record:
    """What a row of that sequence tells."""

    sequence: int
    event: Event
    wall_ms: int

    @property
    def in_ledger(self) -> bool:
        return KIND_OF_TYPE[type(self.event)].chain is Chain.LEDGER


def read(state: State, record: Record) -> None:
    hashes = [f"{record.sequence - back:064x}" for back in (1, 0)]
    place = LedgerPlace(sequence=record.sequence, previous=hashes[0], hash=hashes[1]) if record.in_ledger else None
    apply(state, record.event, epoch=1, wall_ms=record.wall_ms, place=place)


class Books:
    """What a kernel wrote, by itself and by hand."""

    def __init__(self) -> None:
        self.state = State()
        self.records: list[Record] = []
        self.wall_ms = NOW.wall_ms
        for event in (*serving_events(), KeyCreated(LIMITED)):
            self.write(event)

    def write(self, event: Event) -> None:
        record = Record(len(self.records) + 1, event, self.wall_ms)
        self.records.append(record)
        read(self.state, record)

    def admit(self, number: int, idempotency: int | None) -> None:
        bound = None if idempotency is None else f"bound {idempotency}"
        held = self.state.bindings.get(bound or "")
        key = list(self.state.keys.values())[number % len(self.state.keys)]
        if held is None or held.workload not in self.state.open:
            asked = request(len(self.records), idempotency=bound, binding=None if bound is None else "body")
            self.write(WorkloadAdmitted(request=asked, key=key.key, tenant=key.tenant, deployment=DEPLOYMENT))

    def settle(self, number: int, outcome: Outcome | None) -> None:
        if self.state.open:
            workload = list(self.state.open)[number % len(self.state.open)]
            usage = Usage(input_tokens=number, output_tokens=1)
            self.write(settled(self.state, Settlement(workload=workload, outcome=outcome, usage=usage)))

    def tick(self, passed_ms: int) -> None:
        self.wall_ms += passed_ms
        for event in freed(self.state, POLICY, Instant(0, self.wall_ms)):
            self.write(event)

    def change_key(self) -> None:
        self.write(KeyRevoked(LIMITED.key) if LIMITED.key in self.state.keys else KeyCreated(LIMITED))

    def serve(self, number: int) -> None:
        for one in range(number):
            self.admit(one, None)
            self.settle(len(self.state.open) - 1, None)

    def as_of(self, until: int) -> State:
        state = State()
        for record in self.records[:until]:
            read(state, record)
        return state

    def pruning(self, until: int) -> LedgerPruned:
        before = self.records[:until]
        return LedgerPruned(
            after=0 if self.state.pruned is None else self.state.pruned.until,
            until=until,
            count=sum(record.in_ledger for record in before),
            receipts=sum(isinstance(record.event, WorkloadSettled) for record in before),
            ledger="e" * 64,
            carry="",
        )

    def prune(self, until: int) -> None:
        decision = decide(self.state, heard(), POLICY, PruneLedger(self.pruning(until)), NOW)
        assert decision.answer == Done()
        for event in decision.events:
            self.write(event)

    def pruned_replay(self, pruning: LedgerPruned) -> State:
        """Without the ledger's rows up to the prune point."""
        state, installed = State(), False
        for record in self.records:
            if record.sequence > pruning.until and not installed:
                install_carry(state, carry_of(self.as_of(pruning.until)))
                installed = True
            if record.sequence > pruning.until or not record.in_ledger:
                read(state, record)
        return state


def deep(state: State) -> Iterator[object]:
    """Everything, with the order of what is in one."""
    for field in attrs.fields(State):
        value = getattr(state, field.name)
        ordered = field.name in {"open", "receipts", "bindings"}
        yield field.name, list(value.items()) if ordered else value


Steps: TypeAlias = list[tuple[Any, ...]]
steps = st.lists(
    st.one_of(
        st.tuples(st.just(Books.admit), st.integers(0, 5), st.none() | st.integers(0, 6)),
        st.tuples(st.just(Books.settle), st.integers(0, 5), st.sampled_from([None, Outcome.ENGINE_FAILED])),
        st.tuples(st.just(Books.tick), st.sampled_from([0, 900, 4_000, 70_000])),
        st.tuples(st.just(Books.change_key)),
    ),
    max_size=40,
)


@pytest.mark.slow
@settings(max_examples=8, deadline=None)
@given(before=steps, after=steps, share=st.integers(0, 1_000), again=st.integers(1, 60))
def test_a_replay_from_what_was_carried_is_equal(before: Steps, after: Steps, share: int, again: int) -> None:
    books = Books()
    for step, *arguments in before:
        step(books, *arguments)
    for _ in range(len(books.state.open) - share % 3):
        books.settle(0, None)
    books.serve(RECENT_RECEIPTS + 40)
    for step, *arguments in after:
        step(books, *arguments)
    limit = prune_limit(books.state)
    for until in sorted({1 + limit * share // 1_001, min(limit, 1 + limit * share // 1_001 + again)}):
        if until > (0 if books.state.pruned is None else books.state.pruned.until) and until <= limit:
            pruning = books.pruning(until)
            if pruning.count == (0 if books.state.pruned is None else books.state.pruned.rows):
                continue
            books.prune(until)
            books.serve(again)
            replayed = books.pruned_replay(pruning)
            assert list(deep(replayed)) == list(deep(books.state))
            assert state_digest(replayed) == state_digest(books.state)
            assert books.state.pruned == pruning.pruned


def test_nothing_leaves_that_a_replay_needs() -> None:
    books = Books()
    first = len(books.records) + 1
    books.serve(RECENT_RECEIPTS - 1)
    assert prune_limit(books.state) == 0
    books.admit(0, None)
    oldest = len(books.records)
    assert prune_limit(books.state) == 0
    books.serve(1)
    assert prune_limit(books.state) == first  # The receipt of the first stands behind its admission.
    books.serve(2 * RECENT_RECEIPTS)
    assert prune_limit(books.state) == oldest - 1
    refused = decide(books.state, heard(), POLICY, PruneLedger(books.pruning(oldest)), NOW)
    assert isinstance(refused.answer, Refusal)
    assert not refused.events
    books.settle(0, None)
    assert prune_limit(books.state) > oldest
    books.prune(oldest)
    for until in (oldest, oldest - 1):
        assert isinstance(decide(books.state, heard(), POLICY, PruneLedger(books.pruning(until)), NOW).answer, Refusal)


def test_pruning_changes_nothing_else() -> None:
    books = Books()
    books.serve(RECENT_RECEIPTS + 10)
    before = books.state.copy()
    books.prune(20)
    assert books.state.pruned is not None
    assert attrs.evolve(books.state, pruned=None) == before


@pytest.mark.parametrize(
    ("keep", "there", "leave"),
    [
        (0, 10**7, 0),
        (1, 1_024, 0),
        (1, 1_074, 0),
        (1, 1_075, 51),
        (2_000, 2_100, 100),
        (10**6, 10**6 + 49_999, 0),
        (10**6, 10**6 + 50_000, 50_000),
        (10**6, 10**7, AT_ONCE_RECEIPTS),
    ],
)
def test_receipts_leave_for_their_number(keep: int, there: int, leave: int) -> None:
    books = Books()
    books.serve(1)
    state = books.state
    state.totals = {tenant: attrs.evolve(totals, requests=there + 7) for tenant, totals in state.totals.items()}
    state.pruned = Pruned(after=0, until=1, rows=14, receipts=7, ledger="e" * 64)
    assert surplus_receipts(state, Policy(ledger_keep_receipts=keep)) == leave


@given(keep=st.integers(1, 10**12), wall_ms=st.integers(0, 10**13))
def test_what_is_older_than_is_kept_leaves_within_a_day(keep: int, wall_ms: int) -> None:
    assert outdated(Policy(), wall_ms) is None
    found = outdated(Policy(ledger_keep_ms=keep), wall_ms)
    assert found is not None
    assert found.before_wall_ms == wall_ms - keep
    assert 0 <= found.before_wall_ms - found.once_wall_ms <= min(keep / 20, SLACK_MS_MAX)


def test_a_workload_that_was_open_and_keys_that_were_bound_go_on() -> None:
    """Its admission is before the prune point, its receipt after it."""
    books = Books()
    for key in (3, 1):
        books.admit(0, key)
        books.settle(0, None)
    books.admit(0, 2)
    workload = WorkloadId(f"wl_{len(books.records) - 1}")
    books.serve(50)
    until = len(books.records)
    books.settle(0, None)
    books.serve(RECENT_RECEIPTS)
    pruning = books.pruning(until)
    carried = carry_of(books.as_of(until))
    assert [one.workload.request.workload for one in carried.open] == [workload]
    books.prune(until)
    assert len(books.state.bindings) == 3
    assert list(deep(books.pruned_replay(pruning))) == list(deep(books.state))
    assert any(isinstance(record.event, WorkloadSettled) for record in books.records[until:])
