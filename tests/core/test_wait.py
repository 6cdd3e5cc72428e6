"""The predicted wait, and that a request which can't make its deadline is refused on arrival."""

import attrs
from hypothesis import given
from hypothesis import strategies as st

from lunanexa_core.admission.admit import admit
from lunanexa_core.admission.wait import measured, predicted_wait_ms
from lunanexa_core.events import WorkloadAdmitted
from lunanexa_core.kernel.apply import apply
from lunanexa_core.observed import Observed
from lunanexa_core.outcomes import Outcome, Refusal
from tests.core.builders import DEPLOYMENT, NOW, POLICY, api_key, heard, request, serving_events, state_of


@given(times=st.lists(st.integers(0, 10**6), min_size=1), in_progress=st.integers(0, 500), slots=st.integers(0, 64))
def test_it_is_bounded_by_the_slowest_and_zero_while_a_slot_is_free(
    times: list[int], in_progress: int, slots: int
) -> None:
    observed = Observed(began_mono_ms=0)
    for service_ms in times:
        measured(observed, DEPLOYMENT, service_ms)
    assert 0 <= observed.service_ms[DEPLOYMENT] <= max(times)
    wait_ms = predicted_wait_ms(observed, DEPLOYMENT, in_progress=in_progress, slots=slots)
    assert wait_ms >= 0
    if in_progress < slots:
        assert wait_ms == 0
    more_ms = predicted_wait_ms(observed, DEPLOYMENT, in_progress=in_progress + 1, slots=slots)
    assert more_ms >= wait_ms


def test_who_would_come_too_late_is_told_when_to_come_back() -> None:
    state, observed = state_of(serving_events()), heard()
    for number in range(2):
        apply(
            state,
            WorkloadAdmitted(
                request=request(number), key=api_key().key, tenant=api_key().tenant, deployment=DEPLOYMENT
            ),
            epoch=1,
        )
    measured(observed, DEPLOYMENT, 10_000)
    hasty = admit(state, observed, POLICY, attrs.evolve(request(7), deadline_ms=4_000), NOW)
    assert isinstance(hasty, Refusal)
    assert (hasty.outcome, hasty.wait_ms) == (Outcome.DEADLINE_UNREACHABLE, 1_000)
    assert isinstance(
        admit(state, observed, POLICY, attrs.evolve(request(7), deadline_ms=5_000), NOW), WorkloadAdmitted
    )
