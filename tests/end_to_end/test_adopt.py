"""A server that runs already is served, and left running."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
import trio

from tests.end_to_end.installation import ENGINE, LIMIT_S, answers, lunanexa, running

pytestmark = pytest.mark.slow


@pytest.fixture
def engine(tmp_path: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """An engine of somebody else, without a key; ``engine.json`` tells where, once it serves."""
    with (tmp_path / "engine.log").open("wb") as log:
        engine = subprocess.Popen(
            [str(ENGINE), "--alias", "sea", "--ready-file", str(tmp_path / "engine.json")],
            stderr=log,
            start_new_session=True,
        )
    yield engine
    engine.kill()
    engine.wait()


async def test_an_adopted_server_is_served_and_left_running(engine: "subprocess.Popen[bytes]", tmp_path: Path) -> None:
    told = tmp_path / "engine.json"
    with trio.fail_after(LIMIT_S):
        while not told.exists():
            assert engine.poll() is None
            await trio.sleep(0.02)
    url = f"http://127.0.0.1:{json.loads(told.read_bytes())['port']}"
    folder = tmp_path / "up"
    folder.mkdir()
    async with running(folder, "--adopt", url) as up:
        ready = up.ready
        assert ready.model == "sea"
        assert ready.pids["engine"] is None
        assert url in up.output
        assert await trio.to_thread.run_sync(answers, ready)
        page = await lunanexa(tmp_path, "status", "-o", "json", "--data-dir", str(up.data_dir))
        (deployment,) = json.loads(page.stdout)["deployments"]
        assert deployment["adopted"] is True
        await up.stop()
    assert engine.poll() is None
    assert httpx2.get(f"{url}/v1/models").json()["data"][0]["id"] == "sea"
