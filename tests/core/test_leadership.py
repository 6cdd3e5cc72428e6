"""The lease's two sides: what its holder takes for itself, and when others may think that it is gone."""

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lunanexa_core.ids import HolderId
from lunanexa_core.leadership import Held, Lease, Watched

ONE, OTHER = HolderId("one"), HolderId("other")
LEASE = Lease(holder=ONE, address="one:8400", epoch=3, changes=7)
RATES = st.integers(940, 1_060)
"""Per mille of true time: each clock is up to six per cent off, so that two are twelve apart."""
PAUSES = st.integers(0, 100_000)


def local_ms(true_us: int, rate: int) -> int:
    return true_us * rate // 1_000_000


@given(holder_rate=RATES, watcher_rate=RATES, lease_ms=st.integers(1_000, 60_000), on_the_way=PAUSES, until_seen=PAUSES)
def test_the_holder_has_stopped_before_any_watcher_can_begin(
    holder_rate: int, watcher_rate: int, lease_ms: int, on_the_way: int, until_seen: int
) -> None:
    asked_us = 5_000_000
    seen_us = asked_us + on_the_way * 1_000 + until_seen * 1_000
    held = Held.asked(local_ms(asked_us, holder_rate), lease_ms)
    watched = Watched(lease=LEASE, since_mono_ms=local_ms(seen_us, watcher_rate))
    # The first true instant at which the watcher's clock says that the lease has stood still for its length.
    claim_us = seen_us + (lease_ms + 1) * 1_000_000 // watcher_rate
    claimable = watched.claimable_in_ms(OTHER, lease_ms, local_ms(claim_us, watcher_rate))
    assert claimable <= 1
    assert not held.valid(local_ms(claim_us, holder_rate))


@given(lease_ms=st.integers(1_000, 60_000), steps=st.lists(st.integers(1, 500), max_size=20))
def test_a_lease_that_changes_is_never_claimable_before_its_length_is_over(lease_ms: int, steps: list[int]) -> None:
    now, lease = 1_000, LEASE
    watched = Watched(lease=lease, since_mono_ms=now)
    for step in steps:
        now += step
        lease = attrs.evolve(lease, changes=lease.changes + 1)
        watched = watched.seen(lease, now)
        assert watched.claimable_in_ms(OTHER, lease_ms, now) == lease_ms
        assert watched.seen(lease, now + step) is watched


def test_a_free_lease_and_ones_own_are_claimed_at_once() -> None:
    watched = Watched(lease=LEASE, since_mono_ms=1_000)
    assert watched.claimable_in_ms(ONE, 3_000, 1_000) == 0
    assert watched.claimable_in_ms(OTHER, 3_000, 1_000) == 3_000
    free = Watched(lease=attrs.evolve(LEASE, holder=None), since_mono_ms=1_000)
    assert free.claimable_in_ms(OTHER, 3_000, 1_000) == 0


@pytest.mark.thorough
@given(lease_ms=st.integers(1_000, 60_000), late_ms=st.integers(0, 60_000))
def test_renewal_comes_at_half_of_what_remains(lease_ms: int, late_ms: int) -> None:
    held = Held.asked(1_000, lease_ms)
    wait_ms = held.renew_in_ms(1_000 + late_ms, least_ms=100)
    left_ms = held.until_mono_ms - 1_000 - late_ms
    assert wait_ms == max(100, left_ms // 2)
    if left_ms >= 400:
        assert held.valid(1_000 + late_ms + wait_ms), "there is time for another try"
