"""The PostgreSQL store when the server, the network or another holder is in the way."""

import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest
import trio

from lunanexa_adapters.postgres.address import PostgresAddress, parse_address
from lunanexa_adapters.postgres.journal import PostgresJournal, open_postgres_journal
from lunanexa_core.ids import HolderId
from lunanexa_core.journal import Head, Row
from lunanexa_core.leadership import Lease
from lunanexa_ports.conformance.journal import HOLDER, lead, read_all, rows_after, verified
from lunanexa_ports.errors import PortUnavailable
from lunanexa_ports.journal import Appended
from lunanexa_simulation.rng import Streams
from tests.adapters.postgres_proxy import Proxy, proxy_to
from tests.postgres_server import PostgresServer

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
LIMIT_S = 60
QUICK_MS = 300
NOBODY = HolderId("nobody")
"""A statement timeout for tests that wait for it."""


@pytest.fixture
def schema(postgres: PostgresServer) -> str:
    return postgres.new_schema()


@pytest.fixture
def address(postgres: PostgresServer, schema: str) -> PostgresAddress:
    return parse_address(postgres.url(schema, statement_timeout_ms=QUICK_MS))


@pytest.fixture
def patient(postgres: PostgresServer, schema: str) -> PostgresAddress:
    """For tests in which nothing may time out, on however busy a machine."""
    return parse_address(postgres.url(schema, statement_timeout_ms=LIMIT_S * 1_000))


@contextmanager
def locked_head(postgres: PostgresServer, schema: str) -> Iterator[psycopg.Connection[Any]]:
    """Somebody else's transaction that has the head row until it ends."""
    with psycopg.connect(postgres.url(schema)) as connection:
        connection.execute("SELECT * FROM lunanexa_head FOR UPDATE")
        yield connection
        connection.rollback()


async def until_waiting(postgres: PostgresServer, count: int) -> None:
    """Returns when so many statements of stores wait for a lock."""
    with trio.fail_after(LIMIT_S):
        while len(backends(postgres, "wait_event_type = 'Lock'")) < count:
            await trio.sleep(0.005)


def backends(postgres: PostgresServer, condition: str = "true") -> list[int]:
    found = postgres.execute(
        f"SELECT pid FROM pg_stat_activity WHERE application_name = 'lunanexa' AND {condition} ORDER BY pid"
    )
    return [pid for (pid,) in found]


async def at_hand(journal: PostgresJournal) -> Lease:
    """The lease as it is seen through ``journal``, whose connections are open then: only the lock is waited for."""
    assert not await journal.renew(NOBODY, 0)
    return await journal.look()


async def resolve(journal: PostgresJournal, known: Head) -> tuple[Head, list[Row]]:
    """What a leader does after an append of unknown outcome: a new epoch, then the rows beyond what it knew."""
    with trio.fail_after(LIMIT_S):
        while True:
            try:
                head = await lead(journal)
                return head, await read_all(journal, known.sequence)
            except PortUnavailable:
                await trio.sleep(0.02)


async def test_an_append_in_flight_is_durable_before_another_leads(
    postgres: PostgresServer, schema: str, patient: PostgresAddress
) -> None:
    async with open_postgres_journal(patient) as old, open_postgres_journal(patient) as new:
        head = await lead(old)
        rows = rows_after(head, head.epoch, 3)
        outcomes: list[Appended] = []
        taken: list[Head] = []
        seen = await at_hand(new)

        async def append() -> None:
            outcomes.append(await old.append(head.epoch, head, rows))

        async def take() -> None:
            claimed = await new.claim(HOLDER, "", seen=seen)
            assert claimed is not None
            taken.append(claimed)

        with locked_head(postgres, schema) as lock:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(append)
                await until_waiting(postgres, 1)
                nursery.start_soon(take)
                await until_waiting(postgres, 2)
                lock.rollback()
        assert outcomes == [Appended.DURABLE]
        assert (taken[0].epoch, taken[0].sequence) == (head.epoch + 1, 3)
        assert await read_all(new) == rows


async def test_an_append_behind_another_epoch_writes_nothing(
    postgres: PostgresServer, schema: str, patient: PostgresAddress
) -> None:
    """The statement had begun, with the old head before its eyes, when the epoch was taken."""
    async with open_postgres_journal(patient) as old, open_postgres_journal(patient) as new:
        head = await lead(old)
        outcomes: list[Appended] = []
        seen = await at_hand(new)

        async def append() -> None:
            outcomes.append(await old.append(head.epoch, head, rows_after(head, head.epoch, 3)))

        with locked_head(postgres, schema) as lock:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(partial(new.claim, HOLDER, "", seen=seen))
                await until_waiting(postgres, 1)
                nursery.start_soon(append)
                await until_waiting(postgres, 2)
                lock.rollback()
        assert outcomes == [Appended.FENCED]
        assert await read_all(new) == []


async def test_a_statement_that_waits_too_long_is_ended_and_leaves_nothing(
    postgres: PostgresServer, schema: str, address: PostgresAddress
) -> None:
    async with open_postgres_journal(address) as journal:
        head = await lead(journal)
        rows = rows_after(head, head.epoch, 2)
        with locked_head(postgres, schema), trio.fail_after(LIMIT_S):
            with pytest.raises(PortUnavailable, match="timeout"):
                await journal.append(head.epoch, head, rows)
            with pytest.raises(PortUnavailable, match="timeout"):
                await lead(journal)
            assert await journal.head() == head
        assert backends(postgres, "state <> 'idle'") == []
        assert await journal.append(head.epoch, head, rows) is Appended.DURABLE


async def test_a_paused_holder_writes_nothing_once_it_wakes(postgres: PostgresServer, schema: str) -> None:
    """SIGSTOP at any moment of its appends, a new epoch meanwhile, SIGCONT."""
    url = postgres.url(schema)
    moments = Streams(11).stream("pauses")
    async with open_postgres_journal(parse_address(url)) as journal:
        for turn in range(8):
            process = await trio.lowlevel.open_process(
                [sys.executable, "-m", "tests.adapters.postgres_writer", url], stdout=subprocess.PIPE, cwd=ROOT
            )
            assert process.stdout is not None
            said = b""
            with trio.fail_after(LIMIT_S):
                while said.count(b"\n") < 5 + turn:
                    said += await process.stdout.receive_some()
                await trio.sleep(moments.random() / 200)
                os.kill(process.pid, signal.SIGSTOP)
                head, tail = await resolve(journal, Head())
                assert verified(tail).sequence == head.sequence
                more = rows_after(head, head.epoch, 2)
                assert await journal.append(head.epoch, head, more) is Appended.DURABLE
                os.kill(process.pid, signal.SIGCONT)
                async for chunk in process.stdout:
                    said += chunk
                await process.wait()
            await process.stdout.aclose()
            kind, last = said.decode().splitlines()[-1].split()
            assert kind in ("fenced", "unknown"), kind
            # What it was told is durable is there; of what it did not hear of, at most its one append in flight.
            assert int(last) <= head.sequence
            kept = await read_all(journal)
            assert kept == tail + more
            verified(kept)


async def test_an_append_whose_server_process_was_paused_is_overtaken(
    postgres: PostgresServer, schema: str, address: PostgresAddress
) -> None:
    """It had begun and waited for the head row; it wakes after another has taken an epoch and written."""
    async with open_postgres_journal(address) as old, open_postgres_journal(address) as new:
        head = await lead(old)
        outcomes: list[Appended | None] = []

        async def append() -> None:
            try:
                outcomes.append(await old.append(head.epoch, head, rows_after(head, head.epoch, 3)))
            except PortUnavailable:
                outcomes.append(None)

        with locked_head(postgres, schema) as lock:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(append)
                await until_waiting(postgres, 1)
                (waiting,) = backends(postgres, "wait_event_type = 'Lock'")
                os.kill(waiting, signal.SIGSTOP)
                try:
                    lock.rollback()
                    taken, tail = await resolve(new, Head())
                    rows = rows_after(taken, taken.epoch, 2)
                    assert await new.append(taken.epoch, taken, rows) is Appended.DURABLE
                finally:
                    os.kill(waiting, signal.SIGCONT)
        assert tail == []
        assert outcomes[0] in (Appended.FENCED, None)
        with trio.fail_after(LIMIT_S):
            while backends(postgres, "state <> 'idle'"):
                await trio.sleep(0.005)
        assert await read_all(new) == rows


@asynccontextmanager
async def through_proxy(postgres: PostgresServer, schema: str) -> AsyncIterator[tuple[Proxy, PostgresJournal]]:
    async with proxy_to(postgres.port) as proxy:
        url = postgres.url(schema, port=proxy.port, statement_timeout_ms=QUICK_MS)
        async with open_postgres_journal(parse_address(url)) as journal:
            yield proxy, journal


@pytest.mark.parametrize("way", ["asking", "answering"])
@pytest.mark.parametrize("ending", ["cut", "silence"])
async def test_an_append_whose_answer_never_came(postgres: PostgresServer, schema: str, way: str, ending: str) -> None:
    """The network goes before the statement arrived, or before its answer did: the tail tells which."""
    async with through_proxy(postgres, schema) as (proxy, journal):
        head = await lead(journal)
        rows = rows_after(head, head.epoch, 4)
        held = getattr(proxy, way)
        held.hold()
        with trio.fail_after(LIMIT_S):
            async with trio.open_nursery() as nursery:

                async def append() -> None:
                    with pytest.raises(PortUnavailable):
                        await journal.append(head.epoch, head, rows)

                nursery.start_soon(append)
                await held.arrived.wait()
                if ending == "cut":
                    proxy.cut()
        held.release()
        head, tail = await resolve(journal, head)
        # A statement that was only late may arrive once the silence ends, and is fenced then.
        assert tail == (rows if way == "answering" else []) or (
            way == "asking" and ending == "silence" and tail == rows
        )
        more = rows_after(head, head.epoch, 2)
        assert await journal.append(head.epoch, head, more) is Appended.DURABLE
        assert await read_all(journal) == tail + more


async def test_a_connection_that_broke_at_rest_is_made_again_unnoticed(
    postgres: PostgresServer, address: PostgresAddress
) -> None:
    async with open_postgres_journal(address) as journal:
        head = await lead(journal)
        for _ in range(3):
            postgres.end_connections()
            rows = rows_after(head, head.epoch, 2)
            assert await journal.append(head.epoch, head, rows) is Appended.DURABLE
            postgres.end_connections()
            head = await journal.head()
            assert (await read_all(journal))[-2:] == rows


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
async def test_the_server_is_restarted_under_load(
    postgres: PostgresServer, address: PostgresAddress, number: int
) -> None:
    """Whatever was acknowledged is there afterwards, once, and nothing is there in part."""
    acknowledged: list[Row] = []
    moments = Streams(number).stream("restarts")
    over = False

    async def load(journal: PostgresJournal) -> None:
        head = await lead(journal)
        while not over:
            rows = rows_after(head, head.epoch, 1 + len(acknowledged) % 40)
            try:
                outcome = await journal.append(head.epoch, head, rows)
            except PortUnavailable:
                head, tail = await resolve(journal, head)
                assert tail in ([], rows)
                acknowledged.extend(tail)
                continue
            assert outcome is Appended.DURABLE
            acknowledged.extend(rows)
            for row in rows:
                head = head.after(row)

    async with open_postgres_journal(address) as journal:
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(load, journal)
                for _ in range(3):
                    before = len(acknowledged)
                    with trio.fail_after(LIMIT_S):
                        while len(acknowledged) < before + 300:
                            await trio.sleep(0.005)
                    await trio.sleep(moments.random() / 100)
                    await trio.to_thread.run_sync(postgres.stop, number)
                    await trio.to_thread.run_sync(postgres.start)
                over = True
        finally:
            if postgres.process is None:
                postgres.start()
        assert await read_all(journal) == acknowledged
        verified(acknowledged)


async def test_a_server_that_is_away_is_told_within_seconds(postgres: PostgresServer, address: PostgresAddress) -> None:
    async with open_postgres_journal(address) as journal:
        head = await lead(journal)
        postgres.stop()
        try:
            with trio.fail_after(10):
                for asking in (journal.head, lambda: lead(journal)):
                    with pytest.raises(PortUnavailable):
                        await asking()
                with pytest.raises(PortUnavailable):
                    await journal.append(head.epoch, head, rows_after(head, head.epoch, 1))
        finally:
            postgres.start()
        assert await journal.head() == head


async def test_readers_that_leave_in_the_middle_leave_nothing_open(
    postgres: PostgresServer, address: PostgresAddress
) -> None:
    moments = Streams(3).stream("departures")
    async with open_postgres_journal(address) as journal:
        head = await lead(journal)
        rows = rows_after(head, head.epoch, 1_000, text="x" * 500)
        assert await journal.append(head.epoch, head, rows) is Appended.DURABLE
        left = 0

        async def visit(patience_s: float) -> None:
            nonlocal left
            with trio.move_on_after(patience_s) as scope:
                assert await read_all(journal) == rows
            left += scope.cancelled_caught

        for _ in range(10):
            async with trio.open_nursery() as nursery:
                for _ in range(12):
                    nursery.start_soon(visit, moments.random() / 10)
        assert left > 0
        assert await read_all(journal) == rows
        with trio.fail_after(LIMIT_S):
            while len(backends(postgres)) > 2 + address.readers_max:
                await trio.sleep(0.01)
        assert backends(postgres, "state <> 'idle'") == []


async def test_closing_waits_for_the_append_in_hand(
    postgres: PostgresServer, schema: str, patient: PostgresAddress
) -> None:
    outcomes: list[Appended] = []
    async with open_postgres_journal(patient) as journal:
        head = await lead(journal)
        rows = rows_after(head, head.epoch, 200)

        async def append() -> None:
            outcomes.append(await journal.append(head.epoch, head, rows))

        with locked_head(postgres, schema) as lock:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(append)
                await until_waiting(postgres, 1)
                nursery.start_soon(journal.aclose)
                lock.rollback()
    assert outcomes == [Appended.DURABLE]
    assert backends(postgres) == []
    async with open_postgres_journal(patient) as journal:
        assert await read_all(journal) == rows
