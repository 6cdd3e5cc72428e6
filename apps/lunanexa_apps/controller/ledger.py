"""Receipts, also those that have left memory: all of them are in the ledger."""

from typing import Final

from lunanexa_apps.codec import CodecError
from lunanexa_apps.controller.kernel import Kernel
from lunanexa_apps.controller.rows import from_row, place_of
from lunanexa_core.events import KIND_OF_TYPE, WorkloadSettled
from lunanexa_core.ids import WorkloadId
from lunanexa_core.workload import LedgerReceipt
from lunanexa_ports.errors import PortFault

_FOUND_MAX: Final = 64
"""Rows of one name that are looked through: what is no workload may bear it too."""
_SETTLED: Final = KIND_OF_TYPE[WorkloadSettled].action


async def find_receipt(kernel: Kernel, workload: WorkloadId) -> LedgerReceipt | None:
    """The newest receipt of a workload, at hand or from the ledger. Raises as
    :class:`~lunanexa_ports.journal.Journal` does."""
    state = kernel.state
    if workload in state.receipts:
        return LedgerReceipt(state.receipts[workload], state.places[workload])
    for row in reversed(await kernel.find(workload, _FOUND_MAX)):
        place = place_of(row)
        if place is None or row.action != _SETTLED:
            continue
        try:
            event = from_row(row)
        except CodecError as error:
            raise PortFault(f"the ledger can't be read at sequence {row.sequence}: {error}") from None
        assert isinstance(event, WorkloadSettled), event
        return LedgerReceipt(event.receipt, place)
    return None
