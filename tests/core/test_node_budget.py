"""A node writes only so many rows of the journal by what it reports, and is granted nothing while more waits."""

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lunanexa_core.commands import ReportHeartbeat, ShowDocument, Tick
from lunanexa_core.events import Event, Liveness, LivenessChanged, RecoveryBegan
from lunanexa_core.ids import BootId
from lunanexa_core.kernel.absorb import absorb
from lunanexa_core.kernel.apply import apply
from lunanexa_core.kernel.decide import Decision, Done, decide
from lunanexa_core.observed import Observed
from lunanexa_core.routing.routable import NotRoutable, why_not_routable
from lunanexa_core.southbound.heartbeat import Heartbeat, ReplicaReport, ReplicaState
from lunanexa_core.state import State
from tests.core.builders import (
    ASSIGNMENT,
    BOOT,
    NODE,
    NOW,
    POLICY,
    after,
    heard,
    heartbeat,
    report,
    reported,
    serving_events,
    state_of,
)
from tests.examples import examples

SMALL = attrs.evolve(POLICY, node_rows_per_minute=60, node_rows_burst=10)
"""A row a second."""


class Kernel:
    """Decides and takes up at once what one node says."""

    def __init__(self) -> None:
        self.state: State = state_of(serving_events())
        self.observed: Observed = heard()
        self.sequence = 1
        self.rows: list[Event] = []

    def beat(self, ms: int, *replicas: ReplicaReport, **changes: object) -> Decision:
        self.sequence += 1
        told: Heartbeat = attrs.evolve(heartbeat(self.sequence, *replicas), **changes)  # type: ignore[arg-type]  # changes name real fields
        return self.ask(ms, reported(told))

    def ask(self, ms: int, command: ReportHeartbeat | ShowDocument | Tick) -> Decision:
        decision = decide(self.state, self.observed, SMALL, command, after(ms))
        for event in decision.events:
            apply(self.state, event, epoch=1, wall_ms=after(ms).wall_ms)
        absorb(self.state, self.observed, SMALL, command, decision, after(ms))
        self.rows += decision.events
        return decision

    def why_not(self, ms: int) -> NotRoutable | None:
        return why_not_routable(self.state, self.observed, SMALL, self.state.replicas[ASSIGNMENT], after(ms))


def flapping(number: int) -> ReplicaReport:
    return report(port=9_100 + number)


@settings(max_examples=examples(40))
@given(
    waits=st.lists(st.sampled_from([0, 0, 50, 900, 9_000]), min_size=40, max_size=120),
    flaps=st.lists(st.sampled_from([True, True, False]), min_size=120, max_size=120),
)
def test_no_node_writes_more_rows_than_its_budget(waits: list[int], flaps: list[bool]) -> None:
    kernel, ms, told, boot = Kernel(), 0, report(), BOOT
    for number, (wait_ms, flaps_now) in enumerate(zip(waits, flaps, strict=False)):
        ms += wait_ms
        told = flapping(number) if flaps_now else told
        boot = BootId(f"boot_{number}") if number % 7 == 6 else boot
        decision = kernel.beat(ms, told, boot=boot)
        assert decision.answer == Done(), "it is answered, and keeps its lease"
        assert kernel.observed.nodes[NODE].arrived_mono_ms == after(ms).mono_ms, "and counts as heard"
        assert len(kernel.rows) <= SMALL.node_rows_burst + ms // 1_000 + 2, "the last may be above by its own rows"
        if kernel.state.replicas[ASSIGNMENT] != told:
            assert decision.withheld
            assert kernel.why_not(ms) is NotRoutable.NODE_WITHHELD, "what is not written down is granted nothing"
    for _ in range(3):
        ms += 60_000
        kernel.beat(ms, told, boot=boot)
    assert (kernel.state.replicas[ASSIGNMENT], kernel.why_not(ms)) == (told, None), "what it said last counts"
    kernel.ask(ms + 60_000, Tick())
    assert kernel.observed.budgets == {}, "nothing is kept of who is quiet"


def test_a_replica_that_is_gone_is_granted_nothing_though_that_is_not_written_down() -> None:
    kernel = Kernel()
    for number in range(SMALL.node_rows_burst):
        assert not kernel.beat(0, flapping(number)).withheld
    assert kernel.beat(0, report(state=ReplicaState.FAILED)).withheld
    assert kernel.why_not(0) is NotRoutable.NODE_WITHHELD
    assert kernel.beat(0).withheld
    assert kernel.why_not(0) is NotRoutable.NODE_WITHHELD
    assert not kernel.beat(1).withheld
    assert ASSIGNMENT not in kernel.state.replicas


@pytest.mark.parametrize("silent", [Liveness.SUSPECT, Liveness.LOST])
def test_neither_life_nor_lost_rows_are_withheld(silent: Liveness) -> None:
    kernel = Kernel()
    for number in range(SMALL.node_rows_burst):
        kernel.beat(0, flapping(number))
    apply(kernel.state, LivenessChanged(NODE, silent), epoch=1)
    decision = kernel.beat(0, report())
    assert (decision.events, decision.withheld) == ((LivenessChanged(NODE, Liveness.READY),), True)
    kernel.ask(0, ShowDocument(node=NODE, epoch=9, generation=9))
    decision = kernel.beat(0, report(), epoch=9, generation=9)
    assert [type(event) for event in decision.events] == [RecoveryBegan]


def test_an_honest_node_is_far_from_it() -> None:
    """Eight replicas that crash and start anew, each in the time of its shortest back-off."""
    state, observed, rows = state_of(serving_events()), heard(), 0
    steps = (ReplicaState.STARTING, ReplicaState.READY, ReplicaState.BACKOFF)
    for number in range(600):
        now, step = after(1_000 * number), steps[number % 3]
        command = reported(heartbeat(number + 2, report(state=step, restarts=number // 3)))
        decision = decide(state, observed, POLICY, command, now)
        for event in decision.events:
            apply(state, event, epoch=1)
        absorb(state, observed, POLICY, command, decision, now)
        rows += len(decision.events)
        assert not decision.withheld
    assert rows >= 600
    assert state.nodes[NODE].boot == BOOT
    assert NOW.mono_ms < observed.nodes[NODE].arrived_mono_ms
