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
from lunanexa_adapters.sqlite.node_store import open_sqlite_node_store
from lunanexa_core.journal import Chain, ChainFault, Head, Row, check_row, make_row
from lunanexa_ports.conformance.journal import lead, read_all, rows_after, verified
from lunanexa_ports.errors import PortError, PortFault, PortUnavailable
from lunanexa_ports.journal import Appended
from lunanexa_simulation.rng import Streams

pytestmark = pytest.mark.thorough

NOBODY = 65_534
SEED = 31


async def filled(path: Path, count: int = 600) -> None:
    async with open_sqlite_journal(path) as journal:
        head = await lead(journal)
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
        await lead(journal)
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


@pytest.mark.slow
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
        except PortFault as error:
            outcomes.append("restore a backup" in str(error))
        else:
            outcomes.append(False)
    assert outcomes[0]
    # The index of targets is not read by a replay.
    assert sum(outcomes) > len(outcomes) * 2 // 3


@pytest.mark.slow
async def test_changed_bytes_are_never_believed(tmp_path: Path) -> None:
    """A few bytes anywhere in the file: it is refused, or everything that is believed was written so."""
    path = tmp_path / "store.sqlite3"
    await filled(path, 120)
    good, places, refused = path.read_bytes(), Streams(SEED).stream("places"), 0
    async with open_sqlite_journal(path) as journal:
        rows = await read_all(journal)
    for turn in range(100):
        bad = bytearray(good)
        at, length = places.randrange(len(good)), places.randrange(1, 9)
        bad[at : at + length] = places.randbytes(len(bad[at : at + length]))
        path.write_bytes(bad)
        try:
            async with open_sqlite_journal(path) as journal:
                head, kept = Head(), await read_all(journal)
                for row in kept:
                    fault = check_row(head, row)
                    if fault is not None:
                        refused += 1
                        break
                    assert row == rows[row.sequence - 1], f"round {turn} of seed {SEED}: byte {at}"
                    head = head.after(row)
                else:
                    assert kept == rows, f"round {turn} of seed {SEED}: byte {at}"
        except PortError:
            refused += 1
    assert refused > 50


async def test_a_torn_write_ahead_log_gives_whole_appends(tmp_path: Path) -> None:
    """Cut anywhere, or with bytes that the disk lost: what was appended up to there, each append wholly."""
    path, places = tmp_path / "store.sqlite3", Streams(SEED).stream("places")
    wal = path.with_name("store.sqlite3-wal")
    ends = [0]
    async with open_sqlite_journal(path) as journal:
        head = await lead(journal)
        for number in range(12):
            rows = rows_after(head, head.epoch, 1 + number % 3, text="x" * number * 900)
            assert await journal.append(head.epoch, head, rows) is Appended.DURABLE
            head = await journal.head()
            ends.append(head.sequence)
        rows = await read_all(journal)
        main, log = path.read_bytes(), wal.read_bytes()
    counts = set()
    for turn in range(40):
        torn = bytearray(log)
        if turn % 2:
            del torn[places.randrange(len(log)) :]
        else:
            at = places.randrange(len(log))
            torn[at : at + 512] = bytes(len(torn[at : at + 512]))
        path.write_bytes(main)
        wal.write_bytes(torn)
        async with open_sqlite_journal(path) as journal:
            kept = await read_all(journal)
            assert kept == rows[: len(kept)], f"round {turn} of seed {SEED}"
            assert len(kept) in ends, f"round {turn} of seed {SEED}"
            head = await lead(journal)
            assert head.sequence == len(kept)
            assert await journal.append(head.epoch, head, rows_after(head, head.epoch, 2)) is Appended.DURABLE
        counts.add(len(kept))
    assert len(counts) > len(ends) // 2


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
        head = await lead(journal)
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
        head = await lead(journal)
        big = rows_after(head, head.epoch, 50, text="x" * 10_000)
        with file_size_limit(100_000), pytest.raises(PortUnavailable):
            await journal.append(head.epoch, head, big)
        head = await lead(journal)
        kept = await read_all(journal)
        assert kept in ([], big)
        rows = rows_after(head, head.epoch, 3)
        assert await journal.append(head.epoch, head, rows) is Appended.DURABLE
        verified(await read_all(journal))


async def test_a_row_that_is_in_the_way_is_a_fault_and_leaves_no_lock(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite3"
    await filled(path, 1)
    async with open_sqlite_journal(path) as journal:
        head = await lead(journal)
        execute(
            path, "INSERT INTO row SELECT 2, chain, epoch, wall_ms, action, target, record, previous, hash FROM row"
        )
        with pytest.raises(PortFault):
            await journal.append(head.epoch, head, rows_after(head, head.epoch, 1))
        # Another writer would wait in vain for a transaction that was left open.
        execute(path, "PRAGMA busy_timeout = 1", "DELETE FROM row WHERE sequence = 2")
        assert await journal.append(head.epoch, head, rows_after(head, head.epoch, 1)) is Appended.DURABLE


async def test_room_of_dropped_rows_is_used_again(tmp_path: Path) -> None:
    """The file does not shrink, and does not grow while as much is dropped as is written."""
    path = tmp_path / "store.sqlite3"
    sizes: list[int] = []
    for _ in range(4):
        async with open_sqlite_journal(path) as journal:
            head = await lead(journal)
            rows = ledger_after(head, 400)
            assert await journal.append(head.epoch, head, rows) is Appended.DURABLE
            await journal.drop_ledger(rows[-1].sequence, 1_000)
        sizes.append(path.stat().st_size)
    assert sizes[-1] < sizes[0] * 5 / 4


def ledger_after(head: Head, count: int) -> list[Row]:
    rows: list[Row] = []
    for number in range(count):
        row = make_row(
            head,
            chain=Chain.LEDGER,
            epoch=head.epoch,
            wall_ms=1_800_000_000_000,
            actor="tests",
            action="tried",
            version=1,
            target=f"thing_{number}",
            body={"text": "x" * 300},
        )
        rows.append(row)
        head = head.after(row)
    return rows


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


async def test_a_directory_that_may_not_be_written(open_directory: Path) -> None:
    """Where no write-ahead log can be made, nothing is opened and nothing changed."""
    path = open_directory / "store.sqlite3"
    await filled(path, 1)
    before = path.read_bytes()
    if os.geteuid() == 0:
        os.chown(path, NOBODY, NOBODY)
    os.chmod(open_directory, 0o555)
    with without_privileges(), pytest.raises(PortUnavailable):
        await opened_and_read(path)
    os.chmod(open_directory, 0o755)
    assert path.read_bytes() == before
    assert names(open_directory) == ["store.sqlite3"]
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
        head = await lead(journal)
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
