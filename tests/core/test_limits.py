"""One reservation, all or nothing: taken at admission, settled once with what was used, returned when refused."""

from typing import Any

import attrs
import pytest

from lunanexa_core.admission.admit import admit
from lunanexa_core.admission.limits import allowances_of, used_tokens, voided
from lunanexa_core.admission.settle import settled_as
from lunanexa_core.admission.windows import KeyWindows
from lunanexa_core.allowance import Allowance, Allowances
from lunanexa_core.binding import Ended
from lunanexa_core.commands import CreateKey, RevokeKey
from lunanexa_core.events import Event, KeyCreated, KeyRevoked, WorkloadAdmitted
from lunanexa_core.ids import Alias, KeyId
from lunanexa_core.kernel.apply import apply
from lunanexa_core.kernel.decide import decide
from lunanexa_core.keys import ApiKey, Role, secret_digest
from lunanexa_core.outcomes import Outcome, Refusal
from lunanexa_core.state import State
from lunanexa_core.time import Instant
from lunanexa_core.workload import Attempt, Settlement, Usage
from tests.core.builders import NOW, POLICY, START, after, api_key, begin, heard, request, serving_events, state_of

LIMITED = KeyId("key_2")
DIGEST = secret_digest("limited")


class Books:
    """A state with one limited key, and the events that made it, each with its wall time."""

    def __init__(self, **limits: Any) -> None:
        self.key: ApiKey = api_key(key=LIMITED, digest=DIGEST, **limits)
        self.events: list[tuple[Event, int]] = []
        self.state = state_of(serving_events())
        self.add(KeyCreated(self.key), NOW)

    def add(self, event: Event, now: Instant) -> None:
        apply(self.state, event, epoch=1, wall_ms=now.wall_ms)
        self.events.append((event, now.wall_ms))

    def admit(self, number: int, now: Instant = NOW, **changes: Any) -> WorkloadAdmitted | Ended | Refusal:
        observed = heard(now)
        before = self.state.copy()
        answer = admit(self.state, observed, POLICY, request(number, key_digest=DIGEST, **changes), now)
        assert self.state == before
        if isinstance(answer, WorkloadAdmitted):
            self.add(answer, now)
        return answer

    def settle(self, number: int, now: Instant = NOW, **settlement: Any) -> None:
        workload = self.state.open[request(number).workload]
        told = Settlement(workload=workload.request.workload, **{"outcome": None, **settlement})
        self.add(settled_as(workload, told), now)

    def left(self, now: Instant = NOW) -> Allowances:
        return allowances_of(self.state, self.key, now)

    def replayed(self) -> State:
        state = state_of(serving_events())
        for event, wall_ms in self.events:
            apply(state, event, epoch=1, wall_ms=wall_ms)
        return state


def refused(answer: WorkloadAdmitted | Ended | Refusal) -> Refusal:
    assert isinstance(answer, Refusal)
    return answer


def test_a_budget_for_one_admits_exactly_one_of_many() -> None:
    for limits in ({"concurrency": 1}, {"requests_per_minute": 1}, {"tokens_per_minute": 1_500}):
        books = Books(**limits)
        answers = [books.admit(number) for number in range(8)]
        assert [isinstance(answer, WorkloadAdmitted) for answer in answers] == [True] + [False] * 7, limits
        assert {refused(answer).outcome for answer in answers[1:]} == {Outcome.RATE_LIMITED}
        assert books.replayed() == books.state


def test_the_refusal_tells_the_true_time_and_what_is_left() -> None:
    books = Books(requests_per_minute=2, tokens_per_minute=10_000)
    books.admit(1)
    books.admit(2, after(20_000))
    told = refused(books.admit(3, after(30_000)))
    assert told.outcome is Outcome.RATE_LIMITED
    assert told.allowances == books.left(after(30_000))
    assert told.allowances.requests == Allowance(limit=2, remaining=0, reset_ms=51_000)
    assert told.allowances.tokens == Allowance(limit=10_000, remaining=7_952, reset_ms=51_000)
    assert told.wait_ms == 31_000
    assert isinstance(books.admit(3, after(30_000 + 30_999)), Refusal)
    assert isinstance(books.admit(3, after(30_000 + 31_000)), WorkloadAdmitted)


def test_one_limit_that_refuses_takes_nothing_of_the_others() -> None:
    books = Books(concurrency=5, requests_per_minute=5, tokens_per_minute=1_500)
    books.admit(1)
    before = books.left()
    refused(books.admit(2))
    assert books.left() == before
    assert books.state.open_of_key == {LIMITED: 1}


def test_a_request_that_never_fits_is_told_so() -> None:
    told = refused(Books(tokens_per_minute=1_000).admit(1))
    assert (told.outcome, told.param) == (Outcome.INVALID_REQUEST, "max_tokens")
    assert "1024" in told.message


@pytest.mark.parametrize(
    ("settlement", "requests", "tokens"),
    [
        ({"usage": Usage(input_tokens=10, output_tokens=20)}, 1, 30),
        ({"usage": Usage(output_tokens=2_000)}, 1, 2_000),
        ({"outcome": Outcome.CANCELLED_BY_CALLER, "usage": Usage(input_tokens=7, output_tokens=1)}, 1, 8),
        ({"outcome": Outcome.CANCELLED_BY_CALLER}, 0, 0),
        ({"outcome": Outcome.QUEUE_FULL}, 0, 0),
        ({"outcome": Outcome.ENGINE_FAILED, "attempts": (Attempt(start=START, failure="engine_cut"),)}, 0, 0),
        ({"attempts": (Attempt(start=START, status=400),)}, 0, 0),
        ({"attempts": (Attempt(start=START, status=200),)}, 1, 0),
    ],
)
def test_what_is_settled_is_what_was_used(settlement: dict[str, Any], requests: int, tokens: int) -> None:
    books = Books(concurrency=1, requests_per_minute=3, tokens_per_minute=5_000)
    books.admit(1)
    books.settle(1, after(5_000), **settlement)
    left = books.left(after(5_000))
    assert left.requests is not None
    assert left.tokens is not None
    assert (3 - left.requests.remaining, 5_000 - left.tokens.remaining) == (requests, tokens)
    assert LIMITED not in books.state.open_of_key
    assert books.replayed() == books.state


def test_a_settlement_after_the_minute_changes_nothing() -> None:
    books = Books(tokens_per_minute=5_000)
    books.admit(1)
    books.settle(1, after(70_000), usage=Usage(output_tokens=3_000))
    assert not books.state.windows
    assert books.state.totals_of_key[LIMITED].usage.output_tokens == 3_000


def test_windows_outlive_their_key_while_they_count() -> None:
    books = Books(requests_per_minute=3)
    books.admit(1)
    books.admit(2, after(1_500))
    books.add(KeyRevoked(LIMITED), after(2_000))
    assert voided(books.state, after(2_000)) == [request(1).workload, request(2).workload]
    books.settle(1, after(3_000), outcome=Outcome.INVALID_API_KEY)
    assert books.state.windows[LIMITED].requests.spent(after(3_000).wall_ms) == 1
    assert LIMITED not in books.state.totals_of_key
    books.add(KeyCreated(api_key(key=KeyId("key_3"), digest="ab")), after(100_000))
    assert not books.state.windows
    assert books.replayed() == books.state


def test_an_expired_key_voids_what_it_has_in_progress() -> None:
    books = Books(expires_wall_ms=after(1_000).wall_ms)
    books.admit(1)
    assert voided(books.state, after(999)) == []
    assert voided(books.state, after(1_000)) == [request(1).workload]
    assert refused(books.admit(2, after(1_000))).outcome is Outcome.INVALID_API_KEY


def test_unlimited_keys_keep_no_windows() -> None:
    books = Books()
    books.admit(1)
    books.settle(1, usage=Usage(output_tokens=1))
    assert not books.state.windows
    assert books.left() == Allowances()
    assert used_tokens(Settlement(workload=request(1).workload, outcome=None)) == 0
    assert KeyWindows().is_empty(0)


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"concurrency": 0}, "concurrency"),
        ({"requests_per_minute": -1}, "requests_per_minute"),
        ({"tokens_per_minute": 10**12}, "tokens_per_minute"),
        ({"name": ""}, "name"),
        ({"name": "a\n"}, "name"),
        ({"aliases": frozenset({Alias("")})}, "aliases"),
        ({"expires_wall_ms": NOW.wall_ms}, "expires_in_ms"),
        ({"key": KeyId("key_1")}, "key"),
        ({"key": KeyId("a b")}, "key"),
        ({"digest": api_key().digest}, "key"),
    ],
)
def test_a_key_that_can_not_be_made_names_the_field(changes: dict[str, Any], param: str) -> None:
    key = attrs.evolve(api_key(key=KeyId("key_9"), digest="cd"), **changes)
    decision = decide(state_of(serving_events()), heard(), POLICY, CreateKey(key), NOW)
    assert isinstance(decision.answer, Refusal)
    assert (decision.answer.outcome, decision.answer.param) == (Outcome.INVALID_REQUEST, param)
    assert not decision.events


def test_a_key_is_made_and_revoked_once() -> None:
    state = state_of(serving_events())
    key = api_key(key=KeyId("key_9"), digest="cd")
    made = decide(state, heard(), POLICY, CreateKey(key), NOW)
    assert made.answer == KeyCreated(attrs.evolve(key, created_wall_ms=NOW.wall_ms))
    for event in made.events:
        apply(state, event, epoch=1, wall_ms=NOW.wall_ms)
    revoked = decide(state, heard(), POLICY, RevokeKey(key.key), NOW)
    assert revoked.events == (KeyRevoked(key.key),)
    apply(state, revoked.events[0], epoch=1)
    again = decide(state, heard(), POLICY, RevokeKey(key.key), NOW).answer
    assert isinstance(again, Refusal)
    assert again.outcome is Outcome.NOT_FOUND


def test_the_last_operator_stays() -> None:
    state = State()
    keys = (api_key(), api_key(key=KeyId("key_op"), digest="ef", roles=frozenset({Role.OPERATOR})))
    for event in decide(state, heard(), POLICY, begin(keys=keys), NOW).events:
        apply(state, event, epoch=1)
    answer = decide(state, heard(), POLICY, RevokeKey(KeyId("key_op")), NOW).answer
    assert isinstance(answer, Refusal)
    assert "operator" in answer.message
