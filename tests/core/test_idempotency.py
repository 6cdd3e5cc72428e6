"""Idempotency keys: one workload for one key, whatever is asked again, restarted or expired in between."""

import attrs
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from lunanexa_core.admission.admit import admit
from lunanexa_core.binding import Ended, bound_key, frees_key
from lunanexa_core.commands import AdmitWorkload, Command, SettleWorkload, Tick
from lunanexa_core.events import Event, KeyCreated, WorkloadAdmitted
from lunanexa_core.ids import KeyId, StartId, TenantId, WorkloadId
from lunanexa_core.kernel.apply import apply
from lunanexa_core.kernel.decide import Answer, decide
from lunanexa_core.keys import secret_digest
from lunanexa_core.outcomes import TABLE, Outcome, Refusal
from lunanexa_core.policy import Policy
from lunanexa_core.state import State
from lunanexa_core.time import Instant
from lunanexa_core.workload import Attempt, DataClass, Priority, Settlement, WorkloadRequest
from tests.core.builders import ALIAS, NOW, SESSION, after, api_key, heard, request, serving_events, spec, state_of
from tests.examples import examples

KEYS = ("k1", "k2", "k3")
BODIES = ("body a", "body b")
TENANTS = {TenantId("default"): "s" * 40, TenantId("other"): "t" * 40}
HOUR_MS = 3_600_000
POLICY = Policy(queue_requests_max=1_000, idempotency_ms=HOUR_MS, bindings_max=2)
OUTCOMES = (None, Outcome.CANCELLED_BY_CALLER, Outcome.INTERNAL, Outcome.ENGINE_FAILED, Outcome.QUEUE_FULL)


def asked(number: int, key: str | None, body: str = BODIES[0], **changes: object) -> WorkloadRequest:
    idempotency = None if key is None else secret_digest(key)
    return request(number, idempotency=idempotency, binding=secret_digest(body), **changes)


def refusal(found: object) -> Refusal:
    assert isinstance(found, Refusal), found
    return found


def test_the_caller_s_own_key_is_not_in_what_is_written() -> None:
    admitted = admit(state_of(serving_events()), heard(), POLICY, asked(1, "k1"), NOW)
    assert isinstance(admitted, WorkloadAdmitted)
    bound = bound_key(TenantId("default"), secret_digest("k1"))
    assert admitted.request.idempotency == bound
    assert bound not in ("k1", secret_digest("k1"), bound_key(TenantId("other"), secret_digest("k1")))


@pytest.mark.parametrize("outcome", [None, *Outcome])
def test_retryable_ends_free_the_key(outcome: Outcome | None) -> None:
    settlement = Settlement(workload=WorkloadId("wl_1"), outcome=outcome)
    assert frees_key(settlement) is (outcome is not None and TABLE[outcome].retry)
    for status in (200, 400, 404, 408, 422, 429):
        attempts = (Attempt(start=StartId("st_1"), status=status),)
        told = attrs.evolve(settlement, outcome=None, attempts=attempts)
        assert frees_key(told) is (status in (408, 429))


def test_what_ended_is_answered_whatever_became_of_its_model() -> None:
    """But only to who may use the model."""
    state = state_of(serving_events())
    observed = heard()
    first = admit(state, observed, POLICY, asked(2, "k1"), NOW)
    assert isinstance(first, WorkloadAdmitted)
    apply(state, first, epoch=1, wall_ms=NOW.wall_ms)
    settle = SettleWorkload(Settlement(workload=WorkloadId("wl_2"), outcome=None))
    for event in decide(state, observed, POLICY, settle, NOW).events:
        apply(state, event, epoch=1, wall_ms=NOW.wall_ms)
    observed.draining = True
    del state.deployment_of_alias[ALIAS]
    assert admit(state, observed, POLICY, asked(3, "k1"), NOW) == Ended(workload=WorkloadId("wl_2"), kept=False)
    stranger = api_key(key=KeyId("key_2"), digest=secret_digest("u" * 40), aliases=frozenset({"another"}))
    apply(state, KeyCreated(stranger), epoch=1)
    found = refusal(admit(state, observed, POLICY, asked(3, "k1", key_digest=stranger.digest), NOW))
    assert found.outcome is Outcome.MODEL_NOT_FOUND


def test_the_name_of_what_a_key_stands_for_is_taken() -> None:
    """Or the key would be answered with what another request got."""
    state, observed = state_of(serving_events()), heard()
    first = admit(state, observed, POLICY, asked(2, "k1"), NOW)
    assert isinstance(first, WorkloadAdmitted)
    apply(state, first, epoch=1, wall_ms=NOW.wall_ms)
    settle = SettleWorkload(Settlement(workload=WorkloadId("wl_2"), outcome=None))
    for event in decide(state, observed, POLICY, settle, NOW).events:
        apply(state, event, epoch=1, wall_ms=NOW.wall_ms)
    state.receipts.clear()  # As newer ones push it out.
    for key in ("k2", None):
        assert refusal(admit(state, observed, POLICY, asked(2, key), NOW)).outcome is Outcome.WORKLOAD_ACTIVE
    later = after(HOUR_MS)
    for event in decide(state, heard(later), POLICY, Tick(), later).events:
        apply(state, event, epoch=1, wall_ms=later.wall_ms)
    assert not state.bound
    assert isinstance(admit(state, heard(later), POLICY, asked(2, "k2"), later), WorkloadAdmitted)


def test_a_tick_frees_only_so_many_at_once() -> None:
    state, observed = state_of(serving_events()), heard()
    policy = attrs.evolve(POLICY, bindings_max=10_000, queue_requests_max=5_000)
    for number in range(1_200):
        admitted = admit(state, observed, policy, asked(number, f"k{number}"), NOW)
        assert isinstance(admitted, WorkloadAdmitted)
        apply(state, admitted, epoch=1, wall_ms=NOW.wall_ms)
        if number != 7:
            settlement = Settlement(workload=admitted.request.workload, outcome=None)
            (settled,) = decide(state, observed, policy, SettleWorkload(settlement), NOW).events
            apply(state, settled, epoch=1, wall_ms=NOW.wall_ms)
    later, left = after(HOUR_MS), []
    for _ in range(3):
        observed = heard(later)
        observed.admitted_mono_ms[WorkloadId("wl_7")] = later.mono_ms
        for event in decide(state, observed, policy, Tick(), later).events:
            apply(state, event, epoch=1, wall_ms=later.wall_ms)
        left.append(len(state.bindings))
    assert left == [200, 1, 1]
    assert state.bindings_of_tenant == {"default": 1}


@pytest.mark.parametrize(
    ("changes", "key", "deployment", "param"),
    [
        ({"tenant": TenantId("other")}, {}, {}, "tenant"),
        ({"priority": Priority.CRITICAL}, {"priority_max": Priority.INTERACTIVE}, {}, "priority"),
        (
            {"classification": DataClass.RESTRICTED},
            {"data_class_max": DataClass.CONFIDENTIAL},
            {},
            "data_policy.classification",
        ),
        (
            {"classification": DataClass.INTERNAL},
            {},
            {"data_class_max": DataClass.PUBLIC},
            "data_policy.classification",
        ),
    ],
)
def test_what_is_not_granted(
    changes: dict[str, object], key: dict[str, object], deployment: dict[str, object], param: str
) -> None:
    state = state_of(serving_events())
    apply(state, KeyCreated(api_key(**key)), epoch=1)
    found = state.deployments[spec().deployment]
    state.deployments[spec().deployment] = attrs.evolve(found, spec=spec(**deployment))
    denied = refusal(admit(state, heard(), POLICY, request(1, **changes), NOW))
    assert (denied.outcome, denied.param) == (Outcome.PERMISSION_DENIED, param)
    lower = {"tenant": TenantId("default"), "priority": Priority.BACKGROUND, "classification": DataClass.PUBLIC}
    assert isinstance(admit(state, heard(), POLICY, request(1, **lower), NOW), WorkloadAdmitted)


@pytest.mark.parametrize(("offer_ms", "words"), [(1_000, "up to 1000 ms"), (0, "No answer is kept here")])
def test_no_answer_is_kept_for_longer_than_is_on_offer(offer_ms: int, words: str) -> None:
    state, policy = state_of(serving_events()), attrs.evolve(POLICY, retain_ms_max=offer_ms)
    found = refusal(admit(state, heard(), policy, request(1, retain_ms=offer_ms + 1), NOW))
    assert found.outcome is Outcome.RETENTION_UNAVAILABLE
    assert words in found.message
    allowed = offer_ms or None
    assert isinstance(admit(state, heard(), policy, request(1, retain_ms=allowed), NOW), WorkloadAdmitted)


@attrs.define(kw_only=True)
class Book:
    """What an honest bookkeeper knows of one key of one tenant."""

    body: str
    workload: WorkloadId
    open: bool = True
    since_ms: int
    retain_ms: int | None
    kept: bool = False


class IdempotencyMachine(RuleBasedStateMachine):
    """Callers of two tenants ask, again and again; the machine keeps its own book of what each key stands for."""

    def __init__(self) -> None:
        super().__init__()
        self.now: Instant = NOW
        self.state = State()
        self.history: list[tuple[Event, int, int]] = []
        self.epoch = 1
        self.number = 0
        self.book: dict[tuple[str, str], Book] = {}
        others = [
            KeyCreated(api_key(key=KeyId(f"key_{tenant}"), tenant=tenant, digest=secret_digest(secret)))
            for tenant, secret in TENANTS.items()
        ]
        for event in [*serving_events(), *others]:
            self.take(event)

    def take(self, event: Event) -> None:
        apply(self.state, event, epoch=self.epoch, wall_ms=self.now.wall_ms)
        self.history.append((event, self.epoch, self.now.wall_ms))

    def ask(self, command: Command) -> Answer:
        observed = heard(self.now)
        observed.sessions[SESSION] = self.now.mono_ms + 10**12
        for workload in self.state.open:
            observed.admitted_mono_ms[workload] = self.now.mono_ms
        decision = decide(self.state, observed, POLICY, command, self.now)
        for event in decision.events:
            self.take(event)
        return decision.answer

    def free(self, book: Book) -> bool:
        return not book.open and self.now.wall_ms - book.since_ms >= max(HOUR_MS, book.retain_ms or 0)

    @rule(
        tenant=st.sampled_from(list(TENANTS)),
        key=st.sampled_from(KEYS),
        body=st.sampled_from(BODIES),
        retain_ms=st.sampled_from([None, HOUR_MS // 2, 2 * HOUR_MS]),
    )
    def asks(self, tenant: TenantId, key: str, body: str, retain_ms: int | None) -> None:
        self.number += 1
        digest, bound = secret_digest(TENANTS[tenant]), self.state.bindings_of_tenant.get(tenant, 0)
        answer = self.ask(AdmitWorkload(asked(self.number, key, body, key_digest=digest, retain_ms=retain_ms)))
        book = self.book.get((tenant, key))
        if book is not None and not self.free(book):
            if book.body != body:
                assert refusal(answer).outcome is Outcome.IDEMPOTENCY_MISMATCH
            elif book.open:
                assert refusal(answer).outcome is Outcome.WORKLOAD_ACTIVE
                assert refusal(answer).wait_ms is not None
            else:
                kept = book.kept and self.now.wall_ms - book.since_ms < (book.retain_ms or 0)
                assert answer == Ended(workload=book.workload, kept=kept)
        elif book is None and bound >= POLICY.bindings_max:
            assert refusal(answer).outcome is Outcome.QUOTA_EXCEEDED
        else:
            assert isinstance(answer, WorkloadAdmitted), answer
            workload = answer.request.workload
            self.book[tenant, key] = Book(body=body, workload=workload, since_ms=self.now.wall_ms, retain_ms=retain_ms)

    @rule(
        number=st.integers(0, 3),
        outcome=st.sampled_from(OUTCOMES),
        kept=st.booleans(),
    )
    def ends(self, number: int, outcome: Outcome | None, kept: bool) -> None:
        if not self.state.open:
            return
        workload = list(self.state.open)[number % len(self.state.open)]
        self.ask(SettleWorkload(Settlement(workload=workload, outcome=outcome, kept=kept and outcome is None)))
        ((name, book),) = [one for one in self.book.items() if one[1].workload == workload]
        if outcome is not None and TABLE[outcome].retry:
            del self.book[name]
        else:
            book.open, book.since_ms, book.kept = False, self.now.wall_ms, kept and outcome is None

    @rule(ms=st.sampled_from([1_000, HOUR_MS // 2, HOUR_MS]))
    def time_passes(self, ms: int) -> None:
        self.now = Instant(self.now.mono_ms + ms, self.now.wall_ms + ms)

    @rule()
    def tick(self) -> None:
        self.ask(Tick())
        self.book = {name: book for name, book in self.book.items() if not self.free(book)}
        assert {binding.workload for binding in self.state.bindings.values()} == {
            book.workload for book in self.book.values()
        }

    @rule()
    def restart(self) -> None:
        self.epoch += 1
        self.state = self.replayed()

    def replayed(self) -> State:
        state = State()
        for event, epoch, wall_ms in self.history:
            apply(state, event, epoch=epoch, wall_ms=wall_ms)
        return state

    @invariant()
    def replay_is_equal(self) -> None:
        replayed = self.replayed()
        assert replayed == self.state
        assert list(replayed.bindings) == list(self.state.bindings)

    @invariant()
    def keys_are_bounded_and_counted(self) -> None:
        tenants = [binding.tenant for binding in self.state.bindings.values()]
        assert self.state.bindings_of_tenant == {tenant: tenants.count(tenant) for tenant in set(tenants)}
        assert all(count <= POLICY.bindings_max for count in self.state.bindings_of_tenant.values())

    @invariant()
    def nothing_runs_twice_for_one_key(self) -> None:
        keys = [workload.request.idempotency for workload in self.state.open.values()]
        assert len(set(keys)) == len(keys)
        times = [binding.since_wall_ms for binding in self.state.bindings.values()]
        assert times == sorted(times)


IdempotencyMachine.TestCase.settings = settings(max_examples=examples(30), stateful_step_count=30, deadline=None)
TestIdempotencyMachine = IdempotencyMachine.TestCase
