"""What the SQLite stores say when the file, the disk or another program is in the way."""

import os
import resource
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
import trio
import trio.testing

from lunanexa_adapters.sqlite.connection import port_error
from lunanexa_adapters.sqlite.journal import open_sqlite_journal
from lunanexa_adapters.sqlite.journal_reader import JOURNAL_SCHEMA
from lunanexa_adapters.sqlite.node_store import open_sqlite_node_store
from lunanexa_adapters.sqlite.schema import Schema, open_store
from lunanexa_core.journal import ChainFault, Head, check_row
from lunanexa_ports.conformance.journal import read_all, rows_after, verified
from lunanexa_ports.errors import PortError, PortFault, PortUnavailable
from lunanexa_ports.journal import Appended

NOBODY = 65_534


async def filled(path: Path, count: int = 600) -> None:
    async with open_sqlite_journal(path) as journal:
        head = await journal.take_epoch()
        assert await journal.append(head.epoch, head, rows_after(head, head.epoch, count)) is Appended.DURABLE


async def opened_and_read(path: Path) -> None:
    async with open_sqlite_journal(path) as journal:
        await read_all(journal)


def names(directory: Path) -> list[str]:
    return sorted(file.name for file in directory.iterdir())


def execute(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for statement in statements:
            connection.execute(statement)


async def test_files_are_their_owners_alone(tmp_path: Path) -> None:
    path = tmp_path / "data" / "controller" / "store.sqlite3"
    async with open_sqlite_journal(path) as journal:
        await journal.take_epoch()
        modes = {file.name: file.stat().st_mode & 0o777 for file in path.parent.iterdir()}
        assert modes == {"store.sqlite3": 0o600, "store.sqlite3-wal": 0o600, "store.sqlite3-shm": 0o600}
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert path.parent.parent.stat().st_mode & 0o777 == 0o700
    assert names(path.parent) == ["store.sqlite3"]


async def test_a_file_that_others_could_read_is_closed_to_them(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite3"
    await filled(path, 1)
    path.chmod(0o644)
    await opened_and_read(path)
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "content", [b"not a database, but long enough to have a header" * 100, b"SQLite format 3\0" * 512]
)
async def test_a_file_that_is_no_store(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "store.sqlite3"
    path.write_bytes(content)
    with pytest.raises(PortFault):
        await opened_and_read(path)
    assert path.read_bytes() == content


async def test_damaged_pages_are_a_fault(tmp_path: Path) -> None:
    """Whichever page of the file is overwritten: it is a fault, unless nothing reads the page."""
    path = tmp_path / "store.sqlite3"
    await filled(path)
    good = path.read_bytes()
    page = 4_096
    outcomes: list[bool] = []
    for start in range(0, len(good), page):
        path.write_bytes(good[:start] + b"\xa5" * page + good[start + page :])
        try:
            await opened_and_read(path)
        except PortFault:
            outcomes.append(True)
        else:
            outcomes.append(False)
    assert outcomes[0]
    # The index of targets is not read by a replay.
    assert sum(outcomes) > len(outcomes) * 2 // 3


async def test_a_changed_byte_of_a_record_breaks_the_chain(tmp_path: Path) -> None:
    """SQLite does not notice; the hashes do."""
    path = tmp_path / "store.sqlite3"
    await filled(path)
    good = path.read_bytes()
    at = good.index(b'{"number":300,')
    path.write_bytes(good[:at] + good[at:].replace(b"300", b"999", 1))
    async with open_sqlite_journal(path) as journal:
        head = Head()
        for row in await read_all(journal):
            fault = check_row(head, row)
            if fault is not None:
                assert (row.sequence, fault) == (301, ChainFault.HASH)
                return
            head = head.after(row)
    raise AssertionError("nobody noticed")


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM head",
        "DELETE FROM row",
        "DELETE FROM row WHERE sequence = 600",
        "UPDATE head SET sequence = 599",
        "UPDATE head SET ledger = journal",
        "UPDATE row SET chain = 'diary' WHERE sequence = 5",
        "UPDATE row SET record = 'text' WHERE sequence = 5",
        "UPDATE row SET wall_ms = 'noon' WHERE sequence = 5",
        "UPDATE row SET action = CAST(x'ff' AS TEXT) WHERE sequence = 5",
        "ALTER TABLE row RENAME TO rows",
    ],
)
async def test_content_that_can_not_be_ours_is_a_fault(tmp_path: Path, statement: str) -> None:
    path = tmp_path / "store.sqlite3"
    await filled(path)
    execute(path, statement)
    with pytest.raises(PortFault):
        await opened_and_read(path)


@pytest.mark.parametrize(
    ("statement", "names"),
    [
        ("INSERT INTO lunanexa_schema VALUES ('journal', 2, 'done')", "newer than 1 .* start the version"),
        ("INSERT INTO lunanexa_schema VALUES ('journal', 2, 'running')", "did not end: copy the data directory back"),
        ("UPDATE lunanexa_schema SET state = 'running'", "did not end: copy the data directory back"),
    ],
)
async def test_another_schema_keeps_the_store_shut_and_names_the_way_out(
    tmp_path: Path, statement: str, names: str
) -> None:
    path = tmp_path / "store.sqlite3"
    await filled(path, 1)
    execute(path, statement)
    with pytest.raises(PortFault, match=names):
        await opened_and_read(path)


def test_an_older_schema_is_not_changed_by_opening(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite3"
    open_store(path, JOURNAL_SCHEMA).close()
    newer = Schema("journal", (*JOURNAL_SCHEMA.steps, ("CREATE TABLE more (one INTEGER)",)))
    with pytest.raises(PortFault, match=r"older than 2 .* start the version"):
        open_store(path, newer)
    open_store(path, JOURNAL_SCHEMA).close()


async def test_a_store_of_another_kind_is_left_alone(tmp_path: Path) -> None:
    foreign, node = tmp_path / "foreign.sqlite3", tmp_path / "node.sqlite3"
    execute(foreign, "CREATE TABLE song (title TEXT)")
    async with open_sqlite_node_store(node) as store:
        await store.put("desired", b"{}")
    for path in (foreign, node):
        before = path.read_bytes()
        with pytest.raises(PortFault):
            await opened_and_read(path)
        assert path.read_bytes() == before


async def test_locked_by_another_program(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite3"
    async with open_sqlite_journal(path, busy_ms=1) as journal:
        head = await journal.take_epoch()
        rows = rows_after(head, head.epoch, 2)
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(PortUnavailable, match="locked"):
                await journal.append(head.epoch, head, rows)
            assert await read_all(journal) == []
        assert await journal.append(head.epoch, head, rows) is Appended.DURABLE


async def test_a_failed_write_leaves_the_store_usable(tmp_path: Path) -> None:
    """The file may not grow any more: the outcome is unknown, and the store goes on once there is room."""
    path = tmp_path / "store.sqlite3"
    async with open_sqlite_journal(path) as journal:
        head = await journal.take_epoch()
        big = rows_after(head, head.epoch, 50, text="x" * 10_000)
        with file_size_limit(100_000), pytest.raises(PortUnavailable):
            await journal.append(head.epoch, head, big)
        head = await journal.take_epoch()
        kept = await read_all(journal)
        assert kept in ([], big)
        rows = rows_after(head, head.epoch, 3)
        assert await journal.append(head.epoch, head, rows) is Appended.DURABLE
        verified(await read_all(journal))


async def test_a_row_that_is_in_the_way_is_a_fault_and_leaves_no_lock(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite3"
    await filled(path, 1)
    async with open_sqlite_journal(path) as journal:
        head = await journal.take_epoch()
        execute(
            path, "INSERT INTO row SELECT 2, chain, epoch, wall_ms, action, target, record, previous, hash FROM row"
        )
        with pytest.raises(PortFault):
            await journal.append(head.epoch, head, rows_after(head, head.epoch, 1))
        # Another writer would wait in vain for a transaction that was left open.
        execute(path, "PRAGMA busy_timeout = 1", "DELETE FROM row WHERE sequence = 2")
        assert await journal.append(head.epoch, head, rows_after(head, head.epoch, 1)) is Appended.DURABLE


@contextmanager
def file_size_limit(limit_bytes: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@contextmanager
def without_privileges() -> Iterator[None]:
    """As somebody whom file modes bind."""
    user = os.geteuid()
    if user == 0:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(user)


@pytest.fixture
def open_directory() -> Iterator[Path]:
    """A directory that somebody else may enter: those of tmp_path are for this user only."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        directory.chmod(0o755)
        yield directory


async def test_a_file_that_may_not_be_written(open_directory: Path) -> None:
    path = open_directory / "store.sqlite3"
    await filled(path, 1)
    path.chmod(0o400)
    with without_privileges(), pytest.raises(PortUnavailable):
        await opened_and_read(path)
    path.chmod(0o600)
    await opened_and_read(path)


async def test_a_path_that_can_not_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    for path in (tmp_path / "file" / "store.sqlite3", tmp_path):
        with pytest.raises(PortUnavailable):
            await opened_and_read(path)


def full(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA max_page_count = 2")
        connection.execute("CREATE TABLE big (value)")
        connection.execute("INSERT INTO big VALUES (zeroblob(100000))")


def query_only(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA query_only = ON")
        connection.execute("CREATE TABLE big (value)")


def read_only(path: Path) -> None:
    path.touch()
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
        connection.execute("CREATE TABLE big (value)")


def missing(path: Path) -> None:
    with closing(sqlite3.connect(f"file:{path}?mode=rw", uri=True)) as connection:
        connection.execute("SELECT 1")


def no_database(path: Path) -> None:
    path.write_bytes(b"x" * 4_096)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("SELECT * FROM sqlite_schema")


def no_table(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("SELECT * FROM head")


def twice(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE one (value UNIQUE)")
        connection.execute("INSERT INTO one VALUES (1), (1)")


@pytest.mark.parametrize(
    ("fail", "kind"),
    [
        (full, PortUnavailable),
        (query_only, PortUnavailable),
        (read_only, PortUnavailable),
        (missing, PortUnavailable),
        (no_database, PortFault),
        (no_table, PortFault),
        (twice, PortFault),
    ],
)
def test_what_an_error_of_sqlite_means(tmp_path: Path, fail: Callable[[Path], None], kind: type[PortError]) -> None:
    with pytest.raises(sqlite3.Error) as caught:
        fail(tmp_path / "file.sqlite3")
    assert type(port_error("journal", caught.value)) is kind


async def test_closing_waits_for_the_append_in_hand(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite3"
    outcomes: list[Appended] = []
    async with open_sqlite_journal(path) as journal:
        head = await journal.take_epoch()
        rows = rows_after(head, head.epoch, 200)

        async def append() -> None:
            outcomes.append(await journal.append(head.epoch, head, rows))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(append)
            await trio.testing.wait_all_tasks_blocked()
            await journal.aclose()
    assert outcomes == [Appended.DURABLE]
    async with open_sqlite_journal(path) as journal:
        assert await read_all(journal) == rows


async def test_opening_under_a_cancelled_scope_leaves_no_thread_behind(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite3"
    with trio.CancelScope() as scope:
        scope.cancel()
        async with open_sqlite_journal(path):
            await trio.lowlevel.checkpoint()
    assert scope.cancelled_caught
    # The last connection to close takes the WAL away.
    assert names(tmp_path) == ["store.sqlite3"]
