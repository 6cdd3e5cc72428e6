"""``lunanexa journal`` as a user calls it: of a controller that serves in memory, of a stopped one, of a file."""

import json
import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, TypeVar

import attrs
import pytest
import trio
from click.testing import CliRunner, Result
from structlog.testing import capture_logs
from trio.testing import MockClock

from lunanexa_adapters.files.private_files import LocalPrivateFiles
from lunanexa_adapters.sqlite.journal import open_sqlite_journal
from lunanexa_apps.cli import journal
from lunanexa_apps.installation import CONTROLLER_LOCK, STORE
from lunanexa_core.commands import CreateKey
from lunanexa_core.ids import KeyId
from lunanexa_core.journal import Head, Row, make_row
from lunanexa_core.keys import Role, secret_digest
from lunanexa_core.state_digest import state_digest
from lunanexa_ports.conformance.journal import lead
from lunanexa_ports.errors import PortError
from lunanexa_ports.http_client import HttpClient
from lunanexa_ports.private_files import LockHeld
from lunanexa_simulation.disk import SimulatedDisk
from lunanexa_simulation.http_client import SimulatedHttpClient
from lunanexa_simulation.journal import JournalState
from tests.adapters.edge import OPERATOR, Edge, edge
from tests.apps.test_cli import REMOTE, call, tools
from tests.core.builders import api_key
from tests.simulation.small import small_world

T = TypeVar("T")
AUDITOR = "lno_" + "a" * 10 + "0123456789abcdefghijklmnopqrst"
CHAT: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "Once"}], "max_tokens": 4}
FOLLOWED_S = 10


class Serving:
    """A controller that has served one request, for as long as a command runs. ``meanwhile`` runs beside it."""

    def __init__(self, meanwhile: Callable[[Edge], Awaitable[None]] | None = None) -> None:
        self.meanwhile = meanwhile
        self.rows: list[Row] = []
        self.digest = ""
        self._one: Edge | None = None

    def call(self, *arguments: str, token: str = OPERATOR) -> Result:
        def run(function: Callable[[], Awaitable[T]]) -> T:
            return trio.run(self._run, function, clock=MockClock(autojump_threshold=0))

        def make_http() -> HttpClient:
            assert self._one is not None
            return SimulatedHttpClient(self._one.world.network, "operator")

        used = attrs.evolve(tools(lambda _: pytest.fail("not asked")), run=run, make_http=make_http)
        environment = REMOTE | {"LUNANEXA_TOKEN": token, "HOME": "/nowhere", "XDG_CONFIG_HOME": ""}
        with capture_logs():
            return CliRunner(env=environment).invoke(journal.command, arguments, obj=used, catch_exceptions=False)

    async def _run(self, function: Callable[[], Awaitable[T]]) -> T:
        auditor = api_key(key=KeyId("key_a"), digest=secret_digest(AUDITOR), roles=frozenset({Role.AUDITOR}))
        clock = trio.lowlevel.current_clock()
        untouched = self.meanwhile is None
        async with edge(clock, keys=(auditor,), replays=untouched) as one, trio.open_nursery() as nursery:
            self._one = one
            await one.world.ask(CHAT)
            one.world.network.listen("box", 8400, one.root)
            if self.meanwhile is not None:
                nursery.start_soon(self.meanwhile, one)
            result: Any = None
            with trio.move_on_after(FOLLOWED_S):
                try:
                    result = await function()
                except PortError as error:  # Not through these nurseries.
                    result = error
            self.rows = list(one.world.disk.state(JournalState).rows)
            self.digest = state_digest(one.world.kernel.state)
            nursery.cancel_scope.cancel("the command has ended")
        if isinstance(result, PortError):
            raise result
        return result  # type: ignore[no-any-return]  # a generic function's own


def answer(result: Result) -> Any:
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def test_verify_walks_all_rows_of_a_controller_and_tells_both_heads() -> None:
    controller = Serving()
    document = answer(controller.call("verify", "-o", "json"))
    rows = controller.rows
    assert document["ok"]
    assert document["sequence"] == len(rows)
    assert sum(document["rows"].values()) == len(rows)
    assert {row.hash for row in rows[-8:]} >= set(document["heads"].values())
    page = controller.call("verify", token=AUDITOR)
    assert (page.exit_code, page.stderr) == (0, "")
    assert all(head in page.stdout for head in document["heads"].values())
    assert "every row stands in its place" in page.stdout


def test_a_key_for_inference_reads_no_journal() -> None:
    refused = Serving().call("verify", token="lnx_" + "k" * 20 + "0123456789abcdefghijklm")
    assert refused.exit_code == 77
    assert "set LUNANEXA_TOKEN to the operator token" in refused.stderr


def test_tail_prints_the_newest_that_fit() -> None:
    controller = Serving()
    newest = controller.call("tail", "-n", "3").stdout.splitlines()
    assert [int(line.split()[0]) for line in newest] == [row.sequence for row in controller.rows[-3:]]
    assert "workload.settled" in newest[-1]
    lines = controller.call("tail", "--chain", "ledger", "-o", "json").stdout.splitlines()
    ledger = [row for row in controller.rows if row.chain.value == "ledger"]
    assert [json.loads(line)["hash"] for line in lines] == [row.hash for row in ledger]
    made = controller.call("tail", "--action", "key.created", "--actor", "kernel", "--target", "key_a").stdout
    assert made.count("\n") == 1
    assert "key.created" in made
    assert controller.call("tail", "--actor", "nobody").stdout == ""


def test_tail_follows_what_is_written_afterwards() -> None:
    async def meanwhile(one: Edge) -> None:
        await trio.sleep(3)
        for number in range(3):
            key = api_key(key=KeyId(f"key_new_{number}"), digest=f"{number:064x}")
            await one.world.kernel.ask(CreateKey(key), "key_o")
            await trio.sleep(2)

    followed = Serving(meanwhile).call("tail", "-n", "0", "--follow", "--action", "key.created")
    assert [line.split()[-3] for line in followed.stdout.splitlines()] == ["key_new_0", "key_new_1", "key_new_2"]


def test_show_prints_one_row() -> None:
    controller = Serving()
    page = controller.call("show", "1")
    assert "cluster.created (version 1)" in page.stdout
    assert "none: the first of the journal" in page.stdout
    assert '"cluster": "cl_1"' in page.stdout
    document = answer(controller.call("show", "2", "-o", "json"))
    assert document["record"].encode() == controller.rows[1].record
    nothing = controller.call("show", "9999")
    assert nothing.exit_code == 1
    assert "there is no row 9999" in nothing.stderr
    assert "with the same options: lunanexa journal tail" in nothing.stderr


def test_a_row_that_a_controller_can_not_read_is_found(tmp_path: Path) -> None:
    async def meanwhile(one: Edge) -> None:
        await trio.lowlevel.checkpoint()
        rows = one.world.disk.state(JournalState).rows
        rows[4] = attrs.evolve(rows[4], record=b"\xff")

    controller, path = Serving(meanwhile), tmp_path / "journal.jsonl"
    damaged = controller.call("verify", "-o", "json")
    assert damaged.exit_code == 1
    document = json.loads(damaged.stdout)
    assert document["sequence"] == 4
    assert "row 5 of the journal is damaged" in document["problem"]
    unread = controller.call("tail")
    assert unread.exit_code == 70
    assert "row 5 of the journal is damaged" in unread.stderr
    assert controller.call("export", str(path)).exit_code == 70
    assert controller.call("export", str(path), "--until", "4").exit_code == 0
    assert answer(call(journal.command, "verify", "--file", str(path), "-o", "json"))["sequence"] == 4


def test_replay_gives_the_live_state() -> None:
    controller = Serving()
    document = answer(controller.call("replay", "-o", "json"))
    assert document["matches"]
    assert document["digest"] == controller.digest
    assert document["tables"]["receipts"] == 1
    earlier = answer(controller.call("replay", "--until", "4", "-o", "json"))
    assert (earlier["sequence"], earlier["matches"]) == (4, None)
    assert earlier["digest"] != document["digest"]
    assert "the live state is that after row" in earlier["why_not"]
    beyond = controller.call("replay", "--until", "9999")
    assert beyond.exit_code == 1
    assert "before 9999" in beyond.stderr


def test_replay_notices_a_live_state_that_no_row_made() -> None:
    async def meanwhile(one: Edge) -> None:
        await trio.lowlevel.checkpoint()
        one.world.kernel.state.receipts.clear()

    differs = Serving(meanwhile).call("replay")
    assert differs.exit_code == 1
    assert "DIFFERS" in differs.stdout


def test_an_export_can_be_verified_and_shows_what_was_changed(tmp_path: Path) -> None:
    controller, path = Serving(), tmp_path / "journal.jsonl"
    written = controller.call("export", str(path))
    assert written.exit_code == 0, written.stderr
    assert path.stat().st_mode & 0o777 == 0o600
    lines = path.read_bytes().splitlines(keepends=True)
    assert len(lines) == len(controller.rows) + 2
    checked = answer(call(journal.command, "verify", "--file", str(path), "-o", "json"))
    assert checked["sequence"] == len(controller.rows)
    again = controller.call("export", str(path))
    assert again.exit_code == 1
    assert "name a file that is not there yet" in again.stderr
    assert path.read_bytes() == b"".join(lines)

    def problem(*changed: bytes) -> str:
        path.write_bytes(b"".join(changed))
        result = call(journal.command, "verify", "--file", str(path), "-o", "json")
        assert result.exit_code == 1
        found: str = json.loads(result.stdout)["problem"]
        assert found in result.stderr
        return found

    assert "not whole" in problem(*lines[:-1])
    assert problem(*lines[:3], *lines[4:]) == "row 4, after 2: sequence does not follow"
    forged = lines[3].replace(b"node", b"n0de") if b"node" in lines[3] else lines[3].replace(b"key_", b"k3y_")
    assert "row 3: hash is not that of the record" in problem(*lines[:3], forged, *lines[4:])
    assert problem(*lines[1:]).startswith("line 1: not an exported journal")
    assert problem(*lines, lines[2]).startswith(f"line {len(lines) + 1}: ")
    assert problem(lines[0], b"[]\n").startswith("line 2: ")
    assert problem(lines[0], b'{"sequence":"1"}\n').startswith("line 2: $.")
    assert problem(lines[0], b"\xff\n").startswith("line 2: not JSON")
    assert "it is not whole" in problem()
    path.write_text("# something else\n")
    strange = call(journal.command, "verify", "--file", str(path))
    assert (strange.exit_code, strange.stdout) == (1, "")
    assert "line 1: not an exported journal" in strange.stderr
    assert "restore" not in strange.stderr


async def small_rows() -> list[Row]:
    async with small_world(SimulatedDisk()) as small:
        return list(small.journal.rows)


@pytest.fixture
def stopped(tmp_path: Path) -> Path:
    """The data directory of a controller that does not run."""

    async def keep() -> None:
        rows = await small_rows()
        async with open_sqlite_journal(tmp_path / STORE) as store:
            taken = await lead(store)
            await store.append(taken.epoch, taken, rows)

    trio.run(keep)
    return tmp_path


def offline(folder: Path, *arguments: str) -> Result:
    return call(journal.command, *arguments, "--data-dir", str(folder), "--offline")


def test_the_store_of_a_stopped_controller_is_read_and_left_as_it_is(stopped: Path) -> None:
    store = stopped / STORE
    before = store.read_bytes()
    document = answer(offline(stopped, "verify", "-o", "json"))
    assert document["ok"]
    replayed = answer(offline(stopped, "replay", "-o", "json"))
    assert (replayed["sequence"], replayed["why_not"]) == (document["sequence"], "no controller runs")
    assert "workload.settled" in offline(stopped, "tail", "-n", "1").stdout
    assert "cluster.created" in offline(stopped, "show", "1").stdout
    path = stopped / "export"
    assert offline(stopped, "export", str(path), "--until", "5").exit_code == 0
    assert answer(call(journal.command, "verify", "--file", str(path), "-o", "json"))["sequence"] == 5
    assert store.read_bytes() == before
    assert [entry.name for entry in store.parent.iterdir()] == [store.name]
    assert offline(stopped, "tail", "--follow").exit_code == 2


def test_what_a_killed_writer_left_in_its_wal_is_read(stopped: Path, tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    (folder / "controller").mkdir(parents=True)
    writer = sqlite3.connect(stopped / STORE)
    writer.execute("UPDATE row SET target = 'other' WHERE sequence = 2")
    writer.commit()
    for name in ("store.sqlite3", "store.sqlite3-wal"):
        (folder / "controller" / name).write_bytes((stopped / "controller" / name).read_bytes())
    writer.close()
    damaged = offline(folder, "verify")
    assert damaged.exit_code == 1
    assert "row 2: record is not canonical or contradicts its head fields" in damaged.stderr


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ("DELETE FROM row WHERE sequence = 3", "row 4, after 2: sequence does not follow"),
        ("DELETE FROM row WHERE sequence > 5", "the rows end at 5, the head stands at"),
        ("UPDATE row SET record = x'7b7d' WHERE sequence = 4", "row 4: hash is not that of the record"),
        ("UPDATE row SET record = 'text' WHERE sequence = 4", "rows     3 ("),
        ("UPDATE row SET record = 'text' WHERE sequence = 5", "row 5 of the journal is damaged"),
        ("UPDATE row SET epoch = 0 WHERE sequence = 4", "row 4: epoch is lower than the one before"),
        (f"UPDATE head SET ledger = '{'f' * 64}'", "bears other hashes than the rows"),
    ],
)
def test_the_first_bad_row_is_named(stopped: Path, change: str, found: str) -> None:
    writer = sqlite3.connect(stopped / STORE)
    writer.execute(change)
    writer.commit()
    writer.close()
    damaged = offline(stopped, "verify")
    assert damaged.exit_code == 1
    assert found in damaged.stdout + damaged.stderr
    path = stopped / "export"
    assert offline(stopped, "export", str(path)).exit_code != 0
    assert not path.exists()


def test_a_running_controller_keeps_its_store_to_itself(stopped: Path) -> None:
    lock: AbstractContextManager[object] | LockHeld = LocalPrivateFiles(stopped).lock(CONTROLLER_LOCK, "controller 7")
    assert not isinstance(lock, LockHeld)
    with lock:
        held = offline(stopped, "verify")
    assert held.exit_code == 75
    assert "controller 7" in held.stderr
    assert "without --offline" in held.stderr


def test_there_is_no_store(tmp_path: Path) -> None:
    nothing = offline(tmp_path / "none", "verify")
    assert nothing.exit_code == 69
    assert "there is no journal at" in nothing.stderr
    assert not (tmp_path / "none").exists()
    nowhere = offline(tmp_path / ("x" * 300), "verify")
    assert nowhere.exit_code == 69
    assert "can't be looked at (File name too long)" in nowhere.stderr


def test_rows_of_a_newer_version_are_verified_and_not_replayed(tmp_path: Path) -> None:
    async def keep() -> None:
        async with open_sqlite_journal(tmp_path / STORE) as store:
            taken = await lead(store)
            row = make_row(
                Head(),
                chain=(await small_rows())[0].chain,
                epoch=taken.epoch,
                wall_ms=1,
                actor="kernel",
                action="later.happened",
                version=1,
                target="thing",
                body=None,
            )
            await store.append(taken.epoch, taken, [row])

    trio.run(keep)
    assert answer(offline(tmp_path, "verify", "-o", "json"))["ok"]
    replayed = offline(tmp_path, "replay")
    assert replayed.exit_code == 1
    assert "start the version that wrote it" in replayed.stderr
