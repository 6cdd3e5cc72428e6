"""How much of the ledger stays in the store, and what may leave it.

What may leave ends before the oldest workload without a receipt, and before the receipts that are kept in memory: a
replay from what is left then fills those tables by itself. Pruning is done for many rows at once: each leaves a row in
the journal for ever.
"""

from typing import Final

import attrs

from lunanexa_core.events import LedgerPruned
from lunanexa_core.journal import GENESIS, Pruned
from lunanexa_core.outcomes import Outcome, Refusal
from lunanexa_core.policy import Policy
from lunanexa_core.state import RECENT_RECEIPTS, State

SLACK: Final = 20
"""One part in so many may be there beyond what is kept, before it is pruned."""
SLACK_RECEIPTS_MAX: Final = 50_000
SLACK_MS_MAX: Final = 86_400_000
AT_ONCE_RECEIPTS: Final = 100_000
"""Receipts that one pruning takes."""
NOTHING_PRUNED: Final = Pruned(after=0, until=0, rows=0, receipts=0, ledger=GENESIS)


def prune_limit(state: State) -> int:
    """The highest sequence up to which the ledger may be pruned now; never below where it is pruned already."""
    done = 0 if state.pruned is None else state.pruned.until
    if len(state.receipts) < RECENT_RECEIPTS:
        return done
    limit = state.places[next(iter(state.receipts))].sequence - 1
    if state.open:
        limit = min(limit, min(state.admitted[workload] for workload in state.open) - 1)
    return max(done, limit)


def kept_since_wall_ms(state: State, wall_ms: int) -> int | None:
    """The time of the oldest receipt whose answer is kept to be given again, for which it is needed; ``None``: there is
    none."""
    kept = (binding for binding in state.bindings.values() if binding.answer_kept(wall_ms))
    return next((binding.since_wall_ms for binding in kept if binding.workload not in state.open), None)


def surplus_receipts(state: State, policy: Policy) -> int:
    """How many receipts shall leave for their number, the oldest ones; 0: none, or not yet."""
    if policy.ledger_keep_receipts == 0:
        return 0
    keep = max(policy.ledger_keep_receipts, RECENT_RECEIPTS)
    gone = 0 if state.pruned is None else state.pruned.receipts
    surplus = sum(totals.requests for totals in state.totals.values()) - gone - keep
    return 0 if surplus < min(keep // SLACK, SLACK_RECEIPTS_MAX) else min(surplus, AT_ONCE_RECEIPTS)


@attrs.frozen
class Outdated:
    """Rows before ``before_wall_ms`` shall leave once the oldest is before ``once_wall_ms``."""

    before_wall_ms: int
    once_wall_ms: int


def outdated(policy: Policy, wall_ms: int) -> Outdated | None:
    """Which rows shall leave for their age; ``None``: none ever."""
    keep = policy.ledger_keep_ms
    if keep == 0:
        return None
    return Outdated(wall_ms - keep, wall_ms - keep - min(keep // SLACK, SLACK_MS_MAX))


def prune_refusal(state: State, pruned: LedgerPruned) -> Refusal | None:
    """Why this pruning can't be done; ``None``: it can."""
    done, limit = state.pruned or NOTHING_PRUNED, prune_limit(state)
    if pruned.after != done.until or not done.until < pruned.until <= limit:
        message = f"The ledger is pruned up to {done.until} and can be up to {limit}, not {pruned.until}."
    elif pruned.count <= done.rows or pruned.receipts < done.receipts:
        message = "A pruning can't bring rows back."
    else:
        return None
    return Refusal(outcome=Outcome.STALE_GENERATION, message=message, param="until")
