"""kill -9 of each process of an installation, one after another: it serves again, and says what happened."""

import os
import signal
from collections.abc import Iterator

import pytest
import trio

from tests.end_to_end.installation import Ready, Up, answers

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def crashing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    up = Up(tmp_path_factory.mktemp("crashes"))
    try:
        trio.run(up.wait_ready)
        yield up
        trio.run(up.stop)
    finally:
        up.end_all()


async def killed(up: Up, name: str) -> tuple[Ready, Ready]:
    """The ready file before and after, once the process was replaced and calls succeed again."""
    before = up.ready
    os.kill(before.pid(name), signal.SIGKILL)

    def replaced() -> Ready | None:
        now = up.read_ready()
        return now if now is not None and now.pids[name] not in (None, before.pids[name]) else None

    after = await up.until(replaced, f"another {name}")
    with trio.fail_after(60):
        while not await trio.to_thread.run_sync(answers, after):
            await trio.sleep(0.05)
    assert await trio.to_thread.run_sync(answers, after)
    return before, up.ready


@pytest.mark.parametrize(("name", "other"), [("controller", "node"), ("node", "controller")])
async def test_a_process_of_ours_is_replaced_and_the_engine_runs_on(crashing: Up, name: str, other: str) -> None:
    before, after = await killed(crashing, name)
    assert after.pids[other] == before.pids[other]
    assert after.pids["engine"] == before.pids["engine"]
    assert (after.base_url, after.api_key) == (before.base_url, before.api_key)
    (line,) = [line for line in crashing.errors.splitlines() if "child_ended" in line and f'"{name}"' in line]
    assert '"restart_in_ms"' in line
    assert f'"status": {-signal.SIGKILL}' in line


async def test_a_crashed_engine_is_replaced(crashing: Up) -> None:
    before, after = await killed(crashing, "engine")
    assert (after.pids["controller"], after.pids["node"]) == (before.pids["controller"], before.pids["node"])
