"""A node is granted requests only while it has a lease itself: without one its data listener lets nobody in."""

import attrs
import pytest

from lunanexa_core.kernel.absorb import absorb
from lunanexa_core.kernel.decide import decide
from lunanexa_core.observed import Observed
from lunanexa_core.routing.routable import NotRoutable, why_not_routable
from lunanexa_core.state import State
from tests.core.builders import NODE, NOW, POLICY, after, heartbeat, report, reported, serving_events, state_of

LEASE_MS = POLICY.node_lease_ms


def hear(state: State, observed: Observed, sequence: int, ms: int, *, leased: bool | None) -> None:
    told = attrs.evolve(heartbeat(sequence, report()), leased=leased)
    command = reported(told)
    absorb(state, observed, POLICY, command, decide(state, observed, POLICY, command, after(ms)), after(ms))
    assert observed.nodes[NODE].sequence == sequence


def why(state: State, observed: Observed, ms: int) -> NotRoutable | None:
    return why_not_routable(state, observed, POLICY, report(), after(ms))


@pytest.mark.parametrize(("leased", "refusal"), [(True, None), (None, None), (False, NotRoutable.NODE_UNLEASED)])
def test_the_nodes_word_counts(leased: bool | None, refusal: NotRoutable | None) -> None:
    state, observed = state_of(serving_events()), Observed(began_mono_ms=NOW.mono_ms)
    hear(state, observed, 1, 0, leased=leased)
    assert why(state, observed, 0) is refusal
    hear(state, observed, 2, 10, leased=True)
    assert why(state, observed, 10) is None


def test_an_old_word_does_not_count_where_we_know_better() -> None:
    """A heartbeat that was held back on its way for longer than the lease of which it tells."""
    state, observed = state_of(serving_events()), Observed(began_mono_ms=NOW.mono_ms)
    hear(state, observed, 1, 0, leased=True)
    hear(state, observed, 2, LEASE_MS - 1, leased=True)
    assert why(state, observed, LEASE_MS - 1) is None
    hear(state, observed, 3, 2 * LEASE_MS, leased=True)
    assert why(state, observed, 2 * LEASE_MS) is NotRoutable.NODE_UNLEASED
    hear(state, observed, 4, 2 * LEASE_MS + 5, leased=True)
    assert why(state, observed, 2 * LEASE_MS + 5) is None


def test_a_lease_runs_on_while_we_stand_still() -> None:
    state, observed = state_of(serving_events()), Observed(began_mono_ms=NOW.mono_ms)
    hear(state, observed, 1, 0, leased=True)
    observed.stood_still(LEASE_MS, after(LEASE_MS).mono_ms)
    assert why(state, observed, LEASE_MS) is NotRoutable.NODE_UNLEASED
    hear(state, observed, 2, LEASE_MS + 1, leased=True)
    assert why(state, observed, LEASE_MS + 1) is NotRoutable.NODE_UNLEASED
    hear(state, observed, 3, LEASE_MS + 2, leased=True)
    assert why(state, observed, LEASE_MS + 2) is None
