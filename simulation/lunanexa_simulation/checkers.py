"""The invariants in their order, and who asks them.

They are asked at every quiescent instant of a run. An invariant that never looked is no proof, so it is
counted how often each was asked.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

import attrs

from lunanexa_simulation.invariants.books import counters_add_up, one_receipt
from lunanexa_simulation.invariants.fleet import (
    door_lease,
    exclusive_alone,
    granted_newest_only,
    one_process_each,
    routable_is_bound,
)
from lunanexa_simulation.invariants.secrets import no_secret_shown
from lunanexa_simulation.invariants.store import (
    chains_verify,
    fences_never_fall,
    one_writer,
    replay_equals_live,
    shadow_equals_live,
    snapshots_agree,
    time_is_steady,
)
from lunanexa_simulation.sight import Sight
from lunanexa_simulation.verdicts import SafetyBroken

Invariant: TypeAlias = Callable[[Sight], str | None]

INVARIANTS: Final[Sequence[Invariant]] = (
    chains_verify,
    one_writer,
    time_is_steady,
    shadow_equals_live,
    snapshots_agree,
    one_receipt,
    counters_add_up,
    fences_never_fall,
    granted_newest_only,
    routable_is_bound,
    one_process_each,
    exclusive_alone,
    door_lease,
    no_secret_shown,
)


@attrs.define
class Checkers:
    """Asks every invariant of one sight, and counts."""

    sight: Sight
    invariants: Sequence[Invariant] = INVARIANTS
    asked: Counter[str] = attrs.Factory(Counter)

    def look(self) -> None:
        """The check of a quiescent instant. Raises :class:`SafetyBroken` naming the invariant."""
        self.sight.catch_up()
        for invariant in self.invariants:
            self._judge(_name(invariant), invariant(self.sight))

    def look_back(self) -> None:
        """The full replay, for crashes and the end, while the kernel still stands."""
        if self.sight.kernel is not None:
            rows = self.sight.rows_after(0, self.sight.kernel.head.sequence)
            self._judge(_name(replay_equals_live), replay_equals_live(rows, self.sight.kernel.state))

    def _judge(self, name: str, problem: str | None) -> None:
        self.asked[name] += 1
        if problem is not None:
            raise SafetyBroken(f"{name}: {problem}")


def _name(invariant: Callable[..., object]) -> str:
    return invariant.__name__
