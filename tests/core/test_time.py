"""Wall time of events: never backwards, and close to what passed, whatever the system clock does."""

from hypothesis import given
from hypothesis import strategies as st

from lunanexa_core.time import SLEW_PER_MILLE, Instant, event_wall_ms

walls = st.integers(0, 4_000_000_000_000)
elapsed = st.integers(0, 10_000_000_000)


@given(walls, walls, elapsed)
def test_never_backwards_and_slewed_by_a_tenth_at_most(last_wall: int, system_wall: int, elapsed_ms: int) -> None:
    wall = event_wall_ms(Instant(5, last_wall), Instant(5 + elapsed_ms, system_wall))
    assert wall >= last_wall
    assert abs(wall - last_wall - elapsed_ms) * 1_000 <= elapsed_ms * SLEW_PER_MILLE


@given(walls, elapsed, st.integers(-(10**6), 10**6))
def test_leans_towards_the_system_clock(last_wall: int, elapsed_ms: int, error_ms: int) -> None:
    """The error never grows, and is gone once a tenth of what passed covers it."""
    steady = last_wall + elapsed_ms
    wall = event_wall_ms(Instant(0, last_wall), Instant(elapsed_ms, steady + error_ms))
    left = abs(wall - steady - error_ms)
    assert left <= abs(error_ms)
    if elapsed_ms * SLEW_PER_MILLE >= abs(error_ms) * 1_000:
        assert left == 0


@given(walls, st.lists(st.tuples(st.integers(0, 100_000), walls), max_size=20))
def test_a_run_of_events_is_ordered(first_wall: int, steps: list[tuple[int, int]]) -> None:
    last = Instant(0, first_wall)
    for passed_ms, system_wall in steps:
        now = Instant(last.mono_ms + passed_ms, system_wall)
        wall = event_wall_ms(last, now)
        assert last.wall_ms <= wall
        last = Instant(now.mono_ms, wall)
    passed_ms = sum(passed for passed, _ in steps)
    assert abs(last.wall_ms - first_wall - passed_ms) * 1_000 <= passed_ms * SLEW_PER_MILLE


@given(walls, walls, st.integers(1, 10**9))
def test_a_monotonic_clock_that_fell_counts_as_nothing(last_wall: int, system_wall: int, fallen_ms: int) -> None:
    """After a reboot of the machine the monotonic clock starts anew: the caller gives a last event of another boot."""
    assert event_wall_ms(Instant(fallen_ms, last_wall), Instant(0, system_wall)) == last_wall
