"""``lunanexa backup`` on real files, and ``lunanexa recovery`` against a controller that answers from a script."""

import json
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from click.testing import Result

from lunanexa_adapters.crypto.fleet_keys import LocalFleetKeys
from lunanexa_adapters.crypto.signing import Ed25519Signer
from lunanexa_adapters.files.private_files import LocalPrivateFiles
from lunanexa_adapters.sqlite.journal import open_sqlite_journal
from lunanexa_adapters.system.clock import SystemClock
from lunanexa_apps.cli import backup, recovery, status
from lunanexa_apps.controller.replay import Replay, replay
from lunanexa_apps.installation import CONTROLLER_LOCK, SECRETS, SIGNING_KEY, STORE
from lunanexa_core.journal import Row
from lunanexa_core.outcomes import Outcome, Refusal, error_document
from lunanexa_ports.http_client import HttpRequest
from lunanexa_ports.private_files import LockHeld
from tests.apps.scripted_http import Reply
from tests.apps.snapshot_rows import rows_of, served
from tests.apps.test_cli import REMOTE, STATUS, call

ROWS = rows_of(served(8))


async def fill(path: Path, rows: list[Row]) -> None:
    async def each() -> AsyncIterator[Row]:
        for row in rows:
            yield row

    async with open_sqlite_journal(path) as journal:
        assert await journal.fill(each()) is not None


async def held(path: Path) -> Replay:
    async with open_sqlite_journal(path) as journal:
        return await replay(journal)


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """An installation with a store of a few rows."""
    folder = tmp_path / "data"
    (folder / "controller" / "secrets").mkdir(parents=True, mode=0o700)
    Ed25519Signer.load_or_create(folder / SIGNING_KEY)
    trio.run(fill, folder / STORE, ROWS)
    return folder


def create(data_dir: Path, out: Path, *more: str) -> Result:
    return call(backup.command, "create", "--data-dir", str(data_dir), "--out", str(out), *more)


def documents(result: Result) -> Any:
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_made_verified_and_restored(data_dir: Path, tmp_path: Path) -> None:
    out, other = tmp_path / "b", tmp_path / "other"
    made = documents(create(data_dir, out, "-o", "json"))
    assert (made["sequence"], made["rows"]) == (len(ROWS), {"journal": 11, "ledger": 15})
    assert out.stat().st_mode & 0o777 == 0o600
    known = documents(call(backup.command, "verify", str(out), "--data-dir", str(data_dir), "-o", "json"))
    assert (known["origin"], known["state_digest"]) == (True, made["state_digest"])
    assert documents(call(backup.command, "verify", str(out), "--key", made["public_key"], "-o", "json"))["origin"]
    unknown = call(backup.command, "verify", str(out))
    assert unknown.exit_code == 0
    assert "does not prove who made it" in unknown.stdout
    restored = call(backup.command, "restore", str(out), "--data-dir", str(other))
    assert restored.exit_code == 0, restored.output
    assert "lunanexa recovery plan" in restored.stdout
    assert trio.run(held, other / STORE).head.ledger == trio.run(held, data_dir / STORE).head.ledger
    (reason,) = trio.run(held, other / STORE).state.recovery or ()
    assert (reason.sequence, reason.epoch) == (len(ROWS), 1)


def test_a_controller_may_write_meanwhile(data_dir: Path, tmp_path: Path) -> None:
    async def beside() -> Result:
        async with open_sqlite_journal(data_dir / STORE):
            return await trio.to_thread.run_sync(partial(create, data_dir, tmp_path / "b"))

    lock = LocalPrivateFiles(data_dir).lock(CONTROLLER_LOCK, "a controller")
    assert not isinstance(lock, LockHeld)
    with lock:
        assert trio.run(beside).exit_code == 0
        refused = call(backup.command, "restore", str(tmp_path / "b"), "--data-dir", str(data_dir))
    assert refused.exit_code == 75
    assert "a controller" in refused.stderr


def test_an_older_file_is_kept_unless_told(data_dir: Path, tmp_path: Path) -> None:
    out = tmp_path / "b"
    out.write_bytes(b"older")
    assert create(data_dir, out).exit_code == 1
    assert out.read_bytes() == b"older"
    assert create(data_dir, out, "--force").exit_code == 0
    assert call(backup.command, "verify", str(out)).exit_code == 0


def test_a_point_in_time(data_dir: Path, tmp_path: Path) -> None:
    out, other = tmp_path / "b", tmp_path / "other"
    create(data_dir, out)
    beyond = call(backup.command, "restore", str(out), "--data-dir", str(other), "--until", "27")
    assert beyond.exit_code == 1
    assert "ends at row 26, before 27" in beyond.stderr
    assert call(backup.command, "restore", str(out), "--data-dir", str(other), "--until", "13").exit_code == 0
    assert trio.run(held, other / STORE).head.sequence == 14


def test_only_an_empty_place_is_filled(data_dir: Path, tmp_path: Path) -> None:
    out = tmp_path / "b"
    create(data_dir, out)
    refused = call(backup.command, "restore", str(out), "--data-dir", str(data_dir))
    assert refused.exit_code == 75
    assert "not empty" in refused.stderr
    assert trio.run(held, data_dir / STORE).state.recovery is None


@pytest.mark.parametrize("command", ["verify", "restore"])
def test_a_damaged_backup_is_refused(data_dir: Path, tmp_path: Path, command: str) -> None:
    out, other = tmp_path / "b", tmp_path / "other"
    create(data_dir, out)
    data = bytearray(out.read_bytes())
    data[700] ^= 1
    out.write_bytes(data)
    refused = call(backup.command, command, str(out), "--data-dir", str(other))
    assert refused.exit_code == 1
    assert "rows.jsonl.gz is damaged" in refused.stderr
    assert "older backup" in refused.stderr
    assert not (other / STORE).exists()


def test_another_installations_backup_is_told_apart(data_dir: Path, tmp_path: Path) -> None:
    out, other = tmp_path / "b", tmp_path / "other"
    create(data_dir, out)
    (other / "controller" / "secrets").mkdir(parents=True, mode=0o700)
    Ed25519Signer.load_or_create(other / SIGNING_KEY)
    refused = call(backup.command, "restore", str(out), "--data-dir", str(other))
    assert refused.exit_code == 1
    assert "signed by another key" in refused.stderr


def test_after_a_rotation_the_new_key_signs_and_an_older_backup_needs_its_key_named(
    data_dir: Path, tmp_path: Path
) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    made = documents(create(data_dir, old, "-o", "json"))
    keys = LocalFleetKeys(data_dir / SECRETS, SystemClock())
    _, signing_key = keys.make()
    keys.forget("", made["key_id"])
    assert documents(create(data_dir, new, "-o", "json"))["key_id"] == signing_key.key_id
    assert call(backup.command, "verify", str(new), "--data-dir", str(data_dir)).exit_code == 0
    assert "signed by another key" in call(backup.command, "verify", str(old), "--data-dir", str(data_dir)).stderr
    assert documents(call(backup.command, "verify", str(old), "--key", made["public_key"], "-o", "json"))["origin"]


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    nothing = create(tmp_path / "none", tmp_path / "b")
    assert nothing.exit_code == 69
    assert "no installation" in nothing.stderr
    assert not (tmp_path / "b").exists()
    assert call(backup.command, "verify", str(tmp_path / "b")).exit_code == 2
    assert call(backup.command, "verify", __file__, "--key", "12").exit_code == 2


# --- recovery ---

PLAN: dict[str, Any] = {
    "recovering": True,
    "reasons": [
        {"cause": "restored", "sequence": 7, "epoch": 3, "node": None, "generation": None},
        {"cause": "rows_missing", "sequence": 9, "epoch": 3, "node": None, "generation": None},
        {"cause": "node_ahead", "sequence": None, "epoch": 4, "node": "n1", "generation": 5},
    ],
    "plan": {
        "steps": [
            {"kind": "start_missing", "target": "asg_1", "node": "n1"},
            {"kind": "start_missing", "target": "d1", "node": None},
            {"kind": "stop_orphan", "target": "asg_2", "node": "n1"},
            {"kind": "expire_lease", "target": "wl_1", "node": None},
            {"kind": "mark_unreachable", "target": "n2", "node": "n2"},
        ],
        "counts": {"start_missing": 2, "stop_orphan": 1, "expire_lease": 100, "mark_unreachable": 1},
        "waiting": ["n3"],
        "digest": "ab" * 32,
    },
    "sequence": 12,
    "epoch": 5,
    "rebased": 0,
}
ENDED = {"rebased": 5, "epoch": 6, "sequence": 13}


def controller(plan: dict[str, Any], asked: list[bytes], answer: Reply | None = None) -> Callable[[HttpRequest], Reply]:
    def serve(request: HttpRequest) -> Reply:
        if request.method == "GET":
            assert request.target == "/admin/v1/recovery"
            return Reply(200, [json.dumps(plan).encode()])
        assert request.target == "/admin/v1/recovery:rebase"
        asked.append(request.body)
        return answer or Reply(200, [json.dumps(ENDED).encode()])

    return serve


def test_the_plan_as_people_read_it() -> None:
    shown = call(recovery.command, "plan", server=controller(PLAN, []), environment=REMOTE)
    assert shown.exit_code == 0
    for told in (
        "restored from a backup, up to row 7",
        "row 9 of epoch 3 is missing",
        "node n1 follows a document (epoch 4, generation 5)",
        "start    replica asg_1 on node n1",
        "start    replicas of deployment d1",
        "stop     replica asg_2 on node n1",
        "give up  request wl_1",
        "mark as unreachable node n2",
        "and 99 more",
        "not heard yet: n3",
        "lunanexa recovery rebase",
    ):
        assert told in shown.stdout, told
    quiet = call(recovery.command, "plan", server=controller({"recovering": False}, []), environment=REMOTE)
    assert quiet.stdout == "nothing is being recovered\n"


def test_the_go_is_for_the_plan_that_was_shown() -> None:
    asked: list[bytes] = []
    server = controller(PLAN, asked)
    refused = call(recovery.command, "rebase", server=server, environment=REMOTE, stdin="n\n")
    assert refused.exit_code == 1
    blind = call(recovery.command, "rebase", "-o", "json", server=server, environment=REMOTE)
    assert blind.exit_code == 1
    assert "--yes" in blind.stderr
    assert asked == []
    said = call(recovery.command, "rebase", server=server, environment=REMOTE, stdin="y\n")
    assert said.exit_code == 0
    assert "counts from sequence 13 on, in epoch 6" in said.stdout
    assert (
        documents(call(recovery.command, "rebase", "--yes", "-o", "json", server=server, environment=REMOTE)) == ENDED
    )
    assert [json.loads(body) for body in asked] == [{"plan": "ab" * 32}] * 2


def test_a_stale_go_is_told() -> None:
    refusal = Refusal(outcome=Outcome.STALE_GENERATION, message="The recovery plan is another by now.")
    reply = Reply(409, [json.dumps(error_document(refusal, "req_1")).encode()])
    stale = call(recovery.command, "rebase", "--yes", server=controller(PLAN, [], reply), environment=REMOTE)
    assert stale.exit_code != 0
    assert "another by now" in stale.stderr


def test_the_status_says_so_first() -> None:
    document = {**STATUS, "recovering": PLAN["reasons"]}
    shown = call(status.command, server=lambda _: Reply(200, [json.dumps(document).encode()]), environment=REMOTE)
    assert shown.exit_code == 0
    assert "RECOVERING: nothing is served before you say go" in shown.stdout
    assert "restored from a backup, up to row 7" in shown.stdout
    assert "next: lunanexa recovery plan" in shown.stdout


def test_nothing_to_recover() -> None:
    asked: list[bytes] = []
    nothing = {**PLAN, "recovering": False, "reasons": [], "plan": None}
    said = call(recovery.command, "rebase", "--yes", server=controller(nothing, asked), environment=REMOTE)
    assert (said.exit_code, asked) == (0, [])
