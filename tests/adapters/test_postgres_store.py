"""What the PostgreSQL store says of databases that it can't use, and how its schema comes into being."""

import attrs
import psycopg
import pytest
import trio

from lunanexa_adapters.postgres.address import parse_address
from lunanexa_adapters.postgres.connection import port_error
from lunanexa_adapters.postgres.journal import open_postgres_journal
from lunanexa_adapters.postgres.schema import JOURNAL_SCHEMA, Schema, prepare_schema
from lunanexa_core.journal_query import RowQuery
from lunanexa_ports.conformance.journal import lead, read_all, rows_after
from lunanexa_ports.errors import PortError, PortFault, PortUnavailable
from lunanexa_ports.journal import Appended
from tests.postgres_server import PostgresServer

pytestmark = pytest.mark.slow

NEWEST = JOURNAL_SCHEMA.version


@pytest.fixture
def schema(postgres: PostgresServer) -> str:
    return postgres.new_schema()


async def filled(url: str, count: int = 6) -> None:
    async with open_postgres_journal(parse_address(url)) as journal:
        head = await lead(journal)
        assert await journal.append(head.epoch, head, rows_after(head, head.epoch, count)) is Appended.DURABLE


async def opened_and_read(url: str) -> None:
    async with open_postgres_journal(parse_address(url)) as journal:
        await read_all(journal)


@pytest.mark.parametrize("setting", ["synchronous_commit=off", "synchronous_commit=on"])
async def test_a_commit_that_may_be_lost_is_no_commit(postgres: PostgresServer, schema: str, setting: str) -> None:
    url = postgres.url(schema, setting)
    if setting.endswith("on"):
        await filled(url)
        return
    with pytest.raises(PortFault, match=r"synchronous_commit=off.*ALTER SYSTEM SET synchronous_commit = on"):
        await filled(url)
    assert postgres.execute("SELECT to_regclass('lunanexa_row')", schema=schema) == [(None,)]


async def test_openers_at_once_make_one_schema(postgres: PostgresServer, schema: str) -> None:
    url = postgres.url(schema)
    async with trio.open_nursery() as nursery:
        for _ in range(6):
            nursery.start_soon(opened_and_read, url)
    assert postgres.execute("SELECT * FROM lunanexa_schema ORDER BY version", schema=schema) == [
        ("journal", version) for version in range(1, NEWEST + 1)
    ]


async def test_a_newer_schema_keeps_the_store_shut_and_names_the_way_out(postgres: PostgresServer, schema: str) -> None:
    await filled(postgres.url(schema))
    postgres.execute(f"INSERT INTO lunanexa_schema VALUES ('journal', {NEWEST + 1})", schema=schema)
    with pytest.raises(PortFault, match=rf"schema {NEWEST + 1}, newer than {NEWEST} .* start the version of"):
        await opened_and_read(postgres.url(schema))


async def test_a_step_is_done_wholly_or_not_at_all(postgres: PostgresServer, schema: str) -> None:
    url = postgres.url(schema)
    await filled(url)
    address, steps = parse_address(url), JOURNAL_SCHEMA.steps
    good = ("ALTER TABLE lunanexa_row ADD COLUMN more integer",)
    with pytest.raises(PortFault, match="already exists"):
        await prepare_schema(address, Schema("journal", (*steps, good, good)))
    assert postgres.execute("SELECT max(version) FROM lunanexa_schema", schema=schema) == [(NEWEST,)]
    await opened_and_read(url)
    await prepare_schema(address, Schema("journal", (*steps, good)))
    assert postgres.execute("SELECT count(more), count(*) FROM lunanexa_row", schema=schema) == [(0, 6)]
    assert postgres.execute("SELECT max(version) FROM lunanexa_schema", schema=schema) == [(NEWEST + 1,)]


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM lunanexa_head",
        "DELETE FROM lunanexa_row",
        "DELETE FROM lunanexa_row WHERE sequence = 6",
        "UPDATE lunanexa_head SET sequence = 5",
        "UPDATE lunanexa_head SET ledger = journal",
        "ALTER TABLE lunanexa_row RENAME TO rows",
        "UPDATE lunanexa_schema SET store = 'songs'",
        "DROP TABLE lunanexa_schema",
    ],
)
async def test_content_that_can_not_be_ours_is_a_fault(postgres: PostgresServer, schema: str, statement: str) -> None:
    url = postgres.url(schema)
    await filled(url)
    postgres.execute(statement, schema=schema)
    with pytest.raises(PortFault):
        await opened_and_read(url)


async def test_a_row_that_is_in_the_way_is_a_fault_and_leaves_no_lock(postgres: PostgresServer, schema: str) -> None:
    url = postgres.url(schema)
    await filled(url, 1)
    async with open_postgres_journal(parse_address(url)) as journal:
        head = await lead(journal)
        postgres.execute(
            "INSERT INTO lunanexa_row"
            " SELECT 2, chain, epoch, wall_ms, action, target, record, previous, hash FROM lunanexa_row",
            schema=schema,
        )
        with pytest.raises(PortFault):
            await journal.append(head.epoch, head, rows_after(head, head.epoch, 1))
        assert (await journal.head()).sequence == 1
        postgres.execute("DELETE FROM lunanexa_row WHERE sequence = 2", schema=schema)
        assert await journal.append(head.epoch, head, rows_after(head, head.epoch, 1)) is Appended.DURABLE


async def test_a_target_that_no_row_can_have(postgres: PostgresServer, schema: str) -> None:
    await filled(postgres.url(schema))
    async with open_postgres_journal(parse_address(postgres.url(schema))) as journal:
        assert list(await journal.page(RowQuery(target="thing\0", limit=9))) == []


async def test_nobody_listens() -> None:
    with pytest.raises(PortUnavailable, match="not available"):
        await opened_and_read("postgresql://lunanexa@127.0.0.1:1/postgres")


async def test_a_database_that_is_not_there(postgres: PostgresServer, schema: str) -> None:
    with pytest.raises(PortUnavailable, match='"nowhere" does not exist'):
        await opened_and_read(postgres.url(schema, dbname="nowhere"))


async def test_a_server_that_takes_no_writes_is_not_available(postgres: PostgresServer, schema: str) -> None:
    with pytest.raises(PortUnavailable, match="read-only"):
        await opened_and_read(postgres.url(schema, "default_transaction_read_only=on"))


async def test_bytes_are_those_of_every_store(postgres: PostgresServer, schema: str) -> None:
    """What PostgreSQL holds of a row is, column for column, the row."""
    url = postgres.url(schema)
    async with open_postgres_journal(parse_address(url)) as journal:
        head = await lead(journal)
        rows = rows_after(head, head.epoch, 4, text="\u00e9\U0001f600")
        assert await journal.append(head.epoch, head, rows) is Appended.DURABLE
    held = postgres.execute("SELECT * FROM lunanexa_row ORDER BY sequence", schema=schema)
    assert held == [
        tuple(value.value if name == "chain" else value for name, value in attrs.asdict(row).items()) for row in rows
    ]


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        *[("25P04", PortUnavailable), ("25P03", PortUnavailable), ("25006", PortUnavailable)],
        *[
            ("53100", PortUnavailable),
            ("53300", PortUnavailable),
            ("57P01", PortUnavailable),
            ("57014", PortUnavailable),
        ],
        *[("55P03", PortUnavailable), ("40001", PortUnavailable), ("58030", PortUnavailable)],
        *[("XX001", PortFault), ("42P01", PortFault), ("42501", PortFault), ("23505", PortFault)],
    ],
)
def test_what_an_error_of_postgresql_means(code: str, kind: type[PortError]) -> None:
    """Disk full, too many connections, shut down, cancelled, locked out and the like may end; damage does not."""
    assert type(port_error(psycopg.errors.lookup(code)("planted"))) is kind
