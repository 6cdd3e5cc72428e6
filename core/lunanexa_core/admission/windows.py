"""What a key has taken within the last minute: sums over a window that slides, in whole numbers.

Amounts are kept by the second in which they were taken, so that a window of any traffic has 61 entries at
most. A second counts until the last instant of it is a minute old: never less than 60 seconds and never more
than 61, so that no 60 seconds ever hold more than was allowed. Times are the wall time of ledger events,
which never falls; nothing here changes by time alone.
"""

from typing import Final

import attrs

WINDOW_MS: Final = 60_000
BUCKET_MS: Final = 1_000


@attrs.frozen
class RateWindow:
    """Amounts by second, oldest first, none of them zero. Every function takes the present wall time."""

    buckets: tuple[tuple[int, int], ...] = ()
    """Second since the epoch, and what was taken in it."""

    def spent(self, wall_ms: int) -> int:
        """The sum of what counts now."""
        return sum(amount for _, amount in self._live(wall_ms))

    def fits_in_ms(self, wall_ms: int, amount: int, limit: int) -> int:
        """How long until ``amount`` may be taken, if nobody else takes anything; 0: now. ``amount`` is at most
        ``limit``: a larger one would never fit."""
        assert 0 <= amount <= limit, (amount, limit)
        over = self.spent(wall_ms) + amount - limit
        wait_ms = 0
        for second, taken in self._live(wall_ms):
            if over <= 0:
                break
            over -= taken
            wait_ms = _end_ms(second) - wall_ms
        return wait_ms

    def reset_ms(self, wall_ms: int) -> int:
        """How long until nothing counts any more."""
        live = self._live(wall_ms)
        return _end_ms(live[-1][0]) - wall_ms if live else 0

    def take(self, wall_ms: int, amount: int) -> "RateWindow":
        """With ``amount`` taken now."""
        live, second = self._live(wall_ms), wall_ms // BUCKET_MS
        if amount == 0:
            return RateWindow(live)
        if live and live[-1][0] == second:
            return RateWindow((*live[:-1], (second, live[-1][1] + amount)))
        return RateWindow((*live, (second, amount)))

    def correct(self, wall_ms: int, taken_wall_ms: int, change: int) -> "RateWindow":
        """With what was taken at ``taken_wall_ms`` changed. What counts no more stays as it is."""
        second = taken_wall_ms // BUCKET_MS
        corrected = [(at, amount + change if at == second else amount) for at, amount in self._live(wall_ms)]
        if change > 0 and _end_ms(second) > wall_ms and second not in (at for at, _ in corrected):
            corrected = sorted([*corrected, (second, change)])
        assert all(amount >= 0 for _, amount in corrected), "more was given back than was taken"
        return RateWindow(tuple(bucket for bucket in corrected if bucket[1]))

    def _live(self, wall_ms: int) -> tuple[tuple[int, int], ...]:
        for index, (second, _) in enumerate(self.buckets):
            if _end_ms(second) > wall_ms:
                return self.buckets[index:] if index else self.buckets
        return ()


def _end_ms(second: int) -> int:
    """From when on what was taken in ``second`` counts no more."""
    return (second + 1) * BUCKET_MS + WINDOW_MS


@attrs.frozen(kw_only=True)
class KeyWindows:
    """Both windows of one key."""

    requests: RateWindow = attrs.Factory(RateWindow)
    tokens: RateWindow = attrs.Factory(RateWindow)

    def take(self, wall_ms: int, tokens: int) -> "KeyWindows":
        """One request more, with what is reserved for it."""
        return KeyWindows(requests=self.requests.take(wall_ms, 1), tokens=self.tokens.take(wall_ms, tokens))

    def settle(self, wall_ms: int, taken_wall_ms: int, *, reserved: int, used: int | None) -> "KeyWindows":
        """What was reserved becomes what was used. ``None``: no engine worked, all of it comes back."""
        tokens = (0 if used is None else used) - reserved
        requests = -1 if used is None else 0
        return KeyWindows(
            requests=self.requests.correct(wall_ms, taken_wall_ms, requests),
            tokens=self.tokens.correct(wall_ms, taken_wall_ms, tokens),
        )

    def is_empty(self, wall_ms: int) -> bool:
        """Whether nothing counts any more."""
        return not self.requests.spent(wall_ms) and not self.tokens.spent(wall_ms)
