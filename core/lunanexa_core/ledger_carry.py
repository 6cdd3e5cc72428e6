"""What pruning the ledger carries on: its tables as of the prune point.

A replay that begins at that point stands on them as one from the beginning stands on the rows. Counters that the
others give are not carried. Neither are receipts at hand and their places: so many come after the point that those
before it have left memory (:mod:`lunanexa_core.ledger_retention`).
"""

from collections import Counter
from collections.abc import Iterable
from typing import TypeVar

import attrs

from lunanexa_core.admission.windows import KeyWindows
from lunanexa_core.binding import Binding
from lunanexa_core.ids import KeyId, TenantId
from lunanexa_core.state import OpenWorkload, State, Totals

K = TypeVar("K")


@attrs.frozen
class CarriedOpen:
    """A workload that had no receipt yet, and the sequence of its admission."""

    workload: OpenWorkload
    admitted: int


@attrs.frozen
class CarriedBinding:
    """An idempotency key that was bound."""

    key: str
    binding: Binding


@attrs.frozen(kw_only=True)
class LedgerCarry:
    """Both series are in the order of their tables."""

    open: tuple[CarriedOpen, ...] = ()
    bindings: tuple[CarriedBinding, ...] = ()
    totals: dict[TenantId, Totals] = attrs.Factory(dict)
    totals_of_key: dict[KeyId, Totals] = attrs.Factory(dict)
    windows: dict[KeyId, KeyWindows] = attrs.Factory(dict)


def carry_of(state: State) -> LedgerCarry:
    """What ``state`` as of a prune point carries on."""
    return LedgerCarry(
        open=tuple(CarriedOpen(workload, state.admitted[name]) for name, workload in state.open.items()),
        bindings=tuple(CarriedBinding(key, binding) for key, binding in state.bindings.items()),
        totals=dict(state.totals),
        totals_of_key=dict(state.totals_of_key),
        windows=dict(state.windows),
    )


def install_carry(state: State, carry: LedgerCarry) -> None:
    """Gives ``state``, which has seen no row of the ledger, the ledger's tables of the prune point."""
    state.open = {carried.workload.request.workload: carried.workload for carried in carry.open}
    state.admitted = {carried.workload.request.workload: carried.admitted for carried in carry.open}
    state.open_of_key = _counted(workload.key for workload in state.open.values())
    state.open_of_deployment = _counted(workload.deployment for workload in state.open.values())
    state.bindings = {carried.key: carried.binding for carried in carry.bindings}
    state.bound = {carried.binding.workload: carried.key for carried in carry.bindings}
    state.bindings_of_tenant = _counted(binding.tenant for binding in state.bindings.values())
    state.totals = dict(carry.totals)
    state.totals_of_key = dict(carry.totals_of_key)
    state.windows = dict(carry.windows)


def _counted(keys: Iterable[K]) -> dict[K, int]:
    return dict(Counter(keys))
