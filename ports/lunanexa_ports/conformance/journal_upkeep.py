"""What every store must do when it is pruned and when it is filled, tried on an empty store."""

from collections.abc import AsyncIterator, Sequence
from typing import Final

import trio

from lunanexa_core.journal import Chain, Head, Row
from lunanexa_core.journal_query import RowQuery
from lunanexa_ports.conformance.journal import (
    DEADLINE_S,
    HOLDER,
    Check,
    OpenJournal,
    Store,
    lead,
    read_all,
    rows_after,
    verified,
)
from lunanexa_ports.journal import Appended

_COUNT: Final = 1_300
"""More than any store writes or reads at once."""


class _SourceBroke(Exception):
    """What rows came from is gone."""


async def _rows(rows: Sequence[Row], breaks_after: int | None = None) -> AsyncIterator[Row]:
    for number, row in enumerate(rows):
        if number == breaks_after:
            raise _SourceBroke
        await trio.lowlevel.checkpoint()
        yield row


async def _begun(journal: Store, count: int) -> list[Row]:
    head = await lead(journal)
    rows = rows_after(head, head.epoch, count)
    assert await journal.append(head.epoch, head, rows) is Appended.DURABLE
    return rows


def _kept(rows: Sequence[Row], until: int) -> list[Row]:
    """What is left of ``rows`` once the ledger is dropped up to ``until``."""
    return [row for row in rows if row.chain is Chain.JOURNAL or row.sequence > until or row is rows[-1]]


async def check_drop(store: OpenJournal) -> None:
    """The oldest rows of the ledger go first, so many at most; the rest, the journal and the head stay."""
    async with store() as journal:
        rows = await _begun(journal, 20)
        head = await journal.head()
        assert await journal.drop_ledger(until=4, limit=2, after=4) == 0
        assert await journal.drop_ledger(until=11, limit=2) == 2
        assert await read_all(journal) == _kept(rows, 4)
        assert await journal.drop_ledger(until=11, limit=100, after=11) == 0
        assert await journal.drop_ledger(until=11, limit=100, after=2) == 3
        assert await read_all(journal) == _kept(rows, 11)
        assert await journal.drop_ledger(until=11, limit=100) == 0
        assert await journal.drop_ledger(until=5, limit=100) == 0
        assert await journal.drop_ledger(until=0, limit=100) == 0
        assert await journal.head() == head
    async with store() as journal:
        assert await read_all(journal) == _kept(rows, 11)
        assert await journal.head() == head


async def check_drop_keeps_the_newest_row(store: OpenJournal) -> None:
    """Also when it is of the ledger: an opened store is judged by it. What is written later goes on from it."""
    async with store() as journal:
        rows = await _begun(journal, 6)
        assert rows[-1].chain is Chain.LEDGER
        assert await journal.drop_ledger(until=1_000, limit=1_000) == 2
        assert await read_all(journal) == _kept(rows, 6)
    async with store() as journal:
        head = await journal.head()
        assert head == verified(rows)
        more = rows_after(head, head.epoch, 3)
        assert await journal.append(head.epoch, head, more) is Appended.DURABLE
        assert await journal.drop_ledger(until=6, limit=1_000) == 1
        assert await read_all(journal) == [row for row in rows if row.chain is Chain.JOURNAL] + more


async def check_reading_over_gaps(store: OpenJournal) -> None:
    """Reads and pages count rows, not sequences, on each side of any chunk of the store's own."""
    async with store() as journal:
        rows = await _begun(journal, _COUNT)
        assert await journal.drop_ledger(until=1_001, limit=_COUNT) == 500
        kept = _kept(rows, 1_001)
        assert await read_all(journal) == kept
        for after in (1, 2, 510, 511, 512, 513, 1_001, 1_002, _COUNT):
            assert await read_all(journal, after) == [row for row in kept if row.sequence > after], after
        for limit in (255, 256, 257, 512, 513):
            assert await read_all(journal, 3, limit) == [row for row in kept if row.sequence > 3][:limit], limit
        for newest_first in (False, True):
            query = RowQuery(after=900, before=1_010, newest_first=newest_first, limit=60)
            taken = [row for row in (kept[::-1] if newest_first else kept) if query.takes(row)]
            assert list(await journal.page(query)) == taken[:60]


async def check_fill(store: OpenJournal) -> None:
    """A whole journal is written as it was, nobody leads it, and its next leader goes on from it."""
    rows = rows_after(Head(), 7, _COUNT, text="\u00e9")
    async with store() as journal:
        before = await journal.look()
        head = await journal.fill(_rows(rows))
        assert head == verified(rows)
        assert head == await journal.head()
        lease = await journal.look()
        assert (lease.holder, lease.epoch) == (None, 7)
        assert lease.changes > before.changes
    async with store() as journal:
        assert await read_all(journal) == rows
        taken = await lead(journal)
        assert taken.epoch > 7
        more = rows_after(taken, taken.epoch, 2)
        assert await journal.append(taken.epoch, taken, more) is Appended.DURABLE
        _ = verified(await read_all(journal))


async def check_fill_with_gaps(store: OpenJournal) -> None:
    """Where the ledger was pruned rows are missing; the head is after the last one all the same."""
    rows = rows_after(Head(), 3, 40)
    kept = _kept(rows, 31)
    async with store() as journal:
        assert await journal.fill(_rows(kept)) == verified(rows)
    async with store() as journal:
        assert await read_all(journal) == kept
        assert await journal.drop_ledger(until=35, limit=100) == 2


async def check_fill_of_a_store_with_rows(store: OpenJournal) -> None:
    """A store that has rows stays as it is, also one whose rows are of this very journal."""
    async with store() as journal:
        rows = await _begun(journal, 4)
        before = await journal.head(), await journal.look()
        for filling in (rows, rows_after(Head(), 9, 12), []):
            assert await journal.fill(_rows(filling)) is None
        assert (await journal.head(), await journal.look()) == before
        assert await read_all(journal) == rows


async def check_fill_is_whole_or_absent(store: OpenJournal) -> None:
    """Rows that stop coming, or a caller that leaves, leave the store empty; it can be filled, or led, then."""
    rows = rows_after(Head(), 2, _COUNT)

    async def left() -> AsyncIterator[Row]:
        async for row in _rows(rows[:-1]):
            yield row
        scope.cancel()
        await trio.sleep_forever()

    async with store() as journal:
        for breaks_after in (0, 1, _COUNT - 1):
            try:
                _ = await journal.fill(_rows(rows, breaks_after))
            except _SourceBroke:
                pass
            else:
                raise AssertionError("rows were missing")
            assert await read_all(journal) == []
        with trio.CancelScope() as scope:
            _ = await journal.fill(left())
        assert scope.cancelled_caught
        assert await read_all(journal) == []
        assert await journal.head() == Head()
        with trio.fail_after(DEADLINE_S):
            assert await journal.fill(_rows(rows)) == verified(rows)
        assert await read_all(journal) == rows


async def check_fill_fences(store: OpenJournal) -> None:
    """Somebody who leads the empty store leads it no more, and no epoch is given again."""
    rows = rows_after(Head(), 1, 4)
    async with store() as journal:
        head = await lead(journal)
        while head.epoch < 5:
            head = await lead(journal)
        filled = await journal.fill(_rows(rows))
        assert filled is not None
        assert filled.epoch == head.epoch
        assert await journal.append(head.epoch, head, rows_after(head, head.epoch, 1)) is Appended.FENCED
        assert not await journal.renew(HOLDER, head.epoch)
        assert (await lead(journal)).epoch > head.epoch


CHECKS: Final[tuple[Check, ...]] = (
    check_drop,
    check_drop_keeps_the_newest_row,
    check_reading_over_gaps,
    check_fill,
    check_fill_with_gaps,
    check_fill_of_a_store_with_rows,
    check_fill_is_whole_or_absent,
    check_fill_fences,
)
