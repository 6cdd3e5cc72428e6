"""What group commit is worth: durable rows a second for several callers, against one transaction for each request.

With group commit one writer appends whatever the callers asked for during the last commit, as the kernel does; without
it each caller's row is a transaction of its own, one after another, because each row's hash stands on the one before.
What a database does at best without a chain, many connections that each insert, is measured beside it. The rounds of
all measurements are interleaved, so that another load on the machine meets them alike; the ratio is the result, the
absolute figures belong to this machine. Every chain is verified afterwards.
"""

import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Final

import attrs
import trio

from benchmarks.report import Options, Report
from lunanexa_adapters.postgres.address import PostgresAddress, parse_address
from lunanexa_adapters.postgres.connection import TrioConnection
from lunanexa_adapters.postgres.journal import open_postgres_journal
from lunanexa_adapters.postgres.pool import Pool
from lunanexa_adapters.sqlite.journal import open_sqlite_journal
from lunanexa_core.canonical import JsonValue
from lunanexa_core.journal import Chain, Head, Row, check_row, make_row
from lunanexa_ports.conformance.journal import Store, lead
from lunanexa_ports.journal import Appended, Journal
from tests.postgres_server import PostgresServer, find_programs

CALLERS = (1, 8, 64)
CONNECTIONS: Final = 16
# About what the record of an admitted workload holds.
BODY: Final[JsonValue] = {
    "alias": "tiny",
    "digest": "sha256:" + "0" * 64,
    "reserved_tokens": 1_024,
    "tenant": "t" * 26,
    "workload": "w" * 29,
}


class Grouped:
    """Callers leave a request and wait; one writer appends what is there."""

    def __init__(self, journal: Journal, head: Head) -> None:
        self._journal = journal
        self._head = head
        self._asked: list[trio.Event] = []
        self._arrived = trio.Event()

    async def ask(self) -> None:
        done = trio.Event()
        self._asked.append(done)
        self._arrived.set()
        await done.wait()

    async def write(self) -> None:
        while True:
            await self._arrived.wait()
            asked, self._asked, self._arrived = self._asked, [], trio.Event()
            self._head = await append(self._journal, self._head, len(asked))
            for done in asked:
                done.set()


class Alone:
    """Each caller appends its own row, when its turn comes."""

    def __init__(self, journal: Journal, head: Head) -> None:
        self._journal = journal
        self._head = head
        self._turn = trio.Lock()

    async def ask(self) -> None:
        async with self._turn:
            self._head = await append(self._journal, self._head, 1)


async def append(journal: Journal, head: Head, count: int) -> Head:
    """Appends ``count`` rows in one transaction, encoding and hashing included."""
    rows: list[Row] = []
    after = head
    for _ in range(count):
        row = make_row(
            after,
            chain=Chain.LEDGER,
            epoch=head.epoch,
            wall_ms=1_800_000_000_000,
            actor="gateway",
            action="workload_admitted",
            version=1,
            target="wl_" + "0" * 26,
            body=BODY,
        )
        rows.append(row)
        after = after.after(row)
    outcome = await journal.append(head.epoch, head, rows)
    assert outcome is Appended.DURABLE, outcome
    return after


@attrs.define
class Figures:
    """Of one way to write and one number of callers."""

    speeds: list[float] = attrs.Factory(list)
    latencies_ms: list[float] = attrs.Factory(list)

    def p_ms(self, percent: int) -> float:
        return statistics.quantiles(self.latencies_ms, n=100)[percent - 1]

    @property
    def speed(self) -> float:
        return statistics.median(self.speeds)

    async def round(self, ask: Callable[[], Awaitable[None]], callers: int, seconds: float) -> None:
        began = time.perf_counter()
        count = 0

        async def call() -> None:
            nonlocal count
            while (started := time.perf_counter()) - began < seconds:
                await ask()
                count += 1
                self.latencies_ms.append((time.perf_counter() - started) * 1_000)

        async with trio.open_nursery() as nursery:
            for _ in range(callers):
                nursery.start_soon(call)
        self.speeds.append(count / (time.perf_counter() - began))

    async def paced(self, ask: Callable[[], Awaitable[None]], callers: int, rate: float, seconds: float) -> None:
        """``rate`` rows a second, each asked for when it is due, however long the others take."""
        began, count = trio.current_time(), 0

        async def call(number: int) -> None:
            nonlocal count
            while (due := began + number / rate) < began + seconds:
                await trio.sleep_until(due)
                await ask()
                count += 1
                self.latencies_ms.append((trio.current_time() - due) * 1_000)
                number += callers

        async with trio.open_nursery() as nursery:
            for number in range(callers):
                nursery.start_soon(call, number)
        self.speeds.append(count / (trio.current_time() - began))


async def verify(journal: Journal) -> int:
    head = Head()
    async for row in journal.read():
        fault = check_row(head, row)
        assert fault is None, (row.sequence, fault)
        head = head.after(row)
    return head.sequence


@contextmanager
def postgres_in(directory: Path) -> Iterator[PostgresServer | None]:
    """A server of its own, where there is one to be had. Its data lies where SQLite's does."""
    programs = find_programs()
    if programs is None:
        yield None
        return
    server = PostgresServer(programs, directory)
    try:
        server.start()
        yield server
    finally:
        server.remove()


def measure(options: Options) -> Report:
    """All ways and numbers of callers, in interleaved rounds."""
    with tempfile.TemporaryDirectory(dir=options.directory) as name, postgres_in(options.directory) as server:
        address = None if server is None else parse_address(server.url(server.new_schema()))
        return trio.run(_measure, Path(name), address, options.seconds, options.rounds)


@asynccontextmanager
async def _unchained(address: PostgresAddress) -> AsyncIterator[Callable[[], Awaitable[None]]]:
    pool = Pool(address, CONNECTIONS)
    row = make_row(
        Head(), chain=Chain.LEDGER, epoch=1, wall_ms=0, actor="gateway", action="a", version=1, target="w", body=BODY
    )

    async def create(connection: TrioConnection) -> None:
        await connection.execute("CREATE TABLE unchained (one bigserial PRIMARY KEY, target text, record bytea)")

    async def insert(connection: TrioConnection) -> None:
        await connection.execute(
            "INSERT INTO unchained (target, record) VALUES (%b, %b)", ("wl_" + "0" * 26, row.record)
        )

    try:
        await pool.once(create)
        yield lambda: pool.once(insert)
    finally:
        await pool.aclose()


async def _measure(directory: Path, address: PostgresAddress | None, seconds: float, rounds: int) -> Report:
    stores: dict[str, AbstractAsyncContextManager[Store]] = {"SQLite": open_sqlite_journal(directory / "store.sqlite3")}
    if address is not None:
        stores["PostgreSQL"] = open_postgres_journal(address)
    found: dict[tuple[str, str, int], Figures] = {}
    verified = 0
    async with AsyncExitStack() as stack:
        journals = {name: await stack.enter_async_context(store) for name, store in stores.items()}
        insert = None if address is None else await stack.enter_async_context(_unchained(address))
        for journal in journals.values():
            await lead(journal)
        for _ in range(rounds):
            for callers in CALLERS:
                for name, journal in journals.items():
                    alone = Alone(journal, await journal.head())
                    await found.setdefault((name, "alone", callers), Figures()).round(alone.ask, callers, seconds)
                    grouped = Grouped(journal, await journal.head())
                    async with trio.open_nursery() as nursery:
                        nursery.start_soon(grouped.write)
                        figures = found.setdefault((name, "grouped", callers), Figures())
                        await figures.round(grouped.ask, callers, seconds)
                        nursery.cancel_scope.cancel()
                if insert is not None:
                    unchained = found.setdefault(("PostgreSQL", "unchained", callers), Figures())
                    await unchained.round(insert, callers, seconds)
        for name, journal in journals.items():
            half = found[name, "grouped", CALLERS[-1]].speed / 2
            grouped = Grouped(journal, await journal.head())
            async with trio.open_nursery() as nursery:
                nursery.start_soon(grouped.write)
                figures = found.setdefault((name, "half", CALLERS[-1]), Figures())
                await figures.paced(grouped.ask, CALLERS[-1], half, seconds * rounds)
                nursery.cancel_scope.cancel()
        for journal in journals.values():
            verified += await verify(journal)
    return _report(found, verified, tuple(stores))


def _half_load(store: str, figures: Figures) -> str:
    added = f"p50 {figures.p_ms(50):.2f} ms, p99 {figures.p_ms(99):.2f} ms"
    return f"{store} at half of its grouped speed ({figures.speed:,.0f} rows/s): waiting to be durable adds {added}."


def _report(found: dict[tuple[str, str, int], Figures], verified: int, stores: tuple[str, ...]) -> Report:
    rows: list[tuple[str, ...]] = []
    figures: dict[str, float] = {}
    for store in stores:
        for callers in CALLERS:
            alone, grouped = found[store, "alone", callers], found[store, "grouped", callers]
            unchained = found.get((store, "unchained", callers))
            rows.append(
                (
                    *(store, str(callers), f"{alone.speed:,.0f}", f"{grouped.speed:,.0f}"),
                    f"x{grouped.speed / alone.speed:.1f}",
                    *(f"{grouped.p_ms(50):.2f}", f"{grouped.p_ms(99):.2f}"),
                    "-" if unchained is None else f"{unchained.speed:,.0f}",
                )
            )
            figures |= {
                f"{store} {callers}: one transaction a request, rows/s": alone.speed,
                f"{store} {callers}: group commit, rows/s": grouped.speed,
                f"{store} {callers}: p50 ms": grouped.p_ms(50),
                f"{store} {callers}: p99 ms": grouped.p_ms(99),
            }
            if unchained is not None:
                figures[f"{store} {callers}: unchained, rows/s"] = unchained.speed
    return Report(
        title="journal_group_commit: durable rows a second, by callers at once",
        columns=("store", "callers", "one by one", "grouped", "ratio", "p50 ms", "p99 ms", "unchained"),
        rows=tuple(rows),
        figures=figures,
        notes=(
            *(_half_load(store, found[store, "half", CALLERS[-1]]) for store in stores),
            f"{verified:,} rows written to the chains, all verified.",
            f"unchained: single inserts without a chain on {CONNECTIONS} connections, what PostgreSQL does by itself.",
            *(() if "PostgreSQL" in stores else ("No PostgreSQL server was found.",)),
        ),
    )
