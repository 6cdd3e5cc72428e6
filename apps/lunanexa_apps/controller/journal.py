"""Journal and ledger as operators read them: rows from the store, head and digest from the kernel."""

from collections.abc import Awaitable
from typing import TypeVar

import trio

from lunanexa_apps.codec import unstructure
from lunanexa_apps.controller.authority import find_operator
from lunanexa_apps.controller.digests import PARTS_AT_ONCE, digest_of
from lunanexa_apps.controller.kernel import Kernel
from lunanexa_apps.controller.ledger import where_it_begins
from lunanexa_apps.journal_pages import rows_page
from lunanexa_apps.journal_rows import row_document
from lunanexa_core.canonical import JsonValue
from lunanexa_core.contract.journal import HeadDocument, PrunedDocument, StateDocument
from lunanexa_core.journal_query import PAGE_ROWS_MAX, PageQuery, RowQuery
from lunanexa_core.keys import Role
from lunanexa_core.outcomes import Outcome, Refusal
from lunanexa_core.state_digest import table_sizes
from lunanexa_ports.errors import PortFault, PortUnavailable
from lunanexa_ports.journal_plane import JournalPlane

T = TypeVar("T")


class KernelJournal(JournalPlane):
    """Asks nothing of the kernel's inbox: reading never waits for a batch."""

    def __init__(self, kernel: Kernel, version: str) -> None:
        self._kernel = kernel
        self._version = version

    async def rows(self, token: str | None, query: PageQuery) -> JsonValue | Refusal:
        refusal = self._refused(token)
        if refusal is not None:
            return refusal
        if not 1 <= query.limit <= PAGE_ROWS_MAX:
            return Refusal(
                outcome=Outcome.INVALID_REQUEST, message=f"limit must be 1 to {PAGE_ROWS_MAX}.", param="limit"
            )
        return await read_store(self._page(query))

    async def row(self, token: str | None, sequence: int) -> JsonValue | Refusal:
        refusal = self._refused(token)
        return refusal if refusal is not None else await read_store(self._row(sequence))

    async def head(self, token: str | None) -> JsonValue | Refusal:
        refusal = self._refused(token)
        if refusal is not None:
            return refusal
        head, pruned = self._kernel.head, self._kernel.state.pruned
        return unstructure(
            HeadDocument(
                sequence=head.sequence,
                epoch=head.epoch,
                journal=head.journal,
                ledger=head.ledger,
                pruned=None
                if pruned is None
                else PrunedDocument(
                    until=pruned.until, rows=pruned.rows, receipts=pruned.receipts, ledger=pruned.ledger
                ),
            )
        )

    async def state(self, token: str | None) -> JsonValue | Refusal:
        refusal = self._refused(token)
        if refusal is not None:
            return refusal
        # A copy of the tables: the kernel goes on while this is counted together.
        state, sequence = self._kernel.state.copy(), self._kernel.head.sequence
        digest = await digest_of(state)
        return unstructure(
            StateDocument(sequence=sequence, digest=digest, tables=table_sizes(state), version=self._version)
        )

    def _refused(self, token: str | None) -> Refusal | None:
        operator = find_operator(self._kernel, token, Role.OPERATOR, Role.AUDITOR, standby=True)
        return operator if isinstance(operator, Refusal) else None

    async def _page(self, query: PageQuery) -> JsonValue:
        page = await rows_page(self._kernel.reader, query)
        documents: list[JsonValue] = []
        for row in page.rows:
            documents.append(row_document(row))
            if len(documents) % PARTS_AT_ONCE == 0:
                await trio.lowlevel.checkpoint()
        return {
            "data": documents,
            "next_cursor": None if page.cursor is None else str(page.cursor),
            "head": page.head,
        }

    async def _row(self, sequence: int) -> JsonValue | Refusal:
        found = await self._kernel.reader.page(RowQuery(after=sequence - 1, before=sequence + 1, limit=1))
        if not found:
            return Refusal(
                outcome=Outcome.NOT_FOUND, message=f"There is no row {sequence}.{where_it_begins(self._kernel)}"
            )
        return row_document(found[0])


async def read_store(reading: Awaitable[T]) -> T | Refusal:
    """What ``reading`` gives, or why the store did not give it."""
    try:
        return await reading
    except PortUnavailable:
        return Refusal(outcome=Outcome.STORE_UNAVAILABLE, message="The store can't be read at the moment.")
    except PortFault as error:
        return Refusal(outcome=Outcome.INTERNAL, message=f"{error}.")
