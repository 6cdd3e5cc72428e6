"""What every journal must do, tried on an empty store that may be opened several times."""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from itertools import pairwise
from typing import Final, Protocol, TypeAlias

import attrs
import trio

from lunanexa_core.ids import HolderId
from lunanexa_core.journal import Chain, Head, Row, check_row, make_row
from lunanexa_core.journal_query import RowQuery
from lunanexa_ports.errors import PortUnavailable
from lunanexa_ports.journal import Appended, Journal
from lunanexa_ports.journal_upkeep import JournalUpkeep
from lunanexa_ports.leadership import Leadership


class Store(Journal, Leadership, JournalUpkeep, Protocol):
    """One store behind all its ports, as an adapter opens it."""


OpenJournal: TypeAlias = Callable[[], AbstractAsyncContextManager[Store]]
"""Opens the one store under test, as a process would; a second opening is a second holder."""
Check: TypeAlias = Callable[[OpenJournal], Awaitable[None]]

DEADLINE_S: Final = 30.0
HOLDER: Final = HolderId("conformance")


async def lead(store: Leadership, holder: HolderId = HOLDER) -> Head:
    """Takes the lease from whoever has it, and with it a new epoch."""
    head = await store.claim(holder, "http://conformance", seen=await store.look())
    assert head is not None, "nobody else claimed"
    return head


def rows_after(head: Head, epoch: int, count: int, *, target: str = "thing", text: str = "") -> list[Row]:
    """``count`` good rows, alternately of both chains."""
    rows: list[Row] = []
    for number in range(count):
        row = make_row(
            head,
            chain=Chain.LEDGER if number % 2 else Chain.JOURNAL,
            epoch=epoch,
            wall_ms=1_800_000_000_000 + head.sequence,
            actor="conformance",
            action="tried",
            version=1,
            target=target,
            body={"number": number, "text": text},
        )
        rows.append(row)
        head = head.after(row)
    return rows


async def read_all(journal: Journal, after: int = 0, limit: int | None = None) -> list[Row]:
    return [row async for row in journal.read(after, limit)]


def verified(rows: Sequence[Row]) -> Head:
    """The head that ``rows`` lead to from nothing; each must stand in its place."""
    head = Head()
    for row in rows:
        fault = check_row(head, row)
        assert fault is None, f"row {row.sequence}: {fault}"
        head = head.after(row)
    return head


async def check_empty(store: OpenJournal) -> None:
    """A new store has the empty head, no rows and finds nothing."""
    async with store() as journal:
        assert await journal.head() == Head()
        assert await read_all(journal) == []
        assert list(await journal.page(RowQuery(target="thing", newest_first=True, limit=10))) == []


async def check_append_is_readable(store: OpenJournal) -> None:
    """What is durable is read back as it was written, and moves the head."""
    async with store() as journal:
        head = await lead(journal)
        rows = rows_after(head, head.epoch, 5, text="\u00e9\U0001f600\u2028")
        assert await journal.append(head.epoch, head, rows) is Appended.DURABLE
        assert await read_all(journal) == rows
        assert await journal.head() == verified(rows)


async def check_reopen_equals(store: OpenJournal) -> None:
    """All that was durable is there after the store was closed and opened."""
    async with store() as journal:
        head = await lead(journal)
        rows = rows_after(head, head.epoch, 600)
        assert await journal.append(head.epoch, head, rows[:300]) is Appended.DURABLE
        middle = await journal.head()
        assert await journal.append(head.epoch, middle, rows[300:]) is Appended.DURABLE
        last = await journal.head()
    async with store() as journal:
        assert await journal.head() == last
        kept = await read_all(journal)
        assert kept == rows
        assert verified(kept) == last


async def check_epochs_rise(store: OpenJournal) -> None:
    """No epoch is given twice: not to one holder, not to two, not after the store was opened again."""
    taken: list[int] = []
    async with store() as first, store() as second:
        taken.extend([(await lead(journal)).epoch for journal in (first, second, first)])
        assert (await second.head()).epoch == taken[-1]
    async with store() as journal:
        assert (await journal.head()).epoch == taken[-1]
        taken.append((await lead(journal)).epoch)
    assert all(earlier < later for earlier, later in pairwise(taken)), taken
    assert taken[0] > 0


async def check_epoch_keeps_head(store: OpenJournal) -> None:
    """Taking an epoch changes nothing else of the head, and the chains go on under it."""
    async with store() as journal:
        head = await lead(journal)
        rows = rows_after(head, head.epoch, 3)
        await _durable(journal, head, rows)
        before = await journal.head()
        taken = await lead(journal)
        assert (taken.sequence, taken.journal, taken.ledger) == (before.sequence, before.journal, before.ledger)
        assert taken == await journal.head()
        more = rows_after(taken, taken.epoch, 3)
        await _durable(journal, taken, more)
        _ = verified(rows + more)
        assert await read_all(journal) == rows + more


async def check_old_epoch_is_fenced(store: OpenJournal) -> None:
    """Once a second holder has an epoch, the first one writes nothing more."""
    async with store() as first, store() as second:
        old = await lead(first)
        rows = rows_after(old, old.epoch, 2)
        await _durable(first, old, rows)
        new = await lead(second)
        head = await first.head()
        late = rows_after(head, old.epoch, 2)
        assert await first.append(old.epoch, head, late) is Appended.FENCED
        assert await read_all(second) == rows
        more = rows_after(new, new.epoch, 2)
        await _durable(second, new, more)
        assert await first.append(old.epoch, head, late) is Appended.FENCED
        assert await read_all(first) == rows + more


async def check_epoch_never_taken_is_fenced(store: OpenJournal) -> None:
    """Epochs are taken, not made up: also a higher one than the newest is refused."""
    async with store() as journal:
        head = await lead(journal)
        assert await journal.append(head.epoch + 1, head, rows_after(head, head.epoch + 1, 1)) is Appended.FENCED
        assert await read_all(journal) == []


async def check_other_head_is_fenced(store: OpenJournal) -> None:
    """An append on another sequence or on another hash of either chain writes nothing."""
    async with store() as journal:
        empty = await lead(journal)
        rows = rows_after(empty, empty.epoch, 4)
        await _durable(journal, empty, rows)
        head = await journal.head()
        other = "f" * 64
        stale = [
            empty,
            _head(head, sequence=head.sequence + 1),
            _head(head, sequence=head.sequence - 1),
            _head(head, journal=other),
            _head(head, ledger=other),
        ]
        for expected in stale:
            outcome = await journal.append(head.epoch, expected, rows_after(expected, head.epoch, 2))
            assert outcome is Appended.FENCED, expected
        assert await read_all(journal) == rows
        assert await journal.head() == head


async def check_batch_is_whole_or_absent(store: OpenJournal) -> None:
    """A fenced batch leaves no part of itself, and the same holder can go on with the true head."""
    async with store() as journal:
        empty = await lead(journal)
        rows = rows_after(empty, empty.epoch, 2)
        await _durable(journal, empty, rows)
        assert await journal.append(empty.epoch, empty, rows_after(empty, empty.epoch, 50)) is Appended.FENCED
        head = await journal.head()
        more = rows_after(head, head.epoch, 2)
        await _durable(journal, head, more)
        assert await read_all(journal) == rows + more


async def check_one_of_two_appends_wins(store: OpenJournal) -> None:
    """Of appends at the same time on the same head exactly one is durable."""
    async with store() as first, store() as second:
        head = await lead(first)
        batches = [rows_after(head, head.epoch, 3, text=str(number)) for number in range(4)]
        outcomes: dict[int, Appended] = {}

        async def append(number: int) -> None:
            journal = (first, second)[number % 2]
            outcomes[number] = await journal.append(head.epoch, head, batches[number])

        with trio.fail_after(DEADLINE_S):
            async with trio.open_nursery() as nursery:
                for number in range(len(batches)):
                    nursery.start_soon(append, number)
        durable = [number for number, outcome in outcomes.items() if outcome is Appended.DURABLE]
        assert len(durable) == 1, outcomes
        assert await read_all(second) == batches[durable[0]]


async def check_page(store: OpenJournal) -> None:
    """Every filter alone and with others, in both orders, cut at the exact row."""
    async with store() as journal:
        head = await lead(journal)
        rows: list[Row] = []
        for number in range(6):
            rows += rows_after(head, head.epoch, 4, target=("this", "that")[number % 2])
            await _durable(journal, head, rows[-4:])
            head = await journal.head()
        assert list(await journal.page(RowQuery(limit=100))) == rows
        for newest_first in (False, True):
            for asked in (
                RowQuery(limit=3),
                RowQuery(limit=100, after=3, before=9),
                RowQuery(limit=100, after=24),
                RowQuery(limit=100, after=7, before=8),
                RowQuery(limit=100, before=1),
                RowQuery(limit=100, before=99),
                RowQuery(limit=5, chain=Chain.LEDGER, after=2),
                RowQuery(limit=5, chain=Chain.JOURNAL, target="that", before=20),
                RowQuery(limit=100, target="thi"),
                RowQuery(limit=2, action="tried", target="this"),
                RowQuery(limit=100, target="this"),
                RowQuery(limit=100, action="else"),
            ):
                query = attrs.evolve(asked, newest_first=newest_first)
                ordered = rows[::-1] if newest_first else rows
                wanted = [row for row in ordered if query.takes(row)][: query.limit]
                assert list(await journal.page(query)) == wanted, query


async def check_read_from_and_limit(store: OpenJournal) -> None:
    """``after`` and ``limit`` cut at the exact row, on each side of any chunk of the store's own."""
    async with store() as journal:
        head = await lead(journal)
        rows = rows_after(head, head.epoch, 600)
        await _durable(journal, head, rows)
        for after in (0, 1, 255, 256, 257, 511, 512, 599, 600, 601):
            assert await read_all(journal, after) == rows[after:], after
        for limit in (0, 1, 255, 256, 257, 512, 600, 601):
            assert await read_all(journal, 0, limit) == rows[:limit], limit
        assert await read_all(journal, 300, 2) == rows[300:302]


async def check_reader_does_not_hold_appends(store: OpenJournal) -> None:
    """An append ends while a reading stands still half-way, and the reading goes on in order after it."""
    async with store() as journal:
        head = await lead(journal)
        rows = rows_after(head, head.epoch, 600)
        await _durable(journal, head, rows)
        head = await journal.head()
        seen: list[Row] = []
        async for row in journal.read():
            seen.append(row)
            if len(seen) == 10:
                more = rows_after(head, head.epoch, 4)
                with trio.fail_after(DEADLINE_S):
                    await _durable(journal, head, more)
                rows += more
        assert seen[:600] == rows[:600]
        assert seen == rows[: len(seen)]


async def check_cancelled_append_is_known(store: OpenJournal) -> None:
    """A cancelled caller still learns that its rows are durable."""
    async with store() as journal:
        head = await lead(journal)
        rows = rows_after(head, head.epoch, 2)
        outcome: Appended | None = None
        with trio.CancelScope() as scope:
            scope.cancel()
            outcome = await journal.append(head.epoch, head, rows)
        assert outcome is Appended.DURABLE
        assert await read_all(journal) == rows


async def check_closed(store: OpenJournal) -> None:
    """Closing twice is once, and a closed store refuses instead of hanging."""
    async with store() as journal:
        head = await lead(journal)
        await journal.aclose()
        await journal.aclose()
        with trio.fail_after(DEADLINE_S):
            try:
                _ = await journal.append(head.epoch, head, rows_after(head, head.epoch, 1))
            except PortUnavailable:
                pass
            else:
                raise AssertionError("a closed journal has taken rows")
    async with store() as journal:
        assert await read_all(journal) == []


CHECKS: Final[tuple[Check, ...]] = (
    check_empty,
    check_append_is_readable,
    check_reopen_equals,
    check_epochs_rise,
    check_epoch_keeps_head,
    check_old_epoch_is_fenced,
    check_epoch_never_taken_is_fenced,
    check_other_head_is_fenced,
    check_batch_is_whole_or_absent,
    check_one_of_two_appends_wins,
    check_page,
    check_read_from_and_limit,
    check_reader_does_not_hold_appends,
    check_cancelled_append_is_known,
    check_closed,
)


async def _durable(journal: Journal, head: Head, rows: Sequence[Row]) -> None:
    outcome = await journal.append(head.epoch, head, rows)
    assert outcome is Appended.DURABLE, outcome


def _head(head: Head, *, sequence: int | None = None, journal: str | None = None, ledger: str | None = None) -> Head:
    return Head(
        sequence=head.sequence if sequence is None else sequence,
        epoch=head.epoch,
        journal=journal or head.journal,
        ledger=ledger or head.ledger,
    )
