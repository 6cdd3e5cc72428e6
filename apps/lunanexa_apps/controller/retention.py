"""Retention: rows that are over number or age leave the ledger, after what must go on of them is in the journal.

First they are archived, then the journal says up to where they may leave and carries their sums, then they are
dropped, in small steps. A crash between leaves rows that may go; the next leader drops them.
"""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final

import attrs
import structlog
import trio

from lunanexa_apps.codec import CodecError, decode
from lunanexa_apps.controller.kernel import Kernel
from lunanexa_apps.controller.rows import SETTLED_ACTION
from lunanexa_apps.journal_lines import end_line, ledger_line, row_line
from lunanexa_apps.journal_pages import filtered_page, first_since
from lunanexa_core.commands import PruneLedger
from lunanexa_core.events import LedgerFile, LedgerPruned
from lunanexa_core.journal import Chain, ChainFault, Head, Pruned, Row, read_ledger_row
from lunanexa_core.journal_query import PAGE_ROWS_MAX, PageQuery, RowQuery
from lunanexa_core.ledger_carry import LedgerCarry
from lunanexa_core.ledger_retention import NOTHING_PRUNED, kept_since_wall_ms, outdated, prune_limit, surplus_receipts
from lunanexa_core.outcomes import Refusal
from lunanexa_ports.errors import PortFault, PortUnavailable
from lunanexa_ports.journal import JournalReader
from lunanexa_ports.journal_upkeep import JournalUpkeep
from lunanexa_ports.ledger_archive import LedgerArchive
from lunanexa_ports.replays import Replays
from lunanexa_ports.workers import Workers

LOOK_S: Final = 60
DROP_SEQUENCES: Final = 512
DROP_PAUSE_S: Final = 0.02
"""Between two steps of dropping: appends come first."""
AT_ONCE_SEQUENCES: Final = 400_000
"""The longest stretch that one pruning takes."""
HELD_BACK_SEQUENCES: Final = 256
"""The shortest stretch for which a pruning is done that can't take all that is over."""
_PAGE_ROWS: Final = 32
_ACTOR: Final = "retention"
_log = structlog.get_logger()


@attrs.frozen(kw_only=True)
class RetentionPorts:
    """What retention needs of the world. ``archive``: where dropped rows are kept; ``None``: nowhere."""

    upkeep: JournalUpkeep
    replays: Replays
    workers: Workers
    archive: LedgerArchive | None


async def run_retention(
    kernel: Kernel, ports: RetentionPorts, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    """Looks once a minute, while this controller leads. What can't be done now is tried again then."""
    retention = _Retention(kernel, ports)
    task_status.started()
    while True:
        await kernel.wait_leading()
        try:
            await retention.look()
        except PortUnavailable as error:
            _log.warning("ledger_not_pruned", reason=str(error))
        except PortFault as error:
            _log.error("ledger_not_pruned", reason=str(error), fix="lunanexa journal verify")
        await trio.sleep(LOOK_S)


@attrs.frozen(kw_only=True)
class _Stretch:
    """Rows of the ledger that shall leave: from sequence ``first`` to ``last``, which stand after ``before``."""

    before: Pruned
    first: int
    last: int


@attrs.define
class _Counted:
    """How far a stretch was read, each row verified in its chain, and what was in it."""

    head: Head
    rows: int = 0
    receipts: int = 0

    def take(self, row: Row) -> None:
        fault = read_ledger_row(self.head, row)
        if isinstance(fault, ChainFault):
            raise PortFault(f"the ledger is damaged at sequence {row.sequence}: {fault.value}; restore a backup")
        self.head = self.head.after(row)
        self.rows += 1
        self.receipts += row.action == SETTLED_ACTION


class _Retention:
    def __init__(self, kernel: Kernel, ports: RetentionPorts) -> None:
        self._kernel = kernel
        self._ports = ports
        self._dropped_until = 0

    async def look(self) -> None:
        """Prunes until nothing is over; begins with what an earlier one left. Nothing leaves a store of which nobody
        has said yet that it is the right one."""
        if self._kernel.state.recovery is not None:
            return
        await self._drop()
        while (stretch := await self._choose()) is not None and await self._prune(stretch):
            await self._drop()

    async def _drop(self) -> None:
        pruned = self._kernel.state.pruned
        if pruned is None or pruned.until <= self._dropped_until:
            return
        dropped = 0
        # A pruning is decided when the one before it is done: what may be left is of the newest.
        for after in range(pruned.after, pruned.until, DROP_SEQUENCES):
            until = min(after + DROP_SEQUENCES, pruned.until)
            dropped += await self._ports.upkeep.drop_ledger(until, DROP_SEQUENCES, after=after)
            await trio.sleep(DROP_PAUSE_S)
        self._dropped_until = pruned.until
        if dropped:
            _log.info("ledger_dropped", until=pruned.until, rows=dropped)

    async def _choose(self) -> _Stretch | None:
        """What shall leave now."""
        kernel = self._kernel
        state, reader = kernel.state, kernel.reader
        before, limit = state.pruned or NOTHING_PRUNED, prune_limit(state)
        surplus, old = surplus_receipts(state, kernel.policy), outdated(kernel.policy, kernel.now().wall_ms)
        if limit <= before.until or (surplus == 0 and old is None):
            return None
        oldest = await _ledger_row(reader, RowQuery(after=before.until, chain=Chain.LEDGER, limit=1))
        if oldest is None:
            return None
        kept = kept_since_wall_ms(state, kernel.now().wall_ms)
        if kept is not None:
            limit = min(limit, await first_since(reader, kept, kernel.head.sequence) - 1)
        wanted = before.until if surplus == 0 else await _receipt_after(reader, before.until, surplus)
        if old is not None and oldest.wall_ms < old.once_wall_ms:
            wanted = max(wanted, await first_since(reader, old.before_wall_ms, kernel.head.sequence) - 1)
        wanted = min(wanted, oldest.sequence + AT_ONCE_SEQUENCES)
        if limit < wanted and limit - oldest.sequence < HELD_BACK_SEQUENCES:
            return None  # A pruning for a few rows each time that one more may leave is not worth it.
        newest = RowQuery(
            after=before.until, before=min(wanted, limit) + 1, newest_first=True, chain=Chain.LEDGER, limit=1
        )
        last = await _ledger_row(reader, newest)
        return None if last is None else _Stretch(before=before, first=oldest.sequence, last=last.sequence)

    async def _prune(self, stretch: _Stretch) -> bool:
        """Whether it was done."""
        before, archive = stretch.before, self._ports.archive
        counted = _Counted(Head(sequence=before.until, ledger=before.ledger))
        file: LedgerFile | None = None
        async with aclosing(_lines(self._kernel.reader, counted, stretch.last)) as lines:
            if archive is not None:
                file = await archive.keep(stretch.first, stretch.last, lines)
            else:
                async for _ in lines:
                    pass
        pruned = LedgerPruned(
            after=before.until,
            until=stretch.last,
            count=before.rows + counted.rows,
            receipts=before.receipts + counted.receipts,
            ledger=counted.head.ledger,
            carry=await self._carry(stretch.last, before.receipts + counted.receipts),
            archive=file,
        )
        answer = await self._kernel.ask(PruneLedger(pruned), _ACTOR)
        if isinstance(answer, Refusal):
            _log.warning("ledger_not_pruned", reason=answer.message)
            return False
        where = None if archive is None or file is None else archive.place(file.name)
        _log.info("ledger_pruned", until=pruned.until, rows=counted.rows, receipts=counted.receipts, archive=where)
        return True

    async def _carry(self, until: int, receipts: int) -> str:
        """What goes on, held against the rows: nothing else could tell later that it was wrong."""
        carry = await self._ports.replays.carry(until)
        try:
            told = await self._ports.workers.run(lambda: decode(LedgerCarry, carry))
        except CodecError as error:
            raise PortFault(f"what was replayed can't be read: {error}") from None
        summed = sum(totals.requests for totals in told.totals.values())
        if summed != receipts:
            raise PortFault(f"a replay up to sequence {until} sums {summed} receipts, the ledger has {receipts}")
        return carry.decode()


async def _lines(reader: JournalReader, counted: _Counted, last: int) -> AsyncGenerator[bytes, None]:
    """The stretch up to ``last`` as a file's lines, a page of rows at a time."""
    yield ledger_line(counted.head)
    while counted.head.sequence < last:
        query = RowQuery(after=counted.head.sequence, before=last + 1, chain=Chain.LEDGER, limit=_PAGE_ROWS)
        rows = await reader.page(query)
        if not rows:
            raise PortFault(f"the ledger is damaged at sequence {last}: the row is missing; restore a backup")
        for row in rows:
            counted.take(row)
        yield b"".join(row_line(row) for row in rows)
    yield end_line(counted.head)


async def _ledger_row(reader: JournalReader, query: RowQuery) -> Row | None:
    rows = await reader.page(query)
    return rows[0] if rows else None


async def _receipt_after(reader: JournalReader, after: int, number: int) -> int:
    """The sequence of the ``number``-th receipt after sequence ``after``, or of the last one there."""
    cursor: int | None = after
    found = after
    while cursor is not None and number > 0:
        limit = min(number, PAGE_ROWS_MAX)
        query = PageQuery(limit=limit, cursor=cursor, newest_first=False, chain=Chain.LEDGER, action=SETTLED_ACTION)
        page = await filtered_page(reader, query, None)
        number -= len(page.rows)
        found, cursor = page.rows[-1].sequence if page.rows else found, page.cursor
    return found
