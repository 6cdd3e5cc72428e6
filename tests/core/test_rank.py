"""Free slots of a replica: what we hold counts, and what the engine says only while it is news."""

import pytest

from lunanexa_core.commands import AdmitWorkload, ReportHeartbeat, SettleWorkload, Tick
from lunanexa_core.kernel.absorb import absorb
from lunanexa_core.kernel.apply import apply
from lunanexa_core.kernel.decide import decide
from lunanexa_core.observed import Observed
from lunanexa_core.routing.pick import grant_waiting
from lunanexa_core.routing.rank import free_slots
from lunanexa_core.southbound.heartbeat import EngineReadings
from lunanexa_core.state import State
from lunanexa_core.workload import Settlement
from tests.core.builders import (
    NOW,
    POLICY,
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


class Kernel:
    """The rules without a task around them."""

    def __init__(self) -> None:
        self.state: State = state_of(serving_events())
        self.observed: Observed = heard()
        self.sequence = 1

    def ask(self, command: AdmitWorkload | ReportHeartbeat | SettleWorkload | Tick, ms: int) -> None:
        decision = decide(self.state, self.observed, POLICY, command, after(ms))
        for event in decision.events:
            apply(self.state, event, epoch=1)
        absorb(self.state, self.observed, POLICY, command, decision, after(ms))
        grant_waiting(self.state, self.observed, POLICY, after(ms))

    def hear(self, ms: int, running: int | None, age_ms: int = 0) -> None:
        self.sequence += 1
        readings = EngineReadings(running=running, age_ms=age_ms)
        self.ask(reported(heartbeat(self.sequence, report(readings=readings))), ms)

    def free(self, ms: int) -> int:
        return free_slots(self.observed, POLICY, report(), after(ms))


@pytest.mark.parametrize(("running", "free"), [(None, 2), (0, 2), (1, 1), (2, 0), (9, 0)])
def test_what_others_run_on_an_engine_takes_slots(running: int | None, free: int) -> None:
    kernel = Kernel()
    kernel.hear(0, running)
    assert kernel.free(1) == free


def test_requests_of_ours_that_have_ended_take_none() -> None:
    kernel = Kernel()
    kernel.ask(AdmitWorkload(request()), 0)
    kernel.hear(100, 2)
    assert kernel.free(100) == 1
    kernel.ask(SettleWorkload(Settlement(workload=request().workload, outcome=None)), 200)
    assert kernel.free(200) == 2
    # Taken before the end, told after it.
    kernel.hear(300, 2, age_ms=150)
    assert kernel.free(300) == 2
    kernel.hear(400, 2)
    assert kernel.free(400) == 0


def test_an_engine_that_says_no_more_is_not_full_for_good() -> None:
    kernel = Kernel()
    kernel.hear(0, 2)
    assert kernel.free(POLICY.reading_fresh_ms - 1) == 0
    kernel.hear(POLICY.reading_fresh_ms, 2, age_ms=POLICY.reading_fresh_ms)
    assert kernel.free(POLICY.reading_fresh_ms) == 2


def test_a_replica_with_stale_readings_is_served_from_at_once_and_their_age_is_told() -> None:
    kernel, age_ms = Kernel(), POLICY.reading_fresh_ms + 5_000
    kernel.hear(0, 2, age_ms=age_ms)
    kernel.ask(AdmitWorkload(request()), 100)
    decision = kernel.observed.decisions[request().workload]
    assert decision.chosen == START
    assert [one.reading_age_ms for one in decision.candidates] == [age_ms + 100]


def test_what_was_given_back_long_ago_is_forgotten() -> None:
    kernel = Kernel()
    kernel.ask(AdmitWorkload(request()), 0)
    kernel.ask(SettleWorkload(Settlement(workload=request().workload, outcome=None)), 100)
    kernel.ask(Tick(), POLICY.reading_fresh_ms + 100)
    assert kernel.observed.released_mono_ms == {START: NOW.mono_ms + 100}
    kernel.ask(Tick(), POLICY.reading_fresh_ms + 101)
    assert not kernel.observed.released_mono_ms
