"""The lease, the notifications and the first use of the PostgreSQL store when something is in the way."""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import psycopg
import pytest
import trio
import trio.testing

from lunanexa_adapters.postgres.address import PostgresAddress, parse_address
from lunanexa_adapters.postgres.connection import open_connection
from lunanexa_adapters.postgres.journal import PostgresJournal, open_postgres_journal
from lunanexa_adapters.postgres.schema import JOURNAL_SCHEMA
from lunanexa_core.ids import HolderId
from lunanexa_core.journal import Head, Row
from lunanexa_ports.conformance.journal import HOLDER, lead, read_all, rows_after
from lunanexa_ports.errors import PortFault, PortUnavailable
from lunanexa_ports.journal import Appended
from tests.adapters.postgres_proxy import proxy_to
from tests.postgres_server import PostgresServer, make_server

pytestmark = pytest.mark.slow

LIMIT_S = 60
CLEAN_S = 10
QUICK_MS = 300
LEASE_MS = 3_000
OTHER = HolderId("other")
FOR_EVER_MS = 3_600_000


@pytest.fixture
def schema(postgres: PostgresServer) -> str:
    return postgres.new_schema()


@pytest.fixture
def address(postgres: PostgresServer, schema: str) -> PostgresAddress:
    return parse_address(postgres.url(schema, statement_timeout_ms=QUICK_MS))


@pytest.fixture
def replica_slot(postgres: PostgresServer) -> Iterator[None]:
    """What a replica leaves on its primary: a slot, which is there while it is away, too."""
    postgres.execute("SELECT pg_create_physical_replication_slot('replica')")
    yield
    postgres.execute("SELECT pg_drop_replication_slot('replica')")


@contextmanager
def locked_head(postgres: PostgresServer, schema: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(postgres.url(schema)) as connection:
        connection.execute("SELECT * FROM lunanexa_head FOR UPDATE")
        yield connection
        connection.rollback()


def sessions(postgres: PostgresServer, condition: str = "true") -> int:
    found = postgres.execute(
        f"SELECT count(*) FROM pg_stat_activity WHERE application_name = 'lunanexa' AND {condition}"
    )
    return int(found[0][0])


async def until(condition: Callable[[], bool]) -> None:
    with trio.fail_after(LIMIT_S):
        while not condition():
            await trio.sleep(0.005)


async def listening(postgres: PostgresServer, journal: PostgresJournal) -> None:
    """Returns once ``journal`` listens and everything that was said before was heard."""
    await journal.wait(FOR_EVER_MS)
    await journal.wait(20)
    assert sessions(postgres, "query = 'LISTEN lunanexa'") == 1


async def listening_again(postgres: PostgresServer, journal: PostgresJournal) -> None:
    await until(lambda: sessions(postgres, "query = 'LISTEN lunanexa'") == 1)
    await journal.wait(20)


@asynccontextmanager
async def waiting(journal: PostgresJournal) -> AsyncIterator[None]:
    """A wait without a bound, which the block has to end."""
    with trio.fail_after(LIMIT_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(journal.wait, FOR_EVER_MS)
            await trio.testing.wait_all_tasks_blocked()
            yield


async def append_one(journal: PostgresJournal, head: Head) -> Head:
    (row,) = rows_after(head, head.epoch, 1)
    assert await journal.append(head.epoch, head, [row]) is Appended.DURABLE
    return head.after(row)


async def test_a_renewal_does_not_wait_for_the_answer_to_an_append(postgres: PostgresServer, schema: str) -> None:
    async with proxy_to(postgres.port) as proxy:
        url = postgres.url(schema, port=proxy.port, statement_timeout_ms=QUICK_MS)
        async with open_postgres_journal(parse_address(url)) as journal:
            head = await append_one(journal, await lead(journal))
            waits = True

            async def append() -> None:
                nonlocal waits
                with pytest.raises(PortUnavailable):
                    await journal.append(head.epoch, head, rows_after(head, head.epoch, 1))
                waits = False

            proxy.answering.hold()
            with trio.fail_after(LIMIT_S):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(append)
                    await proxy.answering.arrived.wait()
                    # What is held stays so, and what comes now passes.
                    proxy.answering.hold()
                    proxy.answering.release()
                    assert await journal.renew(HOLDER, head.epoch)
                    assert waits


async def test_a_renewal_behind_a_lock_ends_in_time_and_is_not_done_later(
    postgres: PostgresServer, schema: str, address: PostgresAddress
) -> None:
    async with open_postgres_journal(address) as journal:
        head = await lead(journal)
        before = await journal.look()
        with locked_head(postgres, schema), trio.fail_after(LIMIT_S):
            with pytest.raises(PortUnavailable, match="timeout"):
                await journal.renew(HOLDER, head.epoch)
            with pytest.raises(PortUnavailable, match="timeout"):
                await journal.claim(OTHER, "", seen=before)
        await until(lambda: sessions(postgres, "state <> 'idle'") == 0)
        assert await journal.look() == before
        assert await journal.renew(HOLDER, head.epoch)


async def test_a_claim_whose_answer_never_came_is_found_by_a_look(postgres: PostgresServer, schema: str) -> None:
    async with proxy_to(postgres.port) as proxy:
        url = postgres.url(schema, port=proxy.port, statement_timeout_ms=QUICK_MS)
        async with open_postgres_journal(parse_address(url)) as journal:
            first = await lead(journal)
            seen = await journal.look()
            proxy.answering.hold()
            with trio.fail_after(LIMIT_S), pytest.raises(PortUnavailable):
                await journal.claim(OTHER, "http://other", seen=seen)
            proxy.answering.release()
            lease = await journal.look()
            assert (lease.holder, lease.address) == (OTHER, "http://other")
            assert lease.epoch > first.epoch
            assert await journal.claim(OTHER, "http://other", seen=seen) is None
            claimed = await journal.claim(OTHER, "http://other", seen=None)
            assert claimed is not None
            assert claimed.epoch > lease.epoch


async def test_limits_of_a_leader_are_in_force_in_the_server(postgres: PostgresServer, schema: str) -> None:
    connection = await open_connection(parse_address(postgres.url(schema)).within_lease(LEASE_MS))
    limits = {
        "statement_timeout": "1500ms",
        "lock_timeout": "1500ms",
        "idle_in_transaction_session_timeout": "1500ms",
        "tcp_user_timeout": "3000",
    }
    try:
        for name, limit in limits.items():
            assert await (await connection.execute(f"SELECT current_setting('{name}')")).fetchone() == (limit,)
    finally:
        connection.finish()
    with pytest.raises(PortFault, match="statement_timeout_ms"):
        async with open_postgres_journal(
            parse_address(postgres.url(schema, statement_timeout_ms=2_000)), lease_ms=LEASE_MS
        ):
            pass


async def test_a_listener_whose_connection_was_cut_listens_again(
    postgres: PostgresServer, address: PostgresAddress
) -> None:
    async with open_postgres_journal(address) as leader, open_postgres_journal(address) as watcher:
        head = await lead(leader)
        await listening(postgres, watcher)
        async with waiting(watcher):
            # It ends, because nobody knows what was said before it listens again.
            postgres.end_connections()
        await listening_again(postgres, watcher)
        async with waiting(watcher):
            await append_one(leader, head)


async def test_what_was_said_between_two_waits_ends_the_next(
    postgres: PostgresServer, address: PostgresAddress
) -> None:
    async with open_postgres_journal(address) as leader, open_postgres_journal(address) as watcher:
        head = await lead(leader)
        await listening(postgres, watcher)
        for _ in range(50):
            head = await append_one(leader, head)
        with trio.fail_after(LIMIT_S):
            await watcher.wait(FOR_EVER_MS)
        assert len(await read_all(watcher)) == 50


async def test_a_wait_without_a_server_ends_at_its_bound_and_says_nothing(
    postgres: PostgresServer, address: PostgresAddress
) -> None:
    async with open_postgres_journal(address) as watcher:
        await listening(postgres, watcher)
        postgres.stop()
        try:
            with trio.fail_after(LIMIT_S):
                await watcher.wait(150)
                await watcher.wait(0)
                with pytest.raises(PortUnavailable):
                    await watcher.look()
        finally:
            postgres.start()
        with trio.fail_after(LIMIT_S):
            await watcher.wait(FOR_EVER_MS)
        await listening_again(postgres, watcher)


async def test_who_leads_does_not_listen(postgres: PostgresServer, address: PostgresAddress) -> None:
    """Nobody would take what is said to it, and the server would keep that for everybody."""
    async with open_postgres_journal(address) as journal:
        await listening(postgres, journal)
        async with waiting(journal):
            await lead(journal)
        await until(lambda: sessions(postgres, "query = 'LISTEN lunanexa'") == 0)
        with trio.fail_after(LIMIT_S):
            await journal.wait(FOR_EVER_MS)
        assert sessions(postgres, "query = 'LISTEN lunanexa'") == 1


async def test_a_closed_store_listens_no_more(postgres: PostgresServer, address: PostgresAddress) -> None:
    async with open_postgres_journal(address) as journal:
        await listening(postgres, journal)
        async with waiting(journal):
            await journal.aclose()
        with pytest.raises(PortUnavailable, match="closed"):
            await journal.wait(FOR_EVER_MS)
        await until(lambda: sessions(postgres) == 0)


async def test_a_store_is_opened_while_its_server_is_away(postgres: PostgresServer, address: PostgresAddress) -> None:
    postgres.stop()
    try:
        async with open_postgres_journal(address) as journal:
            refused = 0

            async def ask() -> None:
                nonlocal refused
                with pytest.raises(PortUnavailable):
                    await journal.look()
                refused += 1

            with trio.fail_after(LIMIT_S):
                async with trio.open_nursery() as nursery:
                    for _ in range(8):
                        nursery.start_soon(ask)
            assert refused == 8
            postgres.start()
            assert await journal.head() == Head()
            await append_one(journal, await lead(journal))
    finally:
        if postgres.process is None:
            postgres.start()


async def test_a_store_is_opened_while_another_writes(address: PostgresAddress) -> None:
    """What is checked at the first use is one moment of it."""
    async with open_postgres_journal(address) as leader:
        head = await lead(leader)

        async def write() -> None:
            nonlocal head
            while True:
                head = await append_one(leader, head)
                await trio.lowlevel.checkpoint()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(write)
            for _ in range(60):
                async with open_postgres_journal(address) as follower:
                    await follower.look()
            nursery.cancel_scope.cancel()


async def test_what_is_wrong_with_a_store_is_said_at_each_use(
    postgres: PostgresServer, schema: str, address: PostgresAddress
) -> None:
    async with open_postgres_journal(address) as journal:
        await journal.head()
    postgres.execute(f"INSERT INTO lunanexa_schema VALUES ('journal', {JOURNAL_SCHEMA.version + 1})", schema=schema)
    async with open_postgres_journal(address) as journal:
        for use in (journal.head, journal.look, lambda: lead(journal), lambda: journal.drop_ledger(1, 1)):
            with pytest.raises(PortFault, match="newer"):
                await use()


async def test_a_setting_that_is_switched_off_later_does_not_reach_a_session(
    postgres: PostgresServer, address: PostgresAddress
) -> None:
    """As durable as it was found a connection stays; a new one is refused."""
    async with open_postgres_journal(address) as journal:
        head = await lead(journal)
        postgres.execute("ALTER SYSTEM SET synchronous_commit = off", "SELECT pg_reload_conf()")
        try:
            await until(lambda: postgres.execute("SHOW synchronous_commit") == [("off",)])
            await append_one(journal, head)
            postgres.end_connections()
            with pytest.raises(PortFault, match="synchronous_commit=off"):
                await journal.head()
        finally:
            postgres.execute("ALTER SYSTEM RESET synchronous_commit", "SELECT pg_reload_conf()")
            with trio.move_on_after(CLEAN_S, shield=True):
                await until(lambda: postgres.execute("SHOW synchronous_commit") == [("on",)])
        assert (await journal.head()).sequence == 1


@pytest.mark.usefixtures("replica_slot")
async def test_a_replica_that_nobody_waits_for_needs_a_word(address: PostgresAddress) -> None:
    async with open_postgres_journal(address) as journal:
        with pytest.raises(PortFault, match=r"synchronous_standby_names is empty.*--accept-lost-tail"):
            await journal.head()
        assert not journal.lost_tail_accepted
    async with open_postgres_journal(address, accept_lost_tail=True) as journal:
        await append_one(journal, await lead(journal))
        assert journal.lost_tail_accepted


@pytest.mark.usefixtures("replica_slot")
async def test_a_replica_that_each_commit_waits_for_is_no_danger(
    postgres: PostgresServer, schema: str, address: PostgresAddress
) -> None:
    # The named replica is not there: what writes would wait for it, so that only the question itself is tried.
    async with open_postgres_journal(address, accept_lost_tail=True) as journal:
        await journal.head()
    postgres.execute("ALTER SYSTEM SET synchronous_standby_names = 'replica'", "SELECT pg_reload_conf()")
    try:
        await until(lambda: postgres.execute("SHOW synchronous_standby_names") == [("replica",)])
        async with open_postgres_journal(address) as journal:
            assert await journal.head() == Head()
            assert not journal.lost_tail_accepted
        local = parse_address(postgres.url(schema, "synchronous_commit=local"))
        async with open_postgres_journal(local) as journal:
            with pytest.raises(PortFault, match=r"synchronous_commit is local.*--accept-lost-tail"):
                await journal.head()
    finally:
        postgres.execute("ALTER SYSTEM RESET synchronous_standby_names", "SELECT pg_reload_conf()")
        with trio.move_on_after(CLEAN_S, shield=True):
            await until(lambda: postgres.execute("SHOW synchronous_standby_names") == [("",)])


async def test_what_waits_for_a_replica_that_is_away_keeps_everybody_from_leading(
    postgres: PostgresServer, address: PostgresAddress
) -> None:
    """An append that is committed but not acknowledged is there before anybody can claim, and is found in the tail."""
    async with open_postgres_journal(address) as old, open_postgres_journal(address) as new:
        head = await lead(old)
        seen = await new.look()
        rows = rows_after(head, head.epoch, 2)
        postgres.execute("ALTER SYSTEM SET synchronous_standby_names = 'nobody'", "SELECT pg_reload_conf()")
        try:
            await until(lambda: postgres.execute("SHOW synchronous_standby_names") == [("nobody",)])
            with trio.fail_after(LIMIT_S):
                with pytest.raises(PortUnavailable):
                    await old.append(head.epoch, head, rows)
                for _ in range(2):
                    with pytest.raises(PortUnavailable, match="timeout"):
                        await new.claim(OTHER, "", seen=seen)
                    with pytest.raises(PortUnavailable, match="timeout"):
                        await old.renew(HOLDER, head.epoch)
                assert await read_all(new) == []
        finally:
            postgres.execute("ALTER SYSTEM RESET synchronous_standby_names", "SELECT pg_reload_conf()")
        with trio.move_on_after(CLEAN_S, shield=True):
            await until(lambda: sessions(postgres, "state <> 'idle'") == 0)
        taken = await new.claim(OTHER, "", seen=seen)
        assert taken is not None
        assert taken.sequence == 2
        assert await read_all(new) == rows


async def test_without_replicas_there_is_no_tail_to_lose(address: PostgresAddress) -> None:
    async with open_postgres_journal(address, accept_lost_tail=True) as journal:
        await journal.head()
        assert not journal.lost_tail_accepted


async def test_a_replica_is_not_available_until_it_is_promoted() -> None:
    server = make_server()
    try:
        schema = server.new_schema()
        async with open_postgres_journal(parse_address(server.url(schema))) as journal:
            await append_one(journal, await lead(journal))
        server.stop()
        (server.folder / "data" / "standby.signal").touch()
        (server.folder / "data" / "standby.signal").chmod(0o666)
        server.start()
        async with open_postgres_journal(parse_address(server.url(schema))) as journal:
            with pytest.raises(PortUnavailable, match="read-only"):
                await journal.head()
        anyone = parse_address(server.url(schema, target_session_attrs="any"))
        async with open_postgres_journal(anyone) as journal:
            with pytest.raises(PortUnavailable, match="replica, which takes no writes"):
                await journal.head()
            server.execute("SELECT pg_promote()")
            assert (await journal.head()).sequence == 1
            await append_one(journal, await lead(journal))
    finally:
        server.remove()


async def test_a_fill_holds_no_limit_of_a_leader(postgres: PostgresServer, schema: str) -> None:
    """Rows may come slower than any statement may take."""
    address = parse_address(postgres.url(schema, statement_timeout_ms=20))
    rows = rows_after(Head(), 1, 20)

    async def slow() -> AsyncIterator[Row]:
        for row in rows:
            if row.sequence == 10:
                await until(lambda: sessions(postgres, "state_change < clock_timestamp() - interval '200 ms'") > 0)
            yield row

    async with open_postgres_journal(address) as journal:
        filled = await journal.fill(slow())
        assert filled is not None
        assert filled.sequence == 20
        assert await read_all(journal) == rows
