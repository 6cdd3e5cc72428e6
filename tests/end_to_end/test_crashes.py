"""kill -9 of each process of an installation, one after another: it serves again, and says what happened."""

import os
import signal
from collections.abc import Iterator

import pytest
import trio

from tests.end_to_end.installation import Ready, Up, answers, status_of

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


def lines_with(up: Up, *words: str) -> list[str]:
    return [line for line in up.errors.splitlines() if all(word in line for word in words)]


def check_kept(up: Up, before: Ready, after: Ready, name: str, *others: str) -> None:
    assert (after.base_url, after.api_key) == (before.base_url, before.api_key)
    for other in others:
        assert after.pids[other] == before.pids[other], other
    (line,) = lines_with(up, '"child_ended"', f'"{name}"')
    assert f'"status": {-signal.SIGKILL}' in line
    assert '"restart_in_ms"' in line


async def test_a_new_controller_finds_agent_and_engine_again(crashing: Up) -> None:
    before, after = await killed(crashing, "controller")
    check_kept(crashing, before, after, "controller", "node", "engine")


async def test_a_new_agent_adopts_the_engine(crashing: Up) -> None:
    before, after = await killed(crashing, "node")
    (line,) = await crashing.until(lambda: lines_with(crashing, '"replica_recovered"'), "the engine's recovery")
    assert '"process_found": true' in line
    check_kept(crashing, before, after, "node", "controller", "engine")
    ((replica,),) = [deployment["replicas"] for deployment in status_of(after)["deployments"]]
    assert (replica["pid"], replica["state"], replica["restarts"]) == (before.pids["engine"], "ready", 0)
    assert await trio.to_thread.run_sync(answers, after)


async def test_a_crashed_engine_is_replaced(crashing: Up) -> None:
    before, after = await killed(crashing, "engine")
    assert (after.pids["controller"], after.pids["node"]) == (before.pids["controller"], before.pids["node"])
