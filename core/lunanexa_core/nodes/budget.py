"""How many rows of the journal a node may cause by what it reports: a token bucket, by the leader's own clock.

Reports tell of states, not of changes, so nothing is lost by waiting: what is withheld is told again with the next
heartbeat, and written down when there is budget for it. Until then nobody knows what the node has, and it is granted
nothing (:class:`~lunanexa_core.routing.routable.NotRoutable`).
"""

from collections.abc import Sequence
from typing import Final

import attrs

from lunanexa_core.events import Event, LivenessChanged, RecoveryBegan
from lunanexa_core.policy import Policy
from lunanexa_core.time import Instant

_MINUTE_MS: Final = 60_000
_NEVER_WITHHELD: Final = (LivenessChanged, RecoveryBegan)
"""That it is there, which comes as seldom as its silence is judged; and that the store lost rows, once."""


@attrs.frozen(kw_only=True)
class RowBudget:
    """What was left at ``at_mono_ms``, in rows times 60,000; below zero after a heartbeat that changed more."""

    left: int
    at_mono_ms: int

    def at(self, policy: Policy, now: Instant) -> "RowBudget":
        """What is left now."""
        passed_ms = max(0, now.mono_ms - self.at_mono_ms)
        left = min(self.left + passed_ms * policy.node_rows_per_minute, policy.node_rows_burst * _MINUTE_MS)
        return RowBudget(left=left, at_mono_ms=now.mono_ms)

    def less(self, rows: int) -> "RowBudget":
        """What is left after so many rows more."""
        return attrs.evolve(self, left=self.left - rows * _MINUTE_MS)

    def is_full(self, policy: Policy) -> bool:
        return self.left >= policy.node_rows_burst * _MINUTE_MS


def whole(policy: Policy, now: Instant) -> RowBudget:
    """Of a node that has caused nothing for a while."""
    return RowBudget(left=policy.node_rows_burst * _MINUTE_MS, at_mono_ms=now.mono_ms)


def allowed(budget: RowBudget | None, policy: Policy, news: Sequence[Event], now: Instant) -> list[Event]:
    """What of a heartbeat's news is written down now. One heartbeat is taken as a whole where anything is left, for it
    tells of one moment; then its node pays for it by waiting."""
    if (whole(policy, now) if budget is None else budget.at(policy, now)).left > 0:
        return list(news)
    return [event for event in news if isinstance(event, _NEVER_WITHHELD)]
