"""A node's lease: what grants it, what it allows, and that a node ends what the controller counts as ended."""

from hypothesis import given
from hypothesis import strategies as st

from lunanexa_core.southbound.lease import STOP_MARGIN_MS, NodeLease, cut_off_bound_ms, longer, run_out_ms
from lunanexa_core.southbound.skew import SKEW_WARN_MS, is_far_off, measured_skew
from lunanexa_core.time import Instant

LEASE_MS = 10_000
TIMES = st.integers(0, 10**6)
ORDERS = st.tuples(st.integers(1, 3), st.integers(0, 9))


def test_a_process_begins_without_a_lease() -> None:
    lease = NodeLease()
    assert not lease.live(0)
    assert not lease.may_start(0, (9, 9))


def test_it_runs_from_when_the_heartbeat_was_sent() -> None:
    lease = NodeLease().answered(sent_mono_ms=100, now_mono_ms=4_000, lease_ms=LEASE_MS, newest=(1, 3))
    assert lease.live(100 + LEASE_MS - 1)
    assert not lease.live(100 + LEASE_MS)


def test_an_answer_after_its_own_lease_begins_none() -> None:
    late = NodeLease().answered(sent_mono_ms=0, now_mono_ms=LEASE_MS, lease_ms=LEASE_MS, newest=(1, 3))
    assert not late.live(LEASE_MS)
    assert late.floor == (0, 0)


def test_who_was_cut_off_starts_nothing_by_an_older_document() -> None:
    lease = NodeLease().answered(sent_mono_ms=0, now_mono_ms=1, lease_ms=LEASE_MS, newest=(1, 3))
    again = lease.answered(sent_mono_ms=20_000, now_mono_ms=20_001, lease_ms=LEASE_MS, newest=(2, 4))
    assert not again.may_start(20_001, (1, 3))
    assert not again.may_start(20_001, (1, 5))
    assert again.may_start(20_001, (2, 4))
    kept = again.answered(sent_mono_ms=22_000, now_mono_ms=22_001, lease_ms=LEASE_MS, newest=(2, 5))
    assert kept.may_start(22_001, (2, 4)), "a lease that did not lapse goes by the document that is followed"


@given(st.lists(TIMES, min_size=1, max_size=12), st.randoms(use_true_random=False))
def test_late_and_repeated_answers_neither_stretch_nor_shorten(sent: list[int], random: object) -> None:
    arrivals = sent + sent
    random.shuffle(arrivals)  # type: ignore[attr-defined]  # a random.Random, by which Hypothesis shrinks
    lease = NodeLease()
    for at_ms in arrivals:
        before, lease = lease, lease.renewed(at_ms, LEASE_MS)
        assert (before.until_mono_ms or 0) <= (lease.until_mono_ms or 0)
        assert lease.renewed(at_ms, LEASE_MS) == lease
    assert lease.until_mono_ms == max(sent) + LEASE_MS


@given(st.lists(st.tuples(st.integers(0, 30_000), st.integers(0, 12_000), ORDERS), max_size=12))
def test_the_floor_is_what_was_told_when_the_lease_began(answers: list[tuple[int, int, tuple[int, int]]]) -> None:
    """Against a list of all that happened."""
    lease, now_ms, began_by = NodeLease(), 0, None
    for pause_ms, age_ms, newest in answers:
        now_ms += pause_ms
        was_live = lease.live(now_ms)
        lease = lease.answered(sent_mono_ms=now_ms - age_ms, now_mono_ms=now_ms, lease_ms=LEASE_MS, newest=newest)
        if not was_live and lease.live(now_ms):
            began_by = newest
        for order in ((0, 9), (1, 0), (2, 4), (3, 9)):
            allowed = lease.live(now_ms) and began_by is not None and order >= began_by
            assert lease.may_start(now_ms, order) == allowed


@given(
    sent=st.integers(0, 10**7),
    way_ms=st.integers(0, 60_000),
    keep_ms=st.integers(0, 10**7),
    stop_ms=st.integers(0, 10**5),
    rates=st.tuples(st.integers(-4, 4), st.integers(-4, 4)),
)
def test_the_engine_is_gone_before_the_controller_counts_it_as_gone(
    sent: int, way_ms: int, keep_ms: int, stop_ms: int, rates: tuple[int, int]
) -> None:
    """In true time, whatever way the heartbeat took, by clocks that differ by what is allowed for."""
    bound_ms = cut_off_bound_ms(keep_ms, stop_ms)
    silence_ms = run_out_ms(LEASE_MS, bound_ms)
    assert bound_ms == keep_ms + stop_ms + STOP_MARGIN_MS
    assert silence_ms is not None
    node, controller = (1 + rate / 1_000 for rate in rates)
    gone_at = sent + (LEASE_MS + bound_ms) / node
    counted_at = sent + way_ms + silence_ms / controller
    assert gone_at <= counted_at


@given(st.none() | TIMES, st.none() | TIMES)
def test_without_limit_is_the_longest(one_ms: int | None, other_ms: int | None) -> None:
    assert longer(one_ms, other_ms) == longer(other_ms, one_ms)
    assert (longer(one_ms, other_ms) is None) == (one_ms is None or other_ms is None)
    assert run_out_ms(LEASE_MS, None) is None


@given(
    offset_ms=st.integers(-(10**9), 10**9),
    there_ms=st.integers(0, 10_000),
    back_ms=st.integers(0, 10_000),
    set_by_ms=st.integers(-(10**6), 10**6) | st.just(0),
)
def test_the_measured_skew_is_right_to_its_error(offset_ms: int, there_ms: int, back_ms: int, set_by_ms: int) -> None:
    """Also where somebody sets the node's clock while the answer is awaited: it is the skew after that, or before."""
    sent = Instant(5_000, 1_000_000)
    controller_wall_ms = sent.wall_ms + there_ms + offset_ms
    received = Instant(sent.mono_ms + there_ms + back_ms, sent.wall_ms + there_ms + back_ms + set_by_ms)
    skew = measured_skew(sent, received, controller_wall_ms)
    assert min(abs(skew.ms - offset_ms), abs(skew.ms - (offset_ms - set_by_ms))) <= skew.error_ms
    assert skew.error_ms >= (there_ms + back_ms) // 2
    assert is_far_off(skew.ms, skew.error_ms) <= (abs(skew.ms) > SKEW_WARN_MS)


def test_a_clock_is_far_off_only_for_certain() -> None:
    assert is_far_off(SKEW_WARN_MS + 3, 2)
    assert is_far_off(-SKEW_WARN_MS - 3, 2)
    assert not is_far_off(SKEW_WARN_MS + 3, 3)
    assert not is_far_off(None, None)
