"""The numbered schema of the store in a database, and how it is brought up to date.

All steps that are missing are one statement, and so one transaction: a database has all of them or none. A step only
adds; what it could spoil nevertheless is copied in the same transaction. A schema that is newer than the program keeps
the store shut: guessing would lose rows that are kept for ever.
"""

from typing import Final

import attrs
import psycopg
import trio

from lunanexa_adapters.postgres.address import PostgresAddress
from lunanexa_adapters.postgres.connection import TrioConnection, limit_session, open_connection, port_error
from lunanexa_core.journal import GENESIS
from lunanexa_ports.errors import PortFault, PortUnavailable

MIGRATION_S: Final = 600.0
_LOCK: Final = 7_530_164_421_507
"""The key of the advisory lock under which one program at a time changes a schema; any constant of ours."""


@attrs.frozen
class Schema:
    """``steps[n]`` holds the statements that bring version ``n`` to ``n + 1``; they are never changed. No step touches
    what stands in a table, but for those of ``copied``, which are small: ``NAME_schema_1`` keeps what schema 1 had."""

    store: str
    steps: tuple[tuple[str, ...], ...]
    copied: tuple[str, ...] = ()

    @property
    def version(self) -> int:
        return len(self.steps)


JOURNAL_SCHEMA: Final = Schema(
    "journal",
    (
        (
            # Each append changes the one row of this table: room on its page keeps that cheap.
            """CREATE TABLE lunanexa_head (
                one boolean PRIMARY KEY CHECK (one), sequence bigint NOT NULL, epoch bigint NOT NULL,
                journal text NOT NULL, ledger text NOT NULL) WITH (fillfactor = 10)""",
            f"INSERT INTO lunanexa_head VALUES (true, 0, 0, '{GENESIS}', '{GENESIS}')",
            """CREATE TABLE lunanexa_row (
                sequence bigint PRIMARY KEY, chain text NOT NULL CHECK (chain IN ('journal', 'ledger')),
                epoch bigint NOT NULL, wall_ms bigint NOT NULL, action text NOT NULL,
                target text COLLATE "C" NOT NULL, record bytea NOT NULL, previous text NOT NULL, hash text NOT NULL)""",
            "CREATE INDEX lunanexa_row_target ON lunanexa_row (target, sequence)",
        ),
        # The lease: nobody leads while the holder is NULL.
        (
            """ALTER TABLE lunanexa_head ADD COLUMN holder text, ADD COLUMN address text NOT NULL DEFAULT '',
                ADD COLUMN changes bigint NOT NULL DEFAULT 0""",
        ),
    ),
    copied=("lunanexa_head",),
)


async def prepare_schema(address: PostgresAddress, schema: Schema) -> None:
    """Creates the schema or brings it up to date. Raises ``PortFault`` with the way out when it is newer than the
    program's, or another store's."""
    connection = await open_connection(address)
    try:
        with trio.fail_after(MIGRATION_S):
            version = await _version(connection, schema)
            if version < schema.version:
                # Building an index may take longer than any other statement may.
                await limit_session(connection, 0)
                await connection.execute(_change(schema))
                version = await _version(connection, schema)
    except (psycopg.Error, trio.TooSlowError) as error:
        raise port_error(error) from error
    finally:
        connection.finish()
    if version > schema.version:
        raise PortFault(
            f"the {schema.store} has schema {version}, newer than {schema.version} of this program:"
            " start the version of lunanexa that wrote it, or a newer one"
        )
    if version < schema.version:
        raise PortUnavailable(f"the {schema.store} stayed at schema {version}: another program changes it")


async def _version(connection: TrioConnection, schema: Schema) -> int:
    known = await (await connection.execute("SELECT to_regclass('lunanexa_schema') IS NOT NULL")).fetchone()
    if known != (True,):
        return 0
    rows = await (await connection.execute("SELECT store, version FROM lunanexa_schema ORDER BY version")).fetchall()
    stores = {store for store, _ in rows}
    if stores - {schema.store}:
        raise PortFault(f"the database holds a {', '.join(sorted(stores))}, not a {schema.store}")
    return max((version for _, version in rows), default=0)


def _change(schema: Schema) -> str:
    """One statement with all steps, each behind the question whether it was done, which is asked under the lock."""
    copies = "\n".join(
        f"EXECUTE format('DROP TABLE IF EXISTS %1$I; CREATE TABLE %1$I AS TABLE {table}', '{table}_schema_' || done);"
        for table in schema.copied
    )
    steps = "\n".join(
        f"IF done < {version} THEN {'; '.join(statements)};"
        f" INSERT INTO lunanexa_schema VALUES ('{schema.store}', {version}); END IF;"
        for version, statements in enumerate(schema.steps, start=1)
    )
    return f"""DO $change$ DECLARE done integer; BEGIN
        PERFORM pg_advisory_xact_lock({_LOCK});
        CREATE TABLE IF NOT EXISTS lunanexa_schema (
            store text NOT NULL, version integer NOT NULL, PRIMARY KEY (store, version));
        SELECT coalesce(max(version), 0) INTO done FROM lunanexa_schema;
        IF done > 0 AND done < {schema.version} THEN {copies} END IF;
        {steps}
    END $change$"""
