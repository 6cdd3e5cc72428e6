"""Pages of rows out of a store of any length, each with a bounded amount of work.

A store is asked for one short stretch after the other; a page that found little within its bound says where the next
one goes on. The wall time of rows never falls, so that a time is looked up among them, not filtered.
"""

from collections.abc import Callable
from typing import Final

import attrs

from lunanexa_apps.journal_rows import record_of
from lunanexa_core.canonical import canonical_json
from lunanexa_core.journal import Row
from lunanexa_core.journal_query import PageQuery, RowQuery
from lunanexa_ports.journal import JournalReader

STRETCH_ROWS: Final = 256
LOOKED_MAX: Final = 20_480
"""Rows that one page looks at."""
PAGE_BYTES: Final = 1 << 20
"""Records of one page, but always one."""

Keep = Callable[[Row], bool]


@attrs.frozen(kw_only=True)
class RowsPage:
    """``cursor`` is where the next page begins; ``None``: there is none. ``head`` is the last sequence of the store
    when it was looked at."""

    rows: tuple[Row, ...]
    cursor: int | None
    head: int


async def rows_page(reader: JournalReader, query: PageQuery) -> RowsPage:
    """The page that ``query`` asks for. Raises as :class:`JournalReader` does."""
    actor, keep = query.actor, None
    if actor is not None:
        may_be = holds("actor", actor)

        def keep(row: Row) -> bool:
            return may_be(row) and record_of(row).get("actor") == actor

    return await filtered_page(reader, query, keep)


def holds(name: str, value: str) -> Keep:
    """Whether a record has a member of that name and value somewhere: 30 times as fast as reading it, and enough to
    leave most rows unread."""
    member = canonical_json({name: value})[1:-1]
    return lambda row: member in row.record


async def filtered_page(reader: JournalReader, query: PageQuery, keep: Keep | None, *, above: int = 0) -> RowsPage:
    """As :func:`rows_page`, of rows beyond sequence ``above`` that ``keep`` lets through."""
    head = (await reader.head()).sequence
    low, high = await _bounds(reader, query, head)
    low = max(low, above)
    rows: list[Row] = []
    looked = size = 0
    while high - low > 1 and len(rows) < query.limit and size < PAGE_BYTES and looked < LOOKED_MAX:
        # Rows of one target are found by an index: the whole stretch is looked at as fast as a part.
        length = high - low if query.target is not None else min(STRETCH_ROWS + 1, high - low)
        after, before = (high - length, high) if query.newest_first else (low, low + length)
        limit = min(query.limit - len(rows), STRETCH_ROWS) if keep is None else STRETCH_ROWS
        found = await reader.page(
            RowQuery(
                after=after,
                before=before,
                newest_first=query.newest_first,
                limit=limit,
                chain=query.chain,
                action=query.action,
                target=query.target,
            )
        )
        looked += min(length, STRETCH_ROWS)
        for row in found:
            low, high = (low, row.sequence) if query.newest_first else (row.sequence, high)
            if keep is None or keep(row):
                rows.append(row)
                size += len(row.record)
                if len(rows) == query.limit or size >= PAGE_BYTES:
                    break
        else:
            if len(found) < limit:
                low, high = (low, after + 1) if query.newest_first else (before - 1, high)
    more = high - low > 1
    return RowsPage(rows=tuple(rows), cursor=(high if query.newest_first else low) if more else None, head=head)


async def _bounds(reader: JournalReader, query: PageQuery, head: int) -> tuple[int, int]:
    """The stretch of the page, its ends left out."""
    low, high = 0, head + 1
    if query.after_wall_ms is not None:
        low = await first_since(reader, query.after_wall_ms, head) - 1
    if query.before_wall_ms is not None:
        high = await first_since(reader, query.before_wall_ms, head)
    if query.cursor is not None:
        low, high = (low, min(high, query.cursor)) if query.newest_first else (max(low, query.cursor), high)
    return low, high


async def first_since(reader: JournalReader, wall_ms: int, head: int) -> int:
    """The sequence of the first row of this wall time or later; the one after the head when there is none."""
    low, high = 0, head + 1
    while high - low > 1:
        middle = (low + high) // 2
        found = await reader.page(RowQuery(after=middle - 1, before=high, limit=1))
        if found and found[0].wall_ms < wall_ms:
            low = found[0].sequence
        else:
            high = middle
    return high
