"""The windows of a key: never above the limit within any minute, never below zero, nothing left at rest."""

from collections import deque

from hypothesis import given
from hypothesis import strategies as st

from lunanexa_core.admission.windows import BUCKET_MS, WINDOW_MS, KeyWindows, RateWindow

STEPS = st.lists(st.tuples(st.integers(0, 20_000), st.integers(1, 8)), max_size=60)
START_MS = 1_700_000_000_123


@given(steps=STEPS, limit=st.integers(8, 20))
def test_no_minute_holds_more_than_the_limit(steps: list[tuple[int, int]], limit: int) -> None:
    window, now_ms = RateWindow(), START_MS
    taken: list[tuple[int, int]] = []
    for pause_ms, amount in steps:
        now_ms += pause_ms
        if window.fits_in_ms(now_ms, amount, limit) == 0:
            window = window.take(now_ms, amount)
            taken.append((now_ms, amount))
        assert 0 <= window.spent(now_ms) <= limit
        assert len(window.buckets) <= WINDOW_MS // BUCKET_MS + 1
    within: deque[tuple[int, int]] = deque()
    for at_ms, amount in taken:
        within.append((at_ms, amount))
        while within[0][0] <= at_ms - WINDOW_MS:
            within.popleft()
        assert sum(amount for _, amount in within) <= limit


@given(steps=STEPS, limit=st.integers(8, 20), amount=st.integers(1, 8))
def test_the_time_until_it_fits_is_the_true_one(steps: list[tuple[int, int]], limit: int, amount: int) -> None:
    window, now_ms = RateWindow(), START_MS
    for pause_ms, taken in steps:
        now_ms += pause_ms
        if window.fits_in_ms(now_ms, taken, limit) == 0:
            window = window.take(now_ms, taken)
    wait_ms = window.fits_in_ms(now_ms, amount, limit)
    assert 0 <= wait_ms <= WINDOW_MS + BUCKET_MS
    assert window.fits_in_ms(now_ms + wait_ms, amount, limit) == 0
    if wait_ms:
        assert window.spent(now_ms + wait_ms - 1) + amount > limit
    reset_ms = window.reset_ms(now_ms)
    assert window.spent(now_ms + reset_ms) == 0
    assert reset_ms == 0 or window.spent(now_ms + reset_ms - 1) > 0


@given(
    steps=st.lists(
        st.tuples(st.integers(0, 30_000), st.integers(1, 900), st.one_of(st.none(), st.integers(0, 1_000))), max_size=40
    )
)
def test_what_is_settled_is_what_was_used(steps: list[tuple[int, int, int | None]]) -> None:
    """Against a plain list: each request counts in the minute of its admission, with what it used in the end."""
    windows, now_ms = KeyWindows(), START_MS
    running: list[tuple[int, int, int | None]] = []
    counted: list[tuple[int, int, int]] = []

    def settle() -> None:
        nonlocal windows
        at_ms, reserved, used = running.pop(0)
        windows = windows.settle(now_ms, at_ms, reserved=reserved, used=used)
        if used is not None:
            counted.append((at_ms, 1, used))

    def check() -> None:
        live = [entry for entry in counted if _counts(entry[0], now_ms)]
        live += [(at_ms, 1, reserved) for at_ms, reserved, _ in running if _counts(at_ms, now_ms)]
        assert windows.requests.spent(now_ms) == sum(requests for _, requests, _ in live)
        assert windows.tokens.spent(now_ms) == sum(tokens for _, _, tokens in live)

    for pause_ms, reserved, used in steps:
        now_ms += pause_ms
        windows = windows.take(now_ms, reserved)
        running.append((now_ms, reserved, used))
        check()
        if len(running) > 3:
            settle()
            check()
    while running:
        settle()
        check()
    now_ms += WINDOW_MS + BUCKET_MS
    assert windows.is_empty(now_ms)
    assert windows.take(now_ms, 0).tokens.buckets == ()


def _counts(at_ms: int, now_ms: int) -> bool:
    return now_ms < (at_ms // BUCKET_MS + 1) * BUCKET_MS + WINDOW_MS
