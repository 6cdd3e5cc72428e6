"""A journal that is read by one process while another writes it."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from lunanexa_adapters.sqlite.journal import open_sqlite_journal
from lunanexa_adapters.sqlite.journal_reader import open_sqlite_journal_reader
from lunanexa_ports.conformance.journal import lead, rows_after
from lunanexa_ports.errors import PortUnavailable
from lunanexa_ports.journal import Appended

pytestmark = pytest.mark.thorough


async def test_what_is_appended_is_seen_and_nothing_waits(tmp_path: Path) -> None:
    store = tmp_path / "store.sqlite3"
    async with open_sqlite_journal(store) as journal:
        head = await lead(journal)
        rows = rows_after(head, head.epoch, 600)
        assert await journal.append(head.epoch, head, rows[:300]) is Appended.DURABLE
        middle = await journal.head()
        async with open_sqlite_journal_reader(store, live=True) as beside:
            seen = []
            async for row in beside.read():
                seen.append(row)
                if len(seen) == 10:
                    assert await journal.append(head.epoch, middle, rows[300:]) is Appended.DURABLE
            assert seen == rows
            assert await beside.head() == await journal.head()
        assert [row async for row in journal.read()] == rows


async def test_none_is_made_where_there_is_none(tmp_path: Path) -> None:
    store = tmp_path / "store.sqlite3"
    with pytest.raises(PortUnavailable, match="not to be opened"):
        async with open_sqlite_journal_reader(store, live=True):
            pass
    assert not store.exists()


async def test_it_outlives_its_writer_and_changes_nothing(tmp_path: Path) -> None:
    store = tmp_path / "store.sqlite3"
    async with open_sqlite_journal(store) as journal:
        head = await lead(journal)
        rows = rows_after(head, head.epoch, 3)
        assert await journal.append(head.epoch, head, rows) is Appended.DURABLE
        beside = open_sqlite_journal_reader(store, live=True)
        reader = await beside.__aenter__()
    assert [row async for row in reader.read()] == rows
    await beside.__aexit__(None, None, None)
    with closing(sqlite3.connect(store)) as connection:
        assert connection.execute("SELECT count(*) FROM row").fetchone() == (3,)
