"""Stores as released schemas left them, as SQL text that can be reviewed: ``tests/fixtures/stores``.

Each is named after its store and the version of its schema, was written by the adapters of that time, and is never
changed. When a schema gets another step, its newest form is kept too: ``python -m tests.store_fixtures`` writes the
dumps that are missing. The content is what makes upgrades fail: odd characters, empty names, records of many pages,
epochs that wrote nothing, workloads without a receipt.
"""

import os
import sqlite3
import tempfile
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Final

import trio

from lunanexa_adapters.postgres import schema as postgres
from lunanexa_adapters.postgres.address import parse_address
from lunanexa_adapters.postgres.journal import open_postgres_journal
from lunanexa_adapters.sqlite.answers import ANSWERS_SCHEMA, open_sqlite_answers
from lunanexa_adapters.sqlite.journal import open_sqlite_journal
from lunanexa_adapters.sqlite.journal_reader import JOURNAL_SCHEMA
from lunanexa_adapters.sqlite.node_store import NODE_STORE_SCHEMA, open_sqlite_node_store
from lunanexa_apps.controller.rows import to_row
from lunanexa_core.deployment import Deployment
from lunanexa_core.events import (
    BindingsEnded,
    DeploymentApplied,
    DeploymentRemoved,
    EpochBegan,
    Event,
    KeyCreated,
    KeyRevoked,
    WorkloadAdmitted,
    WorkloadSettled,
)
from lunanexa_core.ids import Alias, AssignmentId, DeploymentId, KeyId, RequestId, TenantId, WorkloadId
from lunanexa_core.journal import Head, Row
from lunanexa_core.outcomes import Outcome
from lunanexa_core.workload import Attempt, Dialect, Receipt, Settlement, Usage
from lunanexa_ports.answers import Answer
from lunanexa_ports.conformance.journal import Store, lead
from lunanexa_ports.journal import Appended
from tests.core.builders import ALIAS, DEPLOYMENT, START, api_key, engine, request, serving_events, spec
from tests.postgres_server import PostgresServer, make_server

FOLDER: Final = Path(__file__).parent / "fixtures" / "stores"
ODD: Final = "dépôt 'it''s' \"x\" ; -- \u2028\u202e\U0001f9ea\ufeffA\u030a \\x00 %s $1 {0}"
OPEN_WORKLOADS: Final = frozenset(map(WorkloadId, ("wl_3", "wl_4", "wl_" + ODD)))
_WALL_MS: Final = 1_700_000_000_000


def dumps(store: str) -> list[Path]:
    """Every kept dump of ``store`` (``sqlite-journal``, ``postgres-journal`` …), the oldest schema first."""
    return sorted(FOLDER.glob(f"{store}-*.sql"), key=version_of)


def version_of(dump: Path) -> int:
    """The schema that the dump has."""
    return int(dump.stem.rpartition("-")[2])


def load_sqlite(dump: Path, path: Path) -> None:
    """Makes the SQLite file of a dump, as a program of its time would have left it."""
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(dump.read_bytes().decode())
        connection.execute("PRAGMA journal_mode=WAL")
    path.chmod(0o600)


def load_postgres(dump: Path, server: PostgresServer, schema: str) -> None:
    """Makes the tables of a dump in an empty schema of a server."""
    server.execute(dump.read_bytes().decode(), schema=schema)


def events_of_one_epoch(number: int) -> list[Event]:
    """What the leader of the ``number``-th epoch that wrote anything did."""
    odd = DeploymentId(ODD)
    long = engine(arguments=tuple(f"--note={ODD}{n}" for n in range(300)))
    receipt = Receipt(
        workload=WorkloadId("wl_1"),
        request=RequestId("req_1"),
        tenant=TenantId("default"),
        key=KeyId("key_1"),
        alias=ALIAS,
        deployment=DEPLOYMENT,
        dialect=Dialect.CHAT,
        settlement=Settlement(
            workload=WorkloadId("wl_1"),
            outcome=Outcome.CANCELLED_BY_CALLER,
            detail=ODD,
            usage=Usage(input_tokens=2**53 - 1, estimated=True),
            attempts=(Attempt(start=START, failure="engine_cut", status=502), Attempt(start=START, status=200)),
        ),
    )

    def admitted(name: int | str, tenant: str = "default", **changes: object) -> WorkloadAdmitted:
        asked = request(1, workload=WorkloadId(f"wl_{name}"), request=RequestId(f"req_{name}"), **changes)
        return WorkloadAdmitted(request=asked, key=KeyId("key_1"), tenant=TenantId(tenant), deployment=DEPLOYMENT)

    epochs: list[list[Event]] = [
        [*serving_events(), admitted(1, idempotency="a" * 64, binding="b" * 64, retain_ms=0), admitted(2)],
        [
            EpochBegan(version=""),
            KeyCreated(api_key(key=KeyId(""), name="", tenant=TenantId(""))),
            KeyCreated(api_key(key=KeyId("key_odd"), name=ODD + "\0\t\r\n\u007f", tenant=TenantId(ODD))),
            DeploymentApplied(
                Deployment(spec=spec(deployment=odd, alias=Alias(ODD), engine=long), generation=2**53 - 1)
            ),
            DeploymentApplied(Deployment(spec=spec(deployment=DeploymentId(""), alias=Alias("")), generation=1)),
            DeploymentRemoved(DeploymentId("")),
            WorkloadSettled(receipt),
            admitted(3, tenant=ODD, body_bytes=2**40),
        ],
        [
            EpochBegan(version=ODD),
            KeyRevoked(KeyId("")),
            BindingsEnded(("a" * 64,)),
            admitted(4),
            admitted(ODD),
            WorkloadSettled(_second(receipt)),
        ],
    ]
    return epochs[number]


def _second(receipt: Receipt) -> Receipt:
    settlement = Settlement(workload=WorkloadId("wl_2"), outcome=None, attempts=(Attempt(start=START, status=200),))
    return Receipt(
        workload=WorkloadId("wl_2"),
        request=RequestId("req_2"),
        tenant=receipt.tenant,
        key=receipt.key,
        alias=receipt.alias,
        deployment=receipt.deployment,
        dialect=receipt.dialect,
        settlement=settlement,
    )


def rows_of(head: Head, epoch: int, events: Sequence[Event]) -> list[Row]:
    """The rows of ``events`` after ``head``."""
    rows: list[Row] = []
    for event in events:
        row = to_row(head, event, epoch=epoch, wall_ms=_WALL_MS + head.sequence * 997, actor=ODD)
        rows.append(row)
        head = head.after(row)
    return rows


async def fill_journal(journal: Store) -> None:
    """Writes three epochs, with some between them that wrote nothing, and takes one that begins nothing."""
    for number in range(3):
        head = await lead(journal)
        for _ in range(number):
            head = await lead(journal)
        rows = rows_of(head, head.epoch, events_of_one_epoch(number))
        assert await journal.append(head.epoch, head, rows) is Appended.DURABLE
    await lead(journal)


async def _write_missing(folder: Path, server: PostgresServer) -> None:
    journal = FOLDER / f"sqlite-journal-{JOURNAL_SCHEMA.version}.sql"
    if not journal.exists():
        async with open_sqlite_journal(folder / "journal") as store:
            await fill_journal(store)
        _dump(folder / "journal", journal)
    node = FOLDER / f"sqlite-node-{NODE_STORE_SCHEMA.version}.sql"
    if not node.exists():
        async with open_sqlite_node_store(folder / "node") as memory:
            await memory.next_start_number()
            await memory.put("desired", b"{}")
            await memory.put(ODD, bytes(range(256)) * 40)
            await memory.put("", b"")
            await memory.put_replica(AssignmentId(ODD), b"\0")
            await memory.put_replica(AssignmentId(""), b"")
        _dump(folder / "node", node)
    answers = FOLDER / f"sqlite-answers-{ANSWERS_SCHEMA.version}.sql"
    if not answers.exists():
        async with open_sqlite_answers(folder / "answers", 1 << 20) as kept:
            for number, body in enumerate((b"", b"\0\xff" * 5_000, ODD.encode())):
                answer = Answer(status=200 + number, content_type=ODD, body=body)
                expires = _WALL_MS + number
                await kept.put(WorkloadId(f"wl_{ODD}{number}"), answer, now_wall_ms=0, expires_wall_ms=expires)
        _dump(folder / "answers", answers)
    outside = FOLDER / f"postgres-journal-{postgres.JOURNAL_SCHEMA.version}.sql"
    if not outside.exists():
        name = server.new_schema()
        async with open_postgres_journal(parse_address(server.url(name))) as remote:
            await fill_journal(remote)
        outside.write_text(_postgres_dump(server, name), encoding="utf-8", newline="")


def _dump(path: Path, dump: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        dump.write_text("\n".join(connection.iterdump()) + "\n", encoding="utf-8", newline="")


def _postgres_dump(server: PostgresServer, schema: str) -> str:
    """Tables as their steps made them, and each row as an INSERT; what a step inserted by itself goes first."""
    made = [
        "CREATE TABLE lunanexa_schema (store text NOT NULL, version integer NOT NULL, PRIMARY KEY (store, version))",
        *(statement for step in postgres.JOURNAL_SCHEMA.steps for statement in step),
    ]
    tables = [name for (name,) in server.execute(_TABLES, schema=schema)]
    lines = [f"{statement};" for statement in made]
    for table in tables:
        columns = [name for (name,) in server.execute(_COLUMNS.format(table=table), schema=schema)]
        values = f"format('({', '.join(['%L'] * len(columns))})', {', '.join(columns)})"
        found = server.execute(f"SELECT {values} FROM {table} ORDER BY {', '.join(columns[:2])}", schema=schema)
        lines.append(f"DELETE FROM {table};")
        lines.extend(f"INSERT INTO {table} ({', '.join(columns)}) VALUES {row};" for (row,) in found)
    return "\n".join(lines) + "\n"


_TABLES: Final = """SELECT table_name FROM information_schema.tables
    WHERE table_schema = current_schema() AND table_name LIKE 'lunanexa%' ORDER BY 1"""
_COLUMNS: Final = """SELECT column_name FROM information_schema.columns
    WHERE table_schema = current_schema() AND table_name = '{table}' ORDER BY ordinal_position"""


def main() -> None:
    """Writes the dumps that are missing."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    os.umask(0o022)
    server = make_server()
    try:
        with tempfile.TemporaryDirectory() as folder:
            trio.run(_write_missing, Path(folder), server)
    finally:
        server.remove()


if __name__ == "__main__":
    main()
