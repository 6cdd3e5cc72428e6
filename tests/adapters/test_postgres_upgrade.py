"""Databases whose schema is older than the program's: what is kept of them, whatever dies while it is changed."""

import os
import re
import signal
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import attrs
import psycopg
import pytest
import trio

from lunanexa_adapters.postgres.address import parse_address
from lunanexa_adapters.postgres.journal import open_postgres_journal
from lunanexa_adapters.postgres.schema import JOURNAL_SCHEMA, prepare_schema
from lunanexa_adapters.sqlite import journal_reader
from lunanexa_apps.controller.replay import Replay
from lunanexa_ports.conformance.journal import lead, read_all, rows_after, verified
from lunanexa_ports.errors import PortFault, PortUnavailable
from lunanexa_ports.journal import Appended
from tests.postgres_server import PostgresServer
from tests.store_fixtures import OPEN_WORKLOADS, dumps, load_postgres, version_of

LIMIT_S: Final = 60
COLUMNS: Final = "sequence, chain, epoch, wall_ms, action, target, record, previous, hash"
GATES: Final = 3
LATER: Final = attrs.evolve(
    JOURNAL_SCHEMA,
    steps=(
        *JOURNAL_SCHEMA.steps,
        *((f"CREATE TABLE more_{number} (one integer)", f"LOCK TABLE gate_{number}") for number in range(1, GATES + 1)),
    ),
)


@pytest.fixture
def schema(postgres: PostgresServer) -> str:
    return postgres.new_schema()


def tables(postgres: PostgresServer, schema: str) -> list[Any]:
    """All that a change of the schema could change: columns, versions and rows."""
    columns = postgres.execute(
        "SELECT table_name, column_name FROM information_schema.columns WHERE table_schema = current_schema()"
        " ORDER BY table_name, ordinal_position",
        schema=schema,
    )
    versions = postgres.execute("SELECT * FROM lunanexa_schema ORDER BY version", schema=schema)
    head = postgres.execute("TABLE lunanexa_head", schema=schema)
    return [columns, versions, head, postgres.execute("TABLE lunanexa_row", schema=schema)]


@pytest.mark.slow
@pytest.mark.parametrize("dump", [pytest.param(dump, id=dump.stem) for dump in dumps("postgres-journal")])
async def test_a_journal_of_every_schema_goes_on(dump: Path, postgres: PostgresServer, schema: str) -> None:
    load_postgres(dump, postgres, schema)
    old = version_of(dump)
    held = postgres.execute(f"SELECT {COLUMNS} FROM lunanexa_row ORDER BY sequence", schema=schema)
    before = postgres.execute("TABLE lunanexa_head", schema=schema)
    async with open_postgres_journal(parse_address(postgres.url(schema))) as journal:
        rows = await read_all(journal)
        assert [
            tuple(value.value if name == "chain" else value for name, value in attrs.asdict(row).items())
            for row in rows
        ] == held
        head, stored = verified(rows), await journal.head()
        assert (stored.sequence, stored.journal, stored.ledger) == (head.sequence, head.journal, head.ledger)
        assert stored.epoch > head.epoch
        replay = Replay()
        for row in rows:
            replay.feed(row)
        assert set(replay.state.open) == OPEN_WORKLOADS
        head = await lead(journal)
        assert head.epoch == stored.epoch + 1
        more = rows_after(head, head.epoch, 3)
        assert await journal.append(head.epoch, head, more) is Appended.DURABLE
        assert await read_all(journal) == rows + more
    copy = f"lunanexa_head_schema_{old}"
    assert postgres.execute("SELECT to_regclass(%L)".replace("%L", f"'{copy}'"), schema=schema) == [
        (copy if old < JOURNAL_SCHEMA.version else None,)
    ]
    if old < JOURNAL_SCHEMA.version:
        assert postgres.execute(f"TABLE {copy}", schema=schema) == before


def prepared(postgres: PostgresServer, schema: str) -> None:
    """An older store, and gates in the way of the steps that would change it."""
    load_postgres(dumps("postgres-journal")[0], postgres, schema)
    postgres.execute(*(f"CREATE TABLE gate_{number} ()" for number in range(1, GATES + 1)), schema=schema)


async def until_waiting(postgres: PostgresServer) -> int:
    """The server process of the change, once it waits at a gate."""
    with trio.fail_after(LIMIT_S):
        while True:
            found = postgres.execute(
                "SELECT pid FROM pg_stat_activity WHERE application_name = 'lunanexa' AND wait_event_type = 'Lock'"
            )
            if found:
                (pid,) = found[0]
                return int(pid)
            await trio.sleep(0.01)


@pytest.mark.slow
@pytest.mark.parametrize("gate", range(1, GATES + 1))
@pytest.mark.parametrize("death", ["backend", "server"])
async def test_a_change_that_is_cut_at_any_step_is_as_if_it_never_began(
    death: str, gate: int, postgres: PostgresServer, schema: str
) -> None:
    prepared(postgres, schema)
    before = tables(postgres, schema)
    address = parse_address(postgres.url(schema))
    # Closed without a word: its server process dies too.
    with closing(psycopg.connect(postgres.url(schema, application_name="gatekeeper"))) as keeper:
        keeper.execute(f"LOCK TABLE gate_{gate}")
        async with trio.open_nursery() as nursery:

            async def change() -> None:
                with pytest.raises(PortUnavailable):
                    await prepare_schema(address, LATER)

            nursery.start_soon(change)
            pid = await until_waiting(postgres)
            if death == "backend":
                os.kill(pid, signal.SIGKILL)
            else:
                await trio.to_thread.run_sync(postgres.stop, signal.SIGKILL)
        if death == "server":
            postgres.start()
        with trio.fail_after(LIMIT_S):
            while not is_up(postgres):
                await trio.sleep(0.02)
    assert tables(postgres, schema) == before
    await prepare_schema(address, LATER)
    assert tables(postgres, schema)[3] == before[3]


@pytest.mark.slow
async def test_a_change_whose_program_died_is_ended_by_the_server_or_not_at_all(
    postgres: PostgresServer, schema: str
) -> None:
    prepared(postgres, schema)
    before = tables(postgres, schema)
    address = parse_address(postgres.url(schema))
    with psycopg.connect(postgres.url(schema, application_name="gatekeeper")) as keeper:
        keeper.execute("LOCK TABLE gate_2")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(prepare_schema, address, LATER)
            await until_waiting(postgres)
            nursery.cancel_scope.cancel("the program dies")
        keeper.rollback()
    with trio.fail_after(LIMIT_S):
        while postgres.execute("SELECT 1 FROM pg_stat_activity WHERE application_name = 'lunanexa'"):
            await trio.sleep(0.01)
    after = tables(postgres, schema)
    assert after[:2] == before[:2] or after[1][-1] == ("journal", LATER.version)
    assert after[3] == before[3]
    await prepare_schema(address, LATER)
    with pytest.raises(PortFault, match=f"schema {LATER.version}, newer than {JOURNAL_SCHEMA.version}"):
        await prepare_schema(address, JOURNAL_SCHEMA)


def is_up(postgres: PostgresServer) -> bool:
    try:
        postgres.execute("SELECT 1")
    except psycopg.OperationalError:
        return False
    return True


@pytest.mark.slow
async def test_programs_that_start_at_once_change_it_once(postgres: PostgresServer, schema: str) -> None:
    prepared(postgres, schema)
    address = parse_address(postgres.url(schema))
    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(prepare_schema, address, LATER)
    versions = postgres.execute("SELECT version FROM lunanexa_schema ORDER BY version", schema=schema)
    assert versions == [(version,) for version in range(1, LATER.version + 1)]
    copies = postgres.execute(
        "SELECT table_name FROM information_schema.tables"
        " WHERE table_schema = current_schema() AND table_name LIKE 'lunanexa_head_schema_%'",
        schema=schema,
    )
    assert copies == [("lunanexa_head_schema_1",)]


@pytest.mark.parametrize(
    ("steps", "copied"),
    [
        (JOURNAL_SCHEMA.steps, JOURNAL_SCHEMA.copied),
        (journal_reader.JOURNAL_SCHEMA.steps, ()),
    ],
)
def test_a_step_only_adds(steps: tuple[tuple[str, ...], ...], copied: tuple[str, ...]) -> None:
    """A program of an older version may still write while a newer one begins, and reads what is older."""
    good = re.compile(r"\s*(CREATE (TABLE|(UNIQUE )?INDEX) |ALTER TABLE (?P<table>\w+)\s+(ADD COLUMN [^,]*,?\s*)+$)")
    for statement in (statement for step in steps[1:] for statement in step):
        changed = re.match(r"\s*UPDATE (\w+)", statement)
        assert good.match(statement) or (changed is not None and changed[1] in copied), statement
