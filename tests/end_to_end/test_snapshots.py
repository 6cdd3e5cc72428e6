"""Snapshots of a real controller: made beside it by a process of its own, and what its next start goes on from."""

import signal
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import pytest

from lunanexa_adapters.sqlite.journal import open_sqlite_journal
from lunanexa_core.journal import Row
from lunanexa_core.policy import Policy
from tests.apps.snapshot_rows import rows_of, served
from tests.end_to_end.controllers import Member, free_ports, until
from tests.end_to_end.installation import check_store_in, status_of

pytestmark = pytest.mark.slow

# Of the lowest priority: whatever else runs on the machine goes first.
MADE_S = 300.0


async def fill(store: Path) -> list[Row]:
    """As many rows as call for a snapshot."""
    rows = rows_of(served(Policy().snapshot_rows // 2))

    async def each() -> AsyncIterator[Row]:
        for row in rows:
            yield row

    async with open_sqlite_journal(store) as journal:
        assert await journal.fill(each()) is not None
    return rows


def spoil(store: Path, until: int) -> None:
    with closing(sqlite3.connect(store)) as connection, connection:
        connection.execute("UPDATE row SET record = x'00' WHERE sequence < ?", (until,))


async def test_a_start_goes_on_from_a_snapshot(tmp_path: Path) -> None:
    port, node_port = free_ports(2)
    member = Member(tmp_path, "one", port, node_port, "")
    store = member.data_dir / "controller" / "store.sqlite3"
    rows = await fill(store)
    member.start()
    (kept,) = await until(lambda: member.events("snapshot_kept"), "a snapshot", MADE_S)
    assert kept["sequence"] >= len(rows)
    status = await until(lambda: status_of(member.ready), "the status")
    assert status["snapshot"] == kept["sequence"]
    # The node of those rows has not been there since.
    assert [alert["code"] for alert in status["alerts"]] == ["certificates_not_renewed"]
    assert await member.end(signal.SIGTERM) == 0
    assert member.told
    await check_store_in([member.data_dir], "", member.told)
    # None of these is read again, or the start would fail.
    spoil(store, kept["sequence"])
    member.start()
    await until(lambda: len(member.events("serving")) == 2, "the second start")
    again = status_of(member.ready)
    assert (again["usage"], again["snapshot"]) == (status["usage"], status["snapshot"])
    assert await member.end(signal.SIGTERM) == 0
    # Without it they are, and there is no other way.
    (member.data_dir / "controller" / "snapshots" / f"{kept['sequence']}.snapshot").write_bytes(b"spoilt")
    member.start()
    assert await member.end() == 78
    assert len(member.events("snapshot_unused")) == 1
    assert "damaged at sequence 1" in member.events("controller_stopped")[0]["reason"]
