"""Two holders of one journal, in any order of what they can do, against a model that is a list of rows."""

import threading
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar, TypeVar

import attrs
import pytest
import trio
import trio.testing
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from lunanexa_adapters.postgres.address import parse_address
from lunanexa_adapters.postgres.journal import open_postgres_journal
from lunanexa_adapters.sqlite.journal import open_sqlite_journal
from lunanexa_core.ids import HolderId
from lunanexa_core.journal import Chain, Head, Row
from lunanexa_core.journal_query import RowQuery
from lunanexa_core.leadership import Lease
from lunanexa_ports.conformance.journal import Store, read_all, rows_after, verified
from lunanexa_ports.errors import PortUnavailable
from lunanexa_ports.journal import Appended
from lunanexa_simulation.disk import Mount, SimulatedDisk
from lunanexa_simulation.journal import SimulatedJournal, open_simulated_journal
from tests.examples import examples
from tests.postgres_server import PostgresServer

pytestmark = pytest.mark.thorough

T = TypeVar("T")

NAMES = (HolderId("one"), HolderId("two"))
HOLDERS = st.integers(0, 1)
BOUNDED = settings(max_examples=examples(25), stateful_step_count=25)


class Loop:
    """A Trio loop in a thread, so that the machine's synchronous rules share one run."""

    def __init__(self) -> None:
        self._started = threading.Event()
        self._thread = threading.Thread(target=trio.run, args=(self._main,))
        self._thread.start()
        self._started.wait()

    async def _main(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        self._over = trio.Event()
        self._started.set()
        await self._over.wait()

    def run(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        return trio.from_thread.run(work, trio_token=self._token)

    def close(self) -> None:
        trio.from_thread.run_sync(self._over.set, trio_token=self._token)
        self._thread.join()


@attrs.define
class Holder:
    opening: AbstractAsyncContextManager[Store]
    journal: Store
    name: HolderId
    epoch: int = 0
    known: Head = attrs.Factory(Head)
    """The head as this holder saw it last, which may be old."""
    seen: Lease | None = None
    """The lease as it saw it last, in the model's :attr:`JournalMachine.turn` of then."""
    seen_turn: int = -1


class JournalMachine(RuleBasedStateMachine):
    renewals_are_written: ClassVar[bool] = True

    def __init__(self) -> None:
        super().__init__()
        self.loop = Loop()
        self.written: list[Row] = []
        self.rows: list[Row] = []
        """What was written and is not dropped."""
        self.head = Head()
        self.leader: HolderId | None = None
        self.turn = 0
        """Rises whenever the lease's row changes."""
        self.holders = [self.loop.run(partial(self.enter, name)) for name in NAMES]

    def opening(self) -> AbstractAsyncContextManager[Store]:
        raise NotImplementedError

    async def enter(self, name: HolderId) -> Holder:
        opening = self.opening()
        return Holder(opening, await opening.__aenter__(), name)

    async def leave(self, holder: Holder) -> None:
        await holder.opening.__aexit__(None, None, None)

    def teardown(self) -> None:
        for holder in self.holders:
            self.loop.run(lambda holder=holder: self.leave(holder))  # type: ignore[misc]  # bound at once
        kept = self.loop.run(self.kept)
        self.loop.close()
        assert kept == self.rows

    async def kept(self) -> list[Row]:
        async with self.opening() as journal:
            assert await journal.head() == self.head
            return await read_all(journal)

    @rule(which=HOLDERS, own=st.booleans(), above=st.sampled_from((0, 0, 3, 30)))
    def claim(self, which: int, own: bool, above: int) -> None:
        holder = self.holders[which]
        seen = None if own else holder.seen
        claimed = self.loop.run(lambda: holder.journal.claim(holder.name, "", seen=seen, above=above))
        if self.leader != holder.name if seen is None else holder.seen_turn != self.turn:
            assert claimed is None
            return
        self.head = attrs.evolve(self.head, epoch=max(self.head.epoch, above) + 1)
        assert claimed == self.head
        self.leader, self.turn = holder.name, self.turn + 1
        holder.epoch, holder.known = self.head.epoch, self.head

    @rule(which=HOLDERS)
    def look_at_lease(self, which: int) -> None:
        holder = self.holders[which]
        holder.seen, holder.seen_turn = self.loop.run(holder.journal.look), self.turn
        assert (holder.seen.holder, holder.seen.epoch) == (self.leader, self.head.epoch)

    @rule(which=HOLDERS)
    def renew(self, which: int) -> None:
        holder = self.holders[which]
        leads = (self.leader, self.head.epoch) == (holder.name, holder.epoch)
        assert self.loop.run(lambda: holder.journal.renew(holder.name, holder.epoch)) is leads
        self.turn += leads and self.renewals_are_written

    @rule(which=HOLDERS)
    def release(self, which: int) -> None:
        holder = self.holders[which]
        self.loop.run(lambda: holder.journal.release(holder.name, holder.epoch))
        if (self.leader, self.head.epoch) == (holder.name, holder.epoch):
            self.leader, self.turn = None, self.turn + 1

    @rule(which=HOLDERS)
    def look(self, which: int) -> None:
        holder = self.holders[which]
        holder.known = self.loop.run(holder.journal.head)
        assert holder.known == self.head

    @rule(which=HOLDERS, count=st.integers(1, 5), subject=st.sampled_from("ab"))
    def append(self, which: int, count: int, subject: str) -> None:
        holder = self.holders[which]
        rows = rows_after(holder.known, holder.epoch, count, target=subject)
        expected = holder.known
        outcome = self.loop.run(lambda: holder.journal.append(holder.epoch, expected, rows))
        # Epoch 0 is nobody's: with it a holder is the newest one only until the first epoch is taken.
        if attrs.evolve(expected, epoch=holder.epoch) == self.head:
            assert outcome is Appended.DURABLE
            self.kept_are(rows)
            holder.known = self.head
        else:
            assert outcome is Appended.FENCED

    @rule(which=HOLDERS, after=st.integers(0, 30), limit=st.none() | st.integers(0, 10))
    def read(self, which: int, after: int, limit: int | None) -> None:
        journal = self.holders[which].journal
        found = self.loop.run(lambda: read_all(journal, after, limit))
        assert found == [row for row in self.rows if row.sequence > after][:limit]

    @rule(which=HOLDERS, subject=st.sampled_from("ab"), limit=st.integers(1, 10))
    def find(self, which: int, subject: str, limit: int) -> None:
        async def find() -> list[Row]:
            query = RowQuery(target=subject, newest_first=True, limit=limit)
            return list(await self.holders[which].journal.page(query))

        assert self.loop.run(find) == [row for row in self.rows[::-1] if row.target == subject][:limit]

    @rule(which=HOLDERS, until=st.integers(0, 30), limit=st.integers(1, 5))
    def drop(self, which: int, until: int, limit: int) -> None:
        ledger = [row for row in self.rows[:-1] if row.chain is Chain.LEDGER and row.sequence <= until][:limit]
        assert self.loop.run(lambda: self.holders[which].journal.drop_ledger(until, limit)) == len(ledger)
        self.rows = [row for row in self.rows if row not in ledger]

    def kept_are(self, rows: list[Row]) -> None:
        self.written.extend(rows)
        self.rows.extend(rows)
        for row in rows:
            self.head = self.head.after(row)

    @rule(which=HOLDERS)
    def leave_and_enter(self, which: int) -> None:
        self.reopen(which)

    def reopen(self, which: int) -> None:
        old = self.holders[which]
        self.loop.run(lambda: self.leave(old))
        self.holders[which] = self.loop.run(lambda: self.enter(old.name))

    @invariant()
    def model_is_a_chain(self) -> None:
        assert attrs.evolve(verified(self.written), epoch=self.head.epoch) == self.head


class SqliteMachine(JournalMachine):
    renewals_are_written = False

    def __init__(self) -> None:
        self.directory = TemporaryDirectory()
        super().__init__()

    def opening(self) -> AbstractAsyncContextManager[Store]:
        return open_sqlite_journal(Path(self.directory.name) / "store.sqlite3")

    def teardown(self) -> None:
        super().teardown()
        self.directory.cleanup()


class PostgresMachine(JournalMachine):
    """As the other, and the server may end every connection that is at rest."""

    server: ClassVar[PostgresServer]

    def __init__(self) -> None:
        self.schema = self.server.new_schema()
        super().__init__()

    def opening(self) -> AbstractAsyncContextManager[Store]:
        return open_postgres_journal(parse_address(self.server.url(self.schema)))

    @rule()
    def cut_connections(self) -> None:
        self.server.end_connections()


class SimulatedMachine(JournalMachine):
    """As the other, and the machine may lose its power in the middle of an append."""

    def __init__(self) -> None:
        self.disk = SimulatedDisk()
        super().__init__()

    def opening(self) -> AbstractAsyncContextManager[Store]:
        return open_simulated_journal(self.disk)

    @precondition(lambda self: self.head.epoch > 0)
    @rule(count=st.integers(1, 5), kept=st.booleans())
    def crash_while_appending(self, count: int, kept: bool) -> None:
        rows = rows_after(self.head, self.head.epoch, count)
        self.loop.run(lambda: self.crash(self.disk.mount(), rows, kept))
        if kept:
            self.kept_are(rows)
        for which in range(len(self.holders)):
            self.reopen(which)

    async def crash(self, mount: Mount, rows: list[Row], kept: bool) -> None:
        journal, head = SimulatedJournal(mount), self.head
        self.disk.faults.delay_ms = 3_600_000
        unknown = False

        async def append() -> None:
            nonlocal unknown
            try:
                await journal.append(head.epoch, head, rows)
            except PortUnavailable:
                unknown = True

        async with trio.open_nursery() as nursery:
            nursery.start_soon(append)
            await trio.testing.wait_all_tasks_blocked()
            self.disk.crash(keep_unsynced=kept)
        self.disk.faults.delay_ms = 0
        assert unknown


@pytest.fixture
def machine_server(postgres: PostgresServer) -> None:
    PostgresMachine.server = postgres


TestSqlite = SqliteMachine.TestCase
TestSqlite.settings = BOUNDED
TestPostgres = PostgresMachine.TestCase
TestPostgres.settings = settings(BOUNDED, max_examples=10)
TestPostgres = pytest.mark.slow(pytest.mark.usefixtures("machine_server")(TestPostgres))
TestSimulated = SimulatedMachine.TestCase
TestSimulated.settings = BOUNDED
