"""The journal of a real installation: verified, replayed and exported while it runs, verified again when it is over."""

import json
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.end_to_end.installation import Up, ask, lunanexa, running

pytestmark = pytest.mark.slow


async def journal(up: Up, *arguments: str) -> Any:
    ended = await lunanexa(up.folder, "journal", *arguments, "--data-dir", str(up.data_dir), "-o", "json")
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


async def test_what_was_written_can_be_proven(tmp_path: Path) -> None:
    exported = tmp_path / "journal.jsonl"
    async with running(tmp_path) as up:
        workload = (await trio.to_thread.run_sync(ask, up.ready)).headers["x-lunanexa-workload-id"]
        verified = await journal(up, "verify")
        assert verified["rows"]["ledger"] >= 2
        replayed = await journal(up, "replay")
        assert replayed["matches"] is True, replayed
        settled = await journal(up, "tail", "--target", workload, "--action", "workload.settled")
        assert json.loads(settled["record"])["body"]["receipt"]["workload"] == workload
        assert (await journal(up, "show", str(settled["sequence"])))["hash"] == settled["hash"]
        whole = await journal(up, "export", str(exported))
        held = await lunanexa(up.folder, "journal", "verify", "--offline", "--data-dir", str(up.data_dir))
        assert held.returncode == 75
    checked = await lunanexa(tmp_path, "journal", "verify", "--file", str(exported), "-o", "json")
    assert json.loads(checked.stdout) == whole
    after = await journal(up, "verify", "--offline")
    assert after["sequence"] >= whole["sequence"]
    again = await journal(up, "replay", "--until", str(replayed["sequence"]), "--offline")
    assert again["digest"] == replayed["digest"]
