"""kill -9 of each process of an installation: it serves again, says what happened, and its books are right."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
import trio

from lunanexa_core.outcomes import Outcome
from lunanexa_simulation.rng import Streams
from tests.end_to_end.installation import LIMIT_S, Ready, Up, answers, engine_with, gone, running, served, status_of
from tests.end_to_end.load import Load, engine_ended, receipts_in

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def crashing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    with served(tmp_path_factory.mktemp("crashes")) as up:
        yield up


async def killed(up: Up, name: str) -> tuple[Ready, Ready]:
    """The ready file before and after, once the process was replaced and calls succeed again."""

    def complete() -> Ready | None:
        now = up.read_ready()
        return now if now is not None and None not in now.pids.values() else None

    before = await up.until(complete, "the engine's process in the ready file")
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


KILLS = (("controller",), ("node",), ("controller", "node"), ("up",), ("node", "controller"), ("up",))
CLIENTS = 4
MOMENT_MS = 500
"""Longer than an answer takes: a kill falls anywhere in one."""


async def killed_under_load(up: Up, names: tuple[str, ...]) -> None:
    """Kills the processes; returns once the installation serves again."""
    before = up.ready
    if names == ("up",):
        up.process.kill()
        up.process.wait()
        await up.until(lambda: gone(before.pid("controller"), before.pid("node")), "the children's end", running=False)
        up.start()
        await up.wait_ready()
    else:
        for name in names:
            os.kill(before.pid(name), signal.SIGKILL)

        def replaced() -> bool:
            now = up.read_ready()
            return now is not None and all(now.pids[name] not in (None, before.pids[name]) for name in names)

        await up.until(replaced, f"others in the place of {names}")
    with trio.fail_after(60):
        while not await trio.to_thread.run_sync(answers, up.ready):
            await trio.sleep(0.05)
    await up.until(lambda: up.ready.pids["engine"] is not None, "the engine in the ready file")


async def until_at_rest(up: Up) -> None:
    """Slots and queue are empty, as controller and node say, and every request has its receipt; what the dead had open
    takes a lease."""

    def at_rest() -> bool:
        status, headers = status_of(up.ready), {"authorization": f"Bearer {up.ready.operator_token}"}
        asked = httpx2.get(f"{up.ready.origin}/admin/v1/requests?limit=1", headers=headers, timeout=LIMIT_S)
        (deployment,) = status["deployments"]
        (replica,) = deployment["replicas"]
        queue = deployment["queue"]
        busy = queue["running"] or queue["waiting"] or replica["running"] or replica["waiting"]
        return not (busy or asked.raise_for_status().json()["open"])

    await up.until(at_rest, "rest")


async def test_kills_at_any_moment_under_load_run_nothing_twice(tmp_path: Path) -> None:
    arguments = ("--slots", str(CLIENTS), *engine_with(tmp_path, "--itl-ms", "20"))
    moments = Streams(7).stream("kills")
    async with running(tmp_path, *arguments) as up:
        ready = up.ready
        engine = ready.pid("engine")
        load = Load(ready)
        async with trio.open_nursery() as nursery:
            for _ in range(CLIENTS):
                nursery.start_soon(load.visit)
            for names in KILLS:
                await load.until_streaming()
                await trio.sleep(moments.randint(0, MOMENT_MS) / 1000)
                await killed_under_load(up, names)
                load.ready = up.ready
                assert up.ready.pid("engine") == engine, names
            load.over.set()
        await until_at_rest(up)
        ended = await trio.to_thread.run_sync(engine_ended, engine)
        await up.stop()
    # A second receipt of one workload would be a second admission of it, and both fail in here.
    receipts = await receipts_in(up.data_dir)
    assert {visit.workload for visit in load.visits} <= receipts.keys()
    for visit in load.visits:
        outcome = receipts[visit.workload].settlement.outcome
        assert outcome in ((None,) if visit.whole else (None, Outcome.INTERNAL)), (visit, outcome)
    cut = {name for name, receipt in receipts.items() if receipt.settlement.detail == "controller_restarted"}
    told = sum(len(receipt.settlement.attempts) for receipt in receipts.values())
    assert cut
    # The engine, which lived through all of it, did each request once: those whose receipts tell of an attempt,
    # and of those that were cut all that were seen to run.
    seen = {visit.workload for visit in load.visits if visit.output}
    assert told + len(cut & seen) <= ended <= told + len(cut)
