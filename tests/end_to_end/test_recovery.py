"""A backup of a real installation while it serves, the store lost, the backup restored: nothing is served before the
go, and all is after it."""

import json
import shutil
from pathlib import Path
from typing import Any

import httpx2
import pytest
import trio

from lunanexa_apps.installation import LISTEN, STORE
from tests.end_to_end.installation import Up, answers, ask, lunanexa, running, started

pytestmark = pytest.mark.slow


async def told(folder: Path, *arguments: str) -> Any:
    ended = await lunanexa(folder, *arguments, "-o", "json")
    assert ended.returncode == 0, (ended.stdout, ended.stderr)
    return json.loads(ended.stdout)


def lose_store(up: Up) -> None:
    for file in (up.data_dir / STORE).parent.glob("store.sqlite3*"):
        file.unlink()


async def recovering(up: Up) -> Any:
    """The plan, once the controller recovers and hears its node."""
    data_dir = ("--data-dir", str(up.data_dir))
    await up.until(lambda: (up.data_dir / LISTEN).exists(), "the controller")
    with trio.fail_after(120):
        while True:
            asked = await lunanexa(up.folder, "recovery", "plan", *data_dir, "-o", "json")
            if asked.returncode == 0:
                found = json.loads(asked.stdout)
                assert found["recovering"], found
                if not found["plan"]["waiting"]:
                    return found
            await trio.sleep(0.1)


async def test_a_lost_store_is_restored(tmp_path: Path) -> None:
    file = tmp_path / "one.backup"
    async with running(tmp_path) as up:
        data_dir = ("--data-dir", str(up.data_dir))
        assert (await trio.to_thread.run_sync(ask, up.ready)).status_code == 200
        made = await told(tmp_path, "backup", "create", *data_dir, "--out", str(file))
        assert made["rows"]["ledger"] >= 2
        assert (await trio.to_thread.run_sync(ask, up.ready)).status_code == 200
        beside = await lunanexa(tmp_path, "backup", "restore", str(file), *data_dir)
        assert beside.returncode == 75, "a controller runs"
        await up.stop()
    assert (await told(tmp_path, "backup", "verify", str(file), *data_dir))["origin"]
    lose_store(up)
    restored = await told(tmp_path, "backup", "restore", str(file), *data_dir)
    assert restored["sequence"] == made["sequence"]
    async with started(tmp_path) as again:
        found = await recovering(again)
        causes = [reason["cause"] for reason in found["reasons"]]
        assert causes == ["restored", "rows_missing"], found
        address = json.loads((again.data_dir / LISTEN).read_bytes())["base_url"]
        probed = await trio.to_thread.run_sync(httpx2.get, address.removesuffix("/v1") + "/ready")
        assert (probed.status_code, probed.json()["blockers"]) == (503, ["recovering"])
        await told(tmp_path, "recovery", "rebase", "--yes", *data_dir)
        ready = await again.wait_ready()
        await again.until(lambda: answers(ready), "an answer")
        replayed = await told(tmp_path, "journal", "replay", *data_dir)
        assert replayed["matches"] is True, replayed
        await again.stop()


async def test_a_store_that_was_copied_back_is_noticed(tmp_path: Path) -> None:
    older = tmp_path / "older.sqlite3"
    async with running(tmp_path) as up:
        data_dir = ("--data-dir", str(up.data_dir))
        await up.stop()
    shutil.copy(up.data_dir / STORE, older)
    async with running(tmp_path) as up:
        assert (await trio.to_thread.run_sync(ask, up.ready)).status_code == 200
        await up.stop()
    lose_store(up)
    shutil.copy(older, up.data_dir / STORE)
    async with started(tmp_path) as again:
        found = await recovering(again)
        assert [reason["cause"] for reason in found["reasons"]] == ["rows_missing"], found
        await told(tmp_path, "recovery", "rebase", "--yes", *data_dir)
        ready = await again.wait_ready()
        await again.until(lambda: answers(ready), "an answer")
        await again.stop()
