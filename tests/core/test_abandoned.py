"""Who settles a workload that its gateway does not: each has a receipt in the end."""

import attrs
from hypothesis import given
from hypothesis import strategies as st

from lunanexa_core.admission.settle import abandoned
from lunanexa_core.commands import AdmitWorkload, Command, FailAttempt, OpenSession, Tick
from lunanexa_core.kernel.absorb import absorb
from lunanexa_core.kernel.apply import apply
from lunanexa_core.kernel.decide import decide
from lunanexa_core.observed import Observed
from lunanexa_core.outcomes import Outcome
from lunanexa_core.routing.pick import deny_waiting, grant_waiting
from lunanexa_core.state import State
from lunanexa_core.time import Instant
from lunanexa_core.workload import Attempt
from tests.core.builders import (
    NOW,
    POLICY,
    SESSION,
    START,
    after,
    heard,
    heartbeat,
    report,
    reported,
    request,
    serving_events,
    state_of,
)

DUE_MS = request().deadline_ms
OVERDUE_MS = DUE_MS + POLICY.overdue_ms


def ask(state: State, observed: Observed, command: Command, now: Instant = NOW) -> None:
    decision = decide(state, observed, POLICY, command, now)
    for event in decision.events:
        apply(state, event, epoch=state.epoch)
    absorb(state, observed, POLICY, command, decision, now)
    grant_waiting(state, observed, POLICY, now)
    deny_waiting(state, observed, POLICY, now)


def one_open() -> tuple[State, Observed]:
    state, observed = state_of(serving_events()), heard()
    ask(state, observed, AdmitWorkload(request()))
    return state, observed


def details(state: State, observed: Observed, now: Instant) -> list[str | None]:
    observed.sessions[SESSION] = now.mono_ms + 1
    return [event.receipt.settlement.detail for event in abandoned(state, observed, POLICY, now)]


def test_a_live_gateway_that_forgot_a_workload_is_told_its_end_after_the_grace() -> None:
    state, observed = one_open()
    assert details(state, observed, after(DUE_MS)) == []
    assert details(state, observed, after(OVERDUE_MS - 1)) == []
    assert details(state, observed, after(OVERDUE_MS)) == ["overdue"]
    (event,) = abandoned(state, observed, POLICY, after(OVERDUE_MS))
    settlement = event.receipt.settlement
    assert (settlement.outcome, settlement.total_ms) == (Outcome.INTERNAL, OVERDUE_MS)


def test_the_grace_begins_anew_when_the_kernel_stood_still() -> None:
    """Else a pause longer than the grace would take the word from a gateway that paused as well."""
    state, observed = one_open()
    pause_ms = 2 * OVERDUE_MS
    observed.stood_still(pause_ms, after(pause_ms).mono_ms)
    assert details(state, observed, after(pause_ms)) == []
    assert details(state, observed, after(pause_ms + POLICY.overdue_ms - 1)) == []
    assert details(state, observed, after(pause_ms + POLICY.overdue_ms)) == ["overdue"]


def test_a_pause_before_the_deadline_lengthens_nothing() -> None:
    state, observed = one_open()
    observed.stood_still(DUE_MS // 2, after(DUE_MS // 2).mono_ms)
    assert details(state, observed, after(OVERDUE_MS)) == ["overdue"]


def test_what_an_earlier_leader_admitted_is_overdue_by_the_clock_of_this_one() -> None:
    state, _ = one_open()
    state.epoch = 2
    observed = Observed(began_mono_ms=after(1_000).mono_ms)
    assert details(state, observed, after(OVERDUE_MS + 999)) == []
    assert details(state, observed, after(OVERDUE_MS + 1_000)) == ["overdue"]


def test_what_was_open_when_its_leader_came_back_is_its_gateways_no_more() -> None:
    """The gateway that lives beside a kernel keeps its session while that follows, and ends what it had in hand."""
    state, _ = one_open()
    state.epoch = 3
    began, lease_ms = after(1_000), POLICY.session_lease_ms
    live = {SESSION: after(OVERDUE_MS).mono_ms}
    kept = Observed(began_mono_ms=began.mono_ms, sessions=live)
    assert details(state, kept, after(1_000 + lease_ms)) == []
    back = Observed(began_mono_ms=began.mono_ms, sessions=live, left=frozenset(state.open))
    assert details(state, back, after(1_000 + lease_ms - 1)) == []
    assert details(state, back, after(1_000 + lease_ms)) == ["controller_restarted"]


def test_each_workload_has_its_own_deadline() -> None:
    state, observed = one_open()
    ask(state, observed, AdmitWorkload(attrs.evolve(request(2), deadline_ms=2 * DUE_MS)))
    observed.sessions[SESSION] = after(OVERDUE_MS + 1).mono_ms
    ended = [event.receipt.workload for event in abandoned(state, observed, POLICY, after(OVERDUE_MS))]
    assert ended == [request().workload]


STEPS = st.lists(
    st.tuples(
        st.integers(0, DUE_MS // 2),
        st.sampled_from(["pause", "leader", "session", "report", "failed", "restarted", "tick"]),
    ),
    max_size=12,
)


@given(steps=STEPS, lives=st.booleans())
def test_whatever_happens_a_workload_has_its_receipt_after_deadline_and_grace(
    steps: list[tuple[int, str]], lives: bool
) -> None:
    """Its gateway, which never settles it, may live or not; leaders, nodes and replicas come and go. A later leader
    knows no time of admission but its own beginning, and what it stood still does not count."""
    state, observed = one_open()
    now_ms, due_ms, sequence = 0, DUE_MS, 1
    for ms, step in steps:
        now_ms, sequence = now_ms + ms, sequence + 1
        now = after(now_ms)
        match step:
            case "pause":
                observed.stood_still(ms, now.mono_ms)
                due_ms = max(due_ms + ms * (state.epoch > 1), now_ms)
            case "leader":
                state.epoch += 1
                observed = Observed(began_mono_ms=now.mono_ms)
                due_ms = now_ms + DUE_MS
            case "session":
                ask(state, observed, OpenSession(SESSION), now)
            case "report":
                ask(state, observed, reported(heartbeat(sequence, report())), now)
            case "failed":
                ask(state, observed, FailAttempt(request().workload, Attempt(start=START, failure="refused")), now)
            case "restarted":
                ask(state, observed, reported(heartbeat(sequence)), now)
            case _:
                ask(state, observed, Tick(), now)
    end = after(max(now_ms, due_ms + POLICY.overdue_ms))
    if lives:
        ask(state, observed, OpenSession(SESSION), end)
    ask(state, observed, Tick(), end)
    assert list(state.receipts) == [request().workload]
    assert not state.open
    assert not observed.held
    assert not any(map(len, observed.queues.values()))
