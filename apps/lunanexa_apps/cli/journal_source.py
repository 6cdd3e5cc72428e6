"""Where rows come from: a running controller, over its operator plane, or the store of a stopped one."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from functools import partial
from typing import Final, Protocol, TypeVar

import attrs

from lunanexa_apps.cli.asking import OPERATOR_TOKEN, use_client
from lunanexa_apps.cli.options import settings_or_exit
from lunanexa_apps.cli.target import fail_unanswered, fail_with, find_target
from lunanexa_apps.cli.tools import EXIT_CONFIG, EXIT_HELD, EXIT_UNAVAILABLE, Tools, demand_file, fail
from lunanexa_apps.codec import CodecError, structure
from lunanexa_apps.controller.rows import PRUNED_ACTION, Pruning, pruning_of
from lunanexa_apps.installation import CONTROLLER_LOCK, STORE
from lunanexa_apps.journal_pages import RowsPage, rows_page
from lunanexa_apps.journal_rows import row_of_document
from lunanexa_client import AsyncOperator, Document, LunaNexaError
from lunanexa_core.contract.journal import HeadDocument, StateDocument
from lunanexa_core.events import LEDGER_TARGET
from lunanexa_core.journal import Head, PrunePoint, Row
from lunanexa_core.journal_query import PAGE_ROWS_MAX, PageQuery
from lunanexa_core.outcomes import TABLE, Outcome
from lunanexa_ports.errors import PortError, PortFault
from lunanexa_ports.journal import JournalReader
from lunanexa_ports.private_files import LockHeld

T = TypeVar("T")
EXIT_DAMAGED: Final = TABLE[Outcome.INTERNAL].exit_code


class Source(Protocol):
    """Rows, and where they end. Raises ``PortError`` (``PortFault`` where a row can't be read), and ``LunaNexaError``
    where a controller does not answer or refuses."""

    async def head(self) -> Head:
        """Where both chains stand."""

    async def page(self, query: PageQuery) -> RowsPage:
        """A page of rows."""

    async def state(self) -> StateDocument | None:
        """The digest of the live state; ``None``: nothing lives."""


class StoreDamaged(PortFault):
    """The controller can't read its own store."""


@attrs.frozen
class PlaneSource(Source):
    """A running controller."""

    operator: AsyncOperator

    async def head(self) -> Head:
        told = await _told(HeadDocument, self.operator.journal_head())
        return Head(sequence=told.sequence, epoch=told.epoch, journal=told.journal, ledger=told.ledger)

    async def page(self, query: PageQuery) -> RowsPage:
        page = await _answer(self.operator.journal_page(query))
        try:
            rows = tuple(row_of_document(dict(row)) for row in page.items)
        except CodecError as error:
            raise PortFault(f"the answer is no page of rows ({error})") from None
        return RowsPage(rows=rows, cursor=page.next_cursor, head=page.head)

    async def state(self) -> StateDocument | None:
        return await _told(StateDocument, self.operator.journal_state())


async def _told(kind: type[T], document: Awaitable[Document]) -> T:
    try:
        return structure(kind, await _answer(document))
    except CodecError as error:
        raise PortFault(f"the answer is not a controller's ({error})") from None


async def _answer(asked: Awaitable[T]) -> T:
    try:
        return await asked
    except LunaNexaError as error:
        if error.outcome is Outcome.INTERNAL:
            raise StoreDamaged(error.message) from None
        raise


@attrs.frozen
class StoreSource(Source):
    """The store of a controller that does not run."""

    reader: JournalReader

    async def head(self) -> Head:
        return await self.reader.head()

    async def page(self, query: PageQuery) -> RowsPage:
        return await rows_page(self.reader, query)

    async def state(self) -> StateDocument | None:
        return None


async def rows_until(source: Source, until: int) -> AsyncGenerator[Row, None]:
    """All rows from the first to sequence ``until``, in order, and each that stands before one that can't be read."""
    cursor: int | None = 0
    longest = PAGE_ROWS_MAX
    while cursor is not None and cursor < until:
        limit = min(longest, until - cursor)
        try:
            page = await source.page(PageQuery(limit=limit, cursor=cursor, newest_first=False))
        except PortFault:
            if limit == 1:
                raise
            longest = 1
            continue
        for row in page.rows:
            if row.sequence > until:
                return
            yield row
        cursor = page.cursor


class TooEarly(Exception):
    """Rows up to there say nothing any more: the ledger was pruned later. ``least``: the first row that does."""

    def __init__(self, point: PrunePoint) -> None:
        super().__init__(f"the ledger is pruned up to row {point.until}: what was before is gone")
        self.least = point.sequence


async def by_pruning(source: Source, work: Callable[[Pruning | None], Awaitable[T]], failed: Callable[[T], bool]) -> T:
    """What ``work`` makes of the rows, given by what the ledger was pruned last. When it failed and the ledger has been
    pruned meanwhile, it begins again."""
    pruning = await _newest_pruning(source)
    while failed(result := await work(pruning)):
        before, pruning = pruning, await _newest_pruning(source)
        if pruning == before:
            break
    return result


def check_end(pruning: Pruning | None, end: int) -> None:
    """Raises :class:`TooEarly` where rows up to ``end`` can't be read by ``pruning``."""
    if pruning is not None and end < pruning.point.sequence:
        raise TooEarly(pruning.point)


async def _newest_pruning(source: Source) -> Pruning | None:
    try:
        page = await source.page(PageQuery(limit=1, target=LEDGER_TARGET, action=PRUNED_ACTION))
        return pruning_of(page.rows[0]) if page.rows else None
    except PortFault:
        return None  # Who goes through the rows comes to the one that can't be read.


def use_source(
    tools: Tools,
    flags: dict[str, str | None],
    config: str | None,
    work: Callable[[Source], Awaitable[T]],
    *,
    offline: bool,
) -> T:
    """What ``work`` makes of the source that the options name. Ends the program when that can't be used."""
    return _from_store(tools, flags, config, work) if offline else _from_plane(tools, flags, config, work)


def _from_plane(
    tools: Tools, flags: dict[str, str | None], config: str | None, work: Callable[[Source], Awaitable[T]]
) -> T:
    target = find_target(tools, settings_or_exit(flags, config))
    settings = target.operator_settings()
    try:
        found = tools.run(partial(use_client, tools, settings, lambda client: work(PlaneSource(client.operator))))
    except StoreDamaged as error:
        fail(str(error), hint="find out how far it is good: lunanexa journal verify", exit_code=EXIT_DAMAGED)
    except PortFault as error:
        fail_unanswered(target, error)
    if isinstance(found, LunaNexaError):
        fail_with(target, found, token_name=OPERATOR_TOKEN)
    return found


def _from_store(
    tools: Tools, flags: dict[str, str | None], config: str | None, work: Callable[[Source], Awaitable[T]]
) -> T:
    data_dir = settings_or_exit(flags, config).settings.data_dir
    files = tools.make_files(data_dir)
    path = files.place(STORE)
    demand_file(path, "journal", hint="name the place: --data-dir DIR")
    try:
        lock = files.lock(CONTROLLER_LOCK, "lunanexa journal --offline")
        if isinstance(lock, LockHeld):
            fail(
                f"a controller uses {data_dir}: {lock.holder}",
                hint="ask it: the same command without --offline",
                exit_code=EXIT_HELD,
            )
        with lock:
            return tools.run(partial(_read_store, tools, path, work))
    except PortError as error:
        fail(str(error), exit_code=EXIT_CONFIG if isinstance(error, PortFault) else EXIT_UNAVAILABLE)


async def _read_store(tools: Tools, path: str, work: Callable[[Source], Awaitable[T]]) -> T:
    async with tools.open_journal(path) as reader:
        return await work(StoreSource(reader))
