"""Receipts, also those that have left memory: all of them are in the ledger."""

from typing import Final

from lunanexa_apps.codec import CodecError
from lunanexa_apps.controller.kernel import Kernel
from lunanexa_apps.controller.rows import SETTLED_ACTION, from_row, place_of
from lunanexa_apps.journal_pages import filtered_page, holds
from lunanexa_core.events import WorkloadSettled
from lunanexa_core.ids import WorkloadId
from lunanexa_core.journal import Chain, Row, is_hashed
from lunanexa_core.journal_query import PageQuery, ReceiptQuery, RowQuery
from lunanexa_core.state import RECENT_RECEIPTS
from lunanexa_core.workload import LedgerReceipt
from lunanexa_ports.errors import PortFault

_FOUND_MAX: Final = 64
"""Rows of one name that are looked through: what is no workload may bear it too."""


async def find_receipt(kernel: Kernel, workload: WorkloadId) -> LedgerReceipt | None:
    """The newest receipt of a workload, at hand or from the ledger. Raises as
    :class:`~lunanexa_ports.journal.Journal` does."""
    state = kernel.state
    if workload in state.receipts:
        return LedgerReceipt(state.receipts[workload], state.places[workload])
    newest = RowQuery(target=workload, newest_first=True, limit=_FOUND_MAX)
    for row in await kernel.reader.page(newest):
        if row.chain is Chain.LEDGER and row.action == SETTLED_ACTION:
            return _receipt(row)
    return None


def where_it_begins(kernel: Kernel) -> str:
    """What to add for whoever looks for a row or a receipt that is not there."""
    pruned = kernel.state.pruned
    return "" if pruned is None else f" Rows up to sequence {pruned.until} have left the ledger."


async def receipts_page(kernel: Kernel, query: ReceiptQuery) -> tuple[list[LedgerReceipt], int | None]:
    """Receipts, the newest first, and where the next page goes on, which may be short or empty; ``None``: there is no
    more. Raises as :class:`~lunanexa_ports.journal.Journal` does."""
    state, cursor, found = kernel.state, query.cursor, list[LedgerReceipt]()
    if query.after_wall_ms is None and query.before_wall_ms is None:
        # At hand are the newest of all, but not when they were settled.
        for workload, receipt in reversed(state.receipts.items()):
            place = state.places[workload]
            if cursor is not None and place.sequence >= cursor:
                continue
            cursor = place.sequence
            if query.tenant is None or receipt.tenant == query.tenant:
                found.append(LedgerReceipt(receipt, place))
            if len(found) == query.limit:
                return found, cursor
        if len(state.receipts) < RECENT_RECEIPTS:
            return found, None
    older = PageQuery(
        limit=query.limit - len(found),
        cursor=cursor,
        chain=Chain.LEDGER,
        action=SETTLED_ACTION,
        after_wall_ms=query.after_wall_ms,
        before_wall_ms=query.before_wall_ms,
    )
    tenant, keep = query.tenant, None
    if tenant is not None:
        may_be = holds("tenant", tenant)

        def keep(row: Row) -> bool:
            return may_be(row) and _receipt(row).receipt.tenant == tenant

    pruned = kernel.state.pruned
    page = await filtered_page(kernel.reader, older, keep, above=0 if pruned is None else pruned.until)
    return [*found, *map(_receipt, page.rows)], page.cursor


def _receipt(row: Row) -> LedgerReceipt:
    if not is_hashed(row):
        raise PortFault(f"the ledger is damaged at sequence {row.sequence}: restore a backup")
    try:
        event = from_row(row)
    except CodecError as error:
        raise PortFault(f"the ledger can't be read at sequence {row.sequence}: {error}") from None
    place = place_of(row)
    assert isinstance(event, WorkloadSettled), event
    assert place is not None, row.sequence
    return LedgerReceipt(event.receipt, place)
