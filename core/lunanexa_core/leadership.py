"""Leadership of one store: a lease row that the leader renews, and how others decide that it has gone.

Times of two machines are never compared. A watcher counts, by its own clock, how long the row has stood still; the
leader counts from before it asked for the renewal, and stops a little earlier than any watcher can begin.
"""

from typing import Final

import attrs

from lunanexa_core.ids import HolderId

DRIFT_PER_MILLE: Final = 125
"""So much of the lease its holder does not use: two clocks may differ by that much in rate."""


@attrs.frozen
class Seat:
    """Who stands for the lease, and where people find it."""

    holder: HolderId
    address: str = ""


@attrs.frozen(kw_only=True)
class Lease:
    """The lease row. ``changes`` rises with each claim, renewal and release, and never falls."""

    holder: HolderId | None
    """``None``: nobody leads, the last leader gave it back."""
    address: str
    """Where the holder says that it serves, for people; may be empty."""
    epoch: int
    changes: int


@attrs.frozen(kw_only=True)
class Watched:
    """A lease, and since when (the watcher's monotonic ms) it was not seen to change."""

    lease: Lease
    since_mono_ms: int

    def seen(self, lease: Lease, now_mono_ms: int) -> "Watched":
        """After another look."""
        return self if lease == self.lease else Watched(lease=lease, since_mono_ms=now_mono_ms)

    def claimable_in_ms(self, holder: HolderId, lease_ms: int, now_mono_ms: int) -> int:
        """How long ``holder`` must wait before it may claim; 0: at once. What it holds itself it may: a process proves
        by the lock of its data directory that its predecessor is gone."""
        if self.lease.holder is None or self.lease.holder == holder:
            return 0
        return max(0, self.since_mono_ms + lease_ms - now_mono_ms)


@attrs.frozen
class Held:
    """The holder's own view: until when (its monotonic ms) it may write."""

    until_mono_ms: int

    @classmethod
    def asked(cls, asked_mono_ms: int, lease_ms: int) -> "Held":
        """From a claim or renewal that succeeded and was asked for at ``asked_mono_ms``."""
        return cls(asked_mono_ms + lease_ms - lease_ms * DRIFT_PER_MILLE // 1_000)

    def valid(self, now_mono_ms: int) -> bool:
        """Whether a write may begin."""
        return now_mono_ms < self.until_mono_ms

    def renew_in_ms(self, now_mono_ms: int, *, least_ms: int) -> int:
        """When to renew: at half of what remains, not more often than each ``least_ms``."""
        return max(least_ms, (self.until_mono_ms - now_mono_ms) // 2)
