"""Where rows come from: a running controller, over its operator plane, or the store of a stopped one."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar
from urllib.parse import urlencode

import attrs
import trio

from lunanexa_apps.cli.asking import OPERATOR_TOKEN
from lunanexa_apps.cli.options import settings_or_exit
from lunanexa_apps.cli.target import fail_refused, fail_unreachable, find_target
from lunanexa_apps.cli.tools import EXIT_CONFIG, EXIT_HELD, EXIT_UNAVAILABLE, Tools, fail
from lunanexa_apps.codec import CodecError, structure
from lunanexa_apps.installation import CONTROLLER_LOCK, STORE
from lunanexa_apps.journal_pages import RowsPage, rows_page
from lunanexa_apps.journal_rows import row_of_document
from lunanexa_apps.up.plane import Plane, PlaneRefusal
from lunanexa_core.contract.journal import HeadDocument, StateDocument
from lunanexa_core.journal import Head, Row
from lunanexa_core.journal_query import PAGE_ROWS_MAX, PageQuery
from lunanexa_core.outcomes import TABLE, Outcome
from lunanexa_ports.errors import PortError, PortFault
from lunanexa_ports.journal import JournalReader
from lunanexa_ports.private_files import LockHeld

T = TypeVar("T")
EXIT_DAMAGED: Final = TABLE[Outcome.INTERNAL].exit_code
JOURNAL: Final = "/admin/v1/journal"


class Source(Protocol):
    """Rows, and where they end. Raises ``PortError`` (``PortFault`` where a row can't be read), and
    :class:`SourceRefused` for a controller's refusal."""

    async def head(self) -> Head:
        """Where both chains stand."""

    async def page(self, query: PageQuery) -> RowsPage:
        """A page of rows."""

    async def state(self) -> StateDocument | None:
        """The digest of the live state; ``None``: nothing lives."""


class StoreDamaged(PortFault):
    """The controller can't read its own store."""


class SourceRefused(Exception):
    """The controller said no."""

    def __init__(self, refusal: PlaneRefusal) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal


@attrs.frozen
class PlaneSource(Source):
    """A running controller."""

    plane: Plane

    async def head(self) -> Head:
        told = await self._ask(HeadDocument, "/head")
        return Head(sequence=told.sequence, epoch=told.epoch, journal=told.journal, ledger=told.ledger)

    async def page(self, query: PageQuery) -> RowsPage:
        asked = {
            "limit": query.limit,
            "cursor": query.cursor,
            "order": "newest" if query.newest_first else "oldest",
            "chain": None if query.chain is None else query.chain.value,
            "action": query.action,
            "target": query.target,
            "actor": query.actor,
        }
        given = {name: value for name, value in asked.items() if value is not None}
        document = await self._document(f"?{urlencode(given)}")
        try:
            cursor = document["next_cursor"]
            return RowsPage(
                rows=tuple(row_of_document(row) for row in document["data"]),
                cursor=None if cursor is None else int(cursor),
                head=int(document["head"]),
            )
        except (CodecError, KeyError, TypeError, ValueError) as error:
            raise PortFault(f"the answer is no page of rows ({error})") from None

    async def state(self) -> StateDocument | None:
        return await self._ask(StateDocument, "/state")

    async def _ask(self, kind: type[T], path: str) -> T:
        try:
            return structure(kind, await self._document(path))
        except CodecError as error:
            raise PortFault(f"the answer is not a controller's ({error})") from None

    async def _document(self, path: str) -> Any:
        answer = await self.plane.ask("GET", JOURNAL + path)
        if isinstance(answer, PlaneRefusal):
            if answer.code == Outcome.INTERNAL.value:
                raise StoreDamaged(answer.message)
            raise SourceRefused(answer)
        return answer


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

    async def ask() -> T:
        http = tools.make_http()
        try:
            return await work(PlaneSource(target.operator_plane(http)))
        finally:
            with trio.move_on_after(1, shield=True):
                await http.aclose()

    try:
        return tools.run(ask)
    except SourceRefused as error:
        fail_refused(target, error.refusal, token_name=OPERATOR_TOKEN)
    except StoreDamaged as error:
        fail(str(error), hint="find out how far it is good: lunanexa journal verify", exit_code=EXIT_DAMAGED)
    except PortError as error:
        fail_unreachable(target, error)


def _from_store(
    tools: Tools, flags: dict[str, str | None], config: str | None, work: Callable[[Source], Awaitable[T]]
) -> T:
    data_dir = settings_or_exit(flags, config).settings.data_dir
    files = tools.make_files(data_dir)
    path = files.place(STORE)
    if not Path(path).is_file():
        fail(f"there is no journal at {path}", hint="name the place: --data-dir DIR", exit_code=EXIT_UNAVAILABLE)
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
