"""The ledger of a real installation is pruned: archived, carried by a replay in another process, dropped, proven."""

import json
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio

from lunanexa_adapters.postgres.address import parse_address
from lunanexa_adapters.postgres.journal import open_postgres_journal
from lunanexa_adapters.sqlite.journal import open_sqlite_journal
from lunanexa_apps.controller.rows import from_row, to_row
from lunanexa_core.events import WorkloadAdmitted, WorkloadSettled
from lunanexa_core.ids import WorkloadId
from lunanexa_core.journal import Row
from lunanexa_core.journal_query import RowQuery
from lunanexa_core.state import RECENT_RECEIPTS
from lunanexa_ports.journal import Appended, Journal
from tests.end_to_end.installation import LIMIT_S, Up, ask, lunanexa, running
from tests.postgres_server import PostgresServer

pytestmark = pytest.mark.slow

SERVED = RECENT_RECEIPTS + 300


async def journal(up: Up, *arguments: str) -> Any:
    ended = await lunanexa(up.folder, "journal", *arguments, "--data-dir", str(up.data_dir), "-o", "json")
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


async def verified_file(folder: Path, file: Path) -> Any:
    ended = await lunanexa(folder, "journal", "verify", "--file", str(file), "-o", "json")
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


@pytest.fixture(params=["sqlite", "postgresql"])
def variables(request: pytest.FixtureRequest) -> dict[str, str]:
    """What tells an installation of its store."""
    if request.param == "sqlite":
        return {}
    postgres: PostgresServer = request.getfixturevalue("postgres")
    return {"LUNANEXA_STORE": postgres.url(postgres.new_schema())}


def opened(up: Up, variables: dict[str, str]) -> AbstractAsyncContextManager[Journal]:
    if variables:
        return open_postgres_journal(parse_address(variables["LUNANEXA_STORE"]))
    return open_sqlite_journal(up.data_dir / "controller" / "store.sqlite3")


async def live_long(up: Up, variables: dict[str, str]) -> None:
    """Many receipts more, in the way of the one that is there."""
    async with opened(up, variables) as store:
        query = RowQuery(newest_first=True, limit=1, action="workload.admitted")
        admitted = from_row((await store.page(query))[0])
        settled = from_row((await store.page(attrs.evolve(query, action="workload.settled")))[0])
        assert isinstance(admitted, WorkloadAdmitted)
        assert isinstance(settled, WorkloadSettled)
        head, rows = await store.head(), list[Row]()
        before = head
        wall_ms = (await store.page(RowQuery(newest_first=True, limit=1)))[0].wall_ms
        for number in range(SERVED):
            workload = WorkloadId(f"wl_old{number}")
            settlement = attrs.evolve(settled.receipt.settlement, workload=workload)
            for event in (
                attrs.evolve(admitted, request=attrs.evolve(admitted.request, workload=workload)),
                WorkloadSettled(attrs.evolve(settled.receipt, workload=workload, settlement=settlement)),
            ):
                rows.append(to_row(head, event, epoch=head.epoch, wall_ms=wall_ms, actor="history"))
                head = head.after(rows[-1])
        assert await store.append(head.epoch, before, rows) is Appended.DURABLE


async def test_a_long_ledger_is_pruned_and_goes_on(tmp_path: Path, variables: dict[str, str]) -> None:
    async with running(tmp_path, **variables) as up:
        workload = (await trio.to_thread.run_sync(ask, up.ready)).headers["x-lunanexa-workload-id"]
    await live_long(up, variables)
    async with running(tmp_path, "--ledger-keep-receipts", str(RECENT_RECEIPTS), **variables) as up:
        archive = up.data_dir / "controller" / "archive"
        await up.until(lambda: list(archive.glob("ledger-*.jsonl.gz")), "an archive")
        await trio.to_thread.run_sync(ask, up.ready)
        with trio.fail_after(LIMIT_S):
            while (verified := await journal(up, "verify"))["rows"]["ledger"] >= 2 * SERVED:
                await trio.sleep(0.2)
        assert verified["pruned"]["until"] > 0
        replayed = await journal(up, "replay")
        assert replayed["matches"] is True, replayed
        gone = await lunanexa(up.folder, "explain", workload, "--data-dir", str(up.data_dir))
        assert gone.returncode == 66
        assert b"have left the ledger" in gone.stderr
        early = await lunanexa(up.folder, "journal", "replay", "--until", "20", "--data-dir", str(up.data_dir))
        assert early.returncode == 1
        assert b"the ledger is pruned up to" in early.stderr
        exported = tmp_path / "journal.jsonl"
        assert (await journal(up, "export", str(exported)))["pruned"] == verified["pruned"]
    assert (await verified_file(tmp_path, exported))["pruned"] == verified["pruned"]
    (archived,) = archive.iterdir()
    assert (await verified_file(tmp_path, archived))["heads"]["ledger"] == verified["pruned"]["ledger"]
    async with running(tmp_path, **variables) as up:
        await trio.to_thread.run_sync(ask, up.ready)
        assert (await journal(up, "verify"))["pruned"] == verified["pruned"]
