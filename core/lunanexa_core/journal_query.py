"""What may be asked of a journal: of a store by head columns alone, of a page also by what the records hold."""

import attrs

from lunanexa_core.ids import TenantId
from lunanexa_core.journal import Chain, Row

PAGE_ROWS_MAX = 500
"""Most rows, and most receipts, of one page."""


@attrs.frozen(kw_only=True)
class RowQuery:
    """Rows of one stretch of the sequence, ``after`` and ``before`` themselves left out; ``None``: up to the head. A
    filter that is ``None`` lets every row through."""

    after: int = 0
    before: int | None = None
    newest_first: bool = False
    limit: int
    chain: Chain | None = None
    action: str | None = None
    target: str | None = None

    def takes(self, row: Row) -> bool:
        """Whether ``row`` is asked for."""
        return (
            row.sequence > self.after
            and (self.before is None or row.sequence < self.before)
            and (self.chain is None or row.chain is self.chain)
            and (self.action is None or row.action == self.action)
            and (self.target is None or row.target == self.target)
        )


@attrs.frozen(kw_only=True)
class PageQuery:
    """One page of rows. It begins beyond sequence ``cursor``, in the order that is asked for. Of times the first
    counts, the last does not."""

    limit: int
    cursor: int | None = None
    newest_first: bool = True
    chain: Chain | None = None
    action: str | None = None
    target: str | None = None
    actor: str | None = None
    after_wall_ms: int | None = None
    before_wall_ms: int | None = None


@attrs.frozen(kw_only=True)
class ReceiptQuery:
    """One page of receipts, the newest first: those below ledger sequence ``cursor``, settled at ``after_wall_ms`` or
    later and before ``before_wall_ms``."""

    limit: int
    cursor: int | None = None
    tenant: TenantId | None = None
    after_wall_ms: int | None = None
    before_wall_ms: int | None = None
