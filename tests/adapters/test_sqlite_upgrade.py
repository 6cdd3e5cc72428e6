"""Stores whose schema is older or newer than the program's: what is kept, what is refused, and the way back."""

import os
import sqlite3
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Any, Final

import attrs
import pytest
import trio

from lunanexa_adapters.sql_rows import COLUMNS
from lunanexa_adapters.sqlite.answers import ANSWERS_SCHEMA, open_sqlite_answers
from lunanexa_adapters.sqlite.journal import open_sqlite_journal
from lunanexa_adapters.sqlite.journal_reader import JOURNAL_SCHEMA, open_sqlite_journal_reader
from lunanexa_adapters.sqlite.node_store import NODE_STORE_SCHEMA, open_sqlite_node_store
from lunanexa_adapters.sqlite.schema import Schema, open_store, open_unchanged
from lunanexa_apps.controller.replay import Replay
from lunanexa_core.identity.trust import first_trust
from lunanexa_core.ids import AssignmentId, WorkloadId
from lunanexa_core.journal import Row
from lunanexa_core.kernel.apply import apply
from lunanexa_core.kernel.decide import decide
from lunanexa_core.observed import Observed
from lunanexa_core.outcomes import Refusal
from lunanexa_ports.conformance.journal import lead, read_all, rows_after, verified
from lunanexa_ports.errors import PortFault, PortUnavailable
from lunanexa_ports.journal import Appended
from tests.adapters.store_upgrader import NEWER
from tests.adapters.test_sqlite_faults import execute, file_size_limit, names
from tests.adapters.writers import writers
from tests.core.builders import AUTHORITY, NODE, NOW, POLICY, SIGNING_KEY, begin, joining
from tests.store_fixtures import ODD, OPEN_WORKLOADS, dumps, load_sqlite, version_of

pytestmark = pytest.mark.thorough

JOURNALS: Final = [pytest.param(dump, id=dump.stem) for dump in dumps("sqlite-journal")]
MORE: Final = "CREATE TABLE more (one INTEGER)"


def later(schema: Schema, *statements: str) -> Schema:
    """The schema of the next version of the program."""
    return attrs.evolve(schema, steps=(*schema.steps, statements or (MORE,)))


def held(path: Path) -> list[tuple[Any, ...]]:
    """The rows as they lie in the file."""
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(f"SELECT {COLUMNS} FROM row ORDER BY sequence").fetchall()


def columns(row: Row) -> tuple[Any, ...]:
    return tuple(value.value if name == "chain" else value for name, value in attrs.asdict(row).items())


def loaded(dump: Path, folder: Path) -> Path:
    path = folder / "store.sqlite3"
    load_sqlite(dump, path)
    return path


def copies(path: Path) -> list[str]:
    return [name for name in names(path.parent) if "-schema-" in name]


@pytest.mark.parametrize("dump", JOURNALS)
async def test_a_journal_of_every_schema_goes_on(dump: Path, tmp_path: Path) -> None:
    path = loaded(dump, tmp_path)
    before, old = held(path), version_of(dump)
    async with open_sqlite_journal(path) as journal:
        rows = await read_all(journal)
        assert [columns(row) for row in rows] == before
        assert len({row.epoch for row in rows}) < rows[-1].epoch, "epochs have gaps"
        head = verified(rows)
        stored = await journal.head()
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
    async with open_sqlite_journal(path) as journal:
        assert await read_all(journal) == rows + more
    kept = [f"store.sqlite3-schema-{old}-copy-1"] if old < JOURNAL_SCHEMA.version else []
    assert names(tmp_path) == ["store.sqlite3", *kept]
    for name in kept:
        copy = tmp_path / name
        assert copy.stat().st_mode & 0o777 == 0o600
        assert held(copy) == before
        open_unchanged(copy, attrs.evolve(JOURNAL_SCHEMA, steps=JOURNAL_SCHEMA.steps[:old])).close()


@pytest.mark.parametrize("dump", JOURNALS)
async def test_nodes_that_had_no_certificates_enrol_anew_and_nothing_is_lost(dump: Path, tmp_path: Path) -> None:
    replay = Replay()
    async with open_sqlite_journal(loaded(dump, tmp_path)) as journal:
        for row in await read_all(journal):
            replay.feed(row)
    state, observed = replay.state, Observed(began_mono_ms=NOW.mono_ms)
    before = state.copy()
    former = before.nodes[NODE]
    assert (before.trust, former.certificates) == (None, ())
    assert former.public_key is not None
    mint, enrol = joining(again=True)
    for command in (begin(), mint, enrol):
        decision = decide(state, observed, POLICY, command, NOW)
        assert not isinstance(decision.answer, Refusal), command
        for event in decision.events:
            apply(state, event, epoch=state.epoch + 1, wall_ms=NOW.wall_ms)
    assert state.trust == first_trust(AUTHORITY, SIGNING_KEY)
    node = state.nodes[NODE]
    assert (node.public_key, node.certificates) == (enrol.public_key, (enrol.certificate,))
    assert (state.deployments, state.assignments, state.keys) == (before.deployments, before.assignments, before.keys)
    assert (state.open, state.receipts) == (before.open, before.receipts)


@pytest.mark.parametrize("dump", JOURNALS)
async def test_a_journal_of_every_schema_is_read_as_it_is(dump: Path, tmp_path: Path) -> None:
    path = loaded(dump, tmp_path)
    before = path.read_bytes()
    async with open_sqlite_journal_reader(path) as journal:
        assert [columns(row) async for row in journal.read()] == held(path)
        assert (await journal.head()).sequence == len(held(path))
    assert path.read_bytes() == before


@pytest.mark.parametrize("dump", [pytest.param(dump, id=dump.stem) for dump in dumps("sqlite-node")])
async def test_a_node_store_of_every_schema_goes_on(dump: Path, tmp_path: Path) -> None:
    path = loaded(dump, tmp_path)
    open_store(path, later(NODE_STORE_SCHEMA)).close()
    assert len(copies(path)) == 1
    execute(path, "DELETE FROM lunanexa_schema WHERE version > 1", "DROP TABLE more")
    async with open_sqlite_node_store(path) as store:
        assert await store.get("desired") == b"{}"
        assert await store.get(ODD) == bytes(range(256)) * 40
        assert await store.get("") == b""
        assert await store.replicas() == {AssignmentId(""): b"", AssignmentId(ODD): b"\0"}
        assert await store.next_start_number() == 2


@pytest.mark.parametrize("dump", [pytest.param(dump, id=dump.stem) for dump in dumps("sqlite-answers")])
async def test_kept_answers_of_every_schema_are_given_and_never_copied(dump: Path, tmp_path: Path) -> None:
    path = loaded(dump, tmp_path)
    open_store(path, later(ANSWERS_SCHEMA)).close()
    assert names(tmp_path) == ["store.sqlite3"]
    execute(path, "DELETE FROM lunanexa_schema WHERE version > 1", "DROP TABLE more")
    async with open_sqlite_answers(path, 1 << 20) as answers:
        found = [await answers.get(WorkloadId(f"wl_{ODD}{number}"), 0) for number in range(3)]
    assert [(one.status, one.content_type, one.body) for one in found if one is not None] == [
        (200, ODD, b""),
        (201, ODD, b"\0\xff" * 5_000),
        (202, ODD, ODD.encode()),
    ]


@pytest.mark.slow
async def test_a_change_that_is_killed_at_any_step_is_as_if_it_never_began(tmp_path: Path) -> None:
    """SIGKILL right before each call that opening makes of SQLite or the system, one after the other."""
    path = loaded(dumps("sqlite-journal")[0], tmp_path)
    template = path.read_bytes()
    before, endings = held(path), []
    async with writers() as running:
        for call in count(1):
            await running.start("upgrade", call, path)
            (ended,) = (await running.ended())["ended"]
            assert ended in (0, -9), f"call {call - 1} left what can't be changed"
            with closing(open_unchanged(path, NEWER)) as connection:
                ((version,),) = connection.execute("SELECT max(version) FROM lunanexa_schema").fetchall()
                tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_schema")}
            # All of the change or nothing of it, and what was there is there.
            assert (version, {"more", "more_one"} <= tables) in ((1, False), (NEWER.version, True)), call
            assert not ({"more", "more_one"} & tables) or version == NEWER.version, call
            assert held(path) == before, call
            if version == NEWER.version:
                assert held(path.with_name(f"{path.name}-schema-1-copy-1")) == before, call
            endings.append((ended, version))
            if ended == 0:
                break
            if version == NEWER.version:
                # The next death is in the same opening, a call later.
                path.write_bytes(template)
    assert endings[-1] == (0, NEWER.version)
    assert len(endings) > 50
    # Some died before the change was durable and some after.
    assert {version for _, version in endings[:-1]} == {1, NEWER.version}
    # However often it was tried, the store as it was is kept once, and of what died nothing lies about.
    assert copies(path) == ["store.sqlite3-schema-1-copy-1"]
    assert names(tmp_path) == ["store.sqlite3", "store.sqlite3-schema-1-copy-1"]
    open_store(path, NEWER).close()
    assert held(path) == before


def test_a_step_that_fails_changes_nothing_and_multiplies_no_copies(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite3"
    open_store(path, JOURNAL_SCHEMA).close()
    for _ in range(3):
        with pytest.raises(sqlite3.OperationalError, match="no such table"):
            open_store(path, later(JOURNAL_SCHEMA, MORE, "INSERT INTO nowhere VALUES (1)"))
    with closing(open_store(path, JOURNAL_SCHEMA)) as connection:
        assert not connection.execute("SELECT 1 FROM sqlite_schema WHERE name = 'more'").fetchall()
    assert len(copies(path)) == 1


def test_the_newest_two_copies_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite3"
    schema, newest = JOURNAL_SCHEMA, JOURNAL_SCHEMA.version
    open_store(path, schema).close()
    for number in range(4):
        schema = later(schema, f"CREATE TABLE more{number} (one INTEGER)")
        open_store(path, schema).close()
    assert copies(path) == [f"store.sqlite3-schema-{newest + number}-copy-1" for number in (2, 3)]


def test_a_copy_is_never_written_over_by_another_content(tmp_path: Path) -> None:
    """Somebody went back, wrote more, and came again: what each change found is kept."""
    path = tmp_path / "store.sqlite3"
    open_store(path, JOURNAL_SCHEMA).close()
    old = path.read_bytes()
    open_store(path, later(JOURNAL_SCHEMA)).close()
    path.write_bytes(old)
    execute(path, "UPDATE head SET epoch = 7")
    open_store(path, later(JOURNAL_SCHEMA)).close()
    epochs = []
    for name in copies(path):
        with closing(sqlite3.connect(tmp_path / name)) as connection:
            epochs.extend(connection.execute("SELECT epoch FROM head").fetchall())
    assert epochs == [(0,), (7,)]


@pytest.mark.parametrize(
    ("statement", "refused"),
    [
        ("", "newer than .* start the version of lunanexa that wrote it, or a newer one"),
        ("UPDATE lunanexa_schema SET state = 'running' WHERE version > 1", "did not end: start the version"),
    ],
)
async def test_a_refused_schema_names_the_command_that_goes_back(statement: str, refused: str, tmp_path: Path) -> None:
    """And the command does it, as it stands in the message, without losing what was there."""
    folder = tmp_path / "it's here"
    folder.mkdir()
    path = folder / "store.sqlite3"
    async with open_sqlite_journal(path) as journal:
        head = await lead(journal)
        assert await journal.append(head.epoch, head, rows_after(head, head.epoch, 40)) is Appended.DURABLE
    open_store(path, later(JOURNAL_SCHEMA)).close()
    execute(path, *filter(None, [statement]), "DELETE FROM row WHERE sequence > 20")
    with pytest.raises(PortFault, match=refused) as caught:
        async with open_sqlite_journal(path):
            pass
    text = str(caught.value)
    await trio.run_process(["sh", "-c", text[text.index("(cd ") + 1 : -1]])
    async with open_sqlite_journal(path) as journal:
        assert verified(await read_all(journal)).sequence == 40
    assert path.stat().st_mode & 0o777 == 0o600
    assert len(held(folder / "aside" / "store.sqlite3")) == 20


async def test_without_a_copy_a_backup_is_the_way_back(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite3"
    open_store(path, JOURNAL_SCHEMA).close()
    execute(path, "UPDATE lunanexa_schema SET state = 'running'")
    with pytest.raises(PortFault, match=r"did not end: .*there is none: restore a backup"):
        async with open_sqlite_journal(path):
            pass
    execute(
        path, "UPDATE lunanexa_schema SET state = 'done'", "INSERT INTO lunanexa_schema VALUES ('journal', 9, 'done')"
    )
    with pytest.raises(PortFault, match=r"schema 9, newer than \d+ of this program: .* or a newer one$"):
        async with open_sqlite_journal(path):
            pass


def test_a_damaged_store_is_not_changed(tmp_path: Path) -> None:
    path = loaded(dumps("sqlite-journal")[0], tmp_path)
    with closing(sqlite3.connect(path)) as connection:
        ((page,),) = connection.execute("SELECT rootpage FROM sqlite_schema WHERE name = 'row_target'").fetchall()
        ((size,),) = connection.execute("PRAGMA page_size").fetchall()
    damaged = bytearray(path.read_bytes())
    # The index: no row that is read tells of it.
    damaged[(page - 1) * size + 300 : page * size] = b"\xa5" * (size - 300)
    path.write_bytes(damaged)
    with pytest.raises(PortFault, match=r"damaged \(.*\), so its schema was not changed: .* restore a backup"):
        open_store(path, NEWER)
    assert path.read_bytes() == damaged
    assert names(tmp_path) == ["store.sqlite3"]


def test_no_room_for_the_copy(tmp_path: Path) -> None:
    """A store that claims more than any disk of a test machine has free: a file with holes."""
    path = tmp_path / "store.sqlite3"
    open_store(path, JOURNAL_SCHEMA).close()
    size = 12 << 40
    with path.open("r+b") as file:
        file.seek(28)
        file.write((size // 4_096).to_bytes(4, "big"))
    os.truncate(path, size)
    with pytest.raises(PortUnavailable, match=rf"15\d{{6}} MiB must be free in {tmp_path}, and \d+ MiB are: make room"):
        open_store(path, later(JOURNAL_SCHEMA))
    assert names(tmp_path) == ["store.sqlite3"]


def test_the_disk_is_full_while_the_copy_is_written(tmp_path: Path) -> None:
    path = loaded(dumps("sqlite-journal")[0], tmp_path)
    before = held(path)
    with file_size_limit(40_000), pytest.raises(PortUnavailable, match=r"can't be written beside .* start again"):
        open_store(path, NEWER)
    assert copies(path) == []
    assert held(path) == before
    open_store(path, NEWER).close()
    assert held(path) == before
