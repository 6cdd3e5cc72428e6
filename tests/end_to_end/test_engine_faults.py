"""Engines whose processes misbehave, in an installation as a user has it: restarted within a budget, given up with
their reason, never listed when they are somebody else, and gone after the stop however deaf they are."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import httpx2
import pytest
import trio

from tests.end_to_end.installation import (
    LIMIT_S,
    Ready,
    Up,
    answers,
    ask,
    engine_with,
    gone,
    lunanexa,
    served,
    started,
    status_of,
)

pytestmark = pytest.mark.slow

T = TypeVar("T")


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """One installation for all engines here; the last test stops it."""
    with served(tmp_path_factory.mktemp("faulty")) as up:
        yield up


def redeploy(ready: Ready, *arguments: str, **engine: Any) -> int:
    """Changes the engine of the one deployment that ``up`` made; its new generation."""
    headers = {"authorization": f"Bearer {ready.operator_token}"}
    with httpx2.Client(base_url=ready.origin, headers=headers, timeout=LIMIT_S) as client:
        (deployment,) = client.get("/admin/v1/deployments").raise_for_status().json()["data"]
        spec = deployment["spec"]
        spec["engine"] |= {"arguments": list(arguments), **engine}
        answer = client.put("/admin/v1/deployments/default", json=spec).raise_for_status()
    generation: int = answer.json()["generation"]
    return generation


async def changed(ready: Ready, *arguments: str, **engine: Any) -> int:
    return await trio.to_thread.run_sync(lambda: redeploy(ready, *arguments, **engine))


async def replica_in(up: Up, ready: Ready, generation: int, state: str) -> dict[str, Any]:
    """The replica, once that generation of it was reported in that state."""

    def look() -> dict[str, Any] | None:
        (deployment,) = status_of(ready)["deployments"]
        for replica in deployment["replicas"]:
            serves = state != "ready" or replica["routable"]
            if (replica["generation"], replica["state"]) == (generation, state) and serves:
                found: dict[str, Any] = replica
                return found
        return None

    return await eventually(look, f"{state} of generation {generation}", up)


async def eventually(look: Callable[[], T | None], what: str, up: Up) -> T:
    """As ``Up.until``, for a question that blocks."""
    with trio.move_on_after(LIMIT_S):
        while True:
            found = await trio.to_thread.run_sync(look)
            if found:
                return found
            await trio.sleep(0.05)
    raise AssertionError(f"{what} did not come\n{up.output}{up.errors}{up.engine_log}")


async def check_not_served(ready: Ready) -> None:
    """It is not listed, and who calls it all the same is told that it can't be had now."""
    headers = {"authorization": f"Bearer {ready.api_key}"}
    listed = await trio.to_thread.run_sync(
        lambda: httpx2.get(f"{ready.base_url}/models", headers=headers, timeout=LIMIT_S)
    )
    assert listed.json()["data"] == []
    refused = await trio.to_thread.run_sync(ask, ready)
    assert refused.status_code == 503
    assert int(refused.headers["retry-after"]) >= 1


async def status_page(up: Up, folder: Path) -> str:
    told = await lunanexa(folder, "status", "--data-dir", str(up.data_dir))
    assert told.returncode == 0, told.stderr
    return told.stdout.decode()


async def test_an_engine_that_exits_with_0_is_started_again_and_serves(faulty: Up) -> None:
    ready = faulty.ready
    generation = await changed(ready, "--fault", "exit=0,after=2")
    first = await replica_in(faulty, ready, generation, "ready")
    for _ in range(2):
        assert await trio.to_thread.run_sync(answers, ready)
    failed = await trio.to_thread.run_sync(ask, ready)
    assert (failed.status_code, failed.json()["error"]["code"]) == (502, "engine_failed")

    def again() -> dict[str, Any] | None:
        ((replica,),) = [deployment["replicas"] for deployment in status_of(ready)["deployments"]]
        found: dict[str, Any] = replica
        return found if replica["restarts"] == 1 and replica["routable"] else None

    second = await eventually(again, "the restart", faulty)
    assert second["pid"] != first["pid"]
    assert (second["exit"]["kind"], second["exit"]["code"]) == ("exited", 0)
    assert any("told_to_exit" in line for line in second["exit"]["last_lines"])
    assert "backoff" in faulty.errors
    assert await trio.to_thread.run_sync(answers, ready)


async def test_an_engine_that_exits_at_each_start_is_given_up_with_its_reason(faulty: Up, tmp_path: Path) -> None:
    ready = faulty.ready
    generation = await changed(ready, "--fault", "exit-at-start=3", restart_budget=1)
    replica = await replica_in(faulty, ready, generation, "failed")
    assert replica["restarts"] == 2
    assert (replica["exit"]["kind"], replica["exit"]["code"]) == ("exited", 3)
    page = await status_page(faulty, tmp_path)
    assert "its engine exited with status 3" in page
    assert "told_to_exit_at_start" in page
    await check_not_served(ready)


@pytest.mark.parametrize("fault", ["wrong-start", "wrong-model"])
async def test_an_engine_with_another_identity_is_never_listed(fault: str, faulty: Up, tmp_path: Path) -> None:
    ready = faulty.ready
    generation = await changed(ready, "--fault", fault, restart_budget=0)
    given_up = None
    with trio.fail_after(LIMIT_S):
        while given_up is None:
            await check_not_served(ready)
            (deployment,) = (await trio.to_thread.run_sync(status_of, ready))["deployments"]
            assert not deployment["ready"]
            for replica in deployment["replicas"]:
                if (replica["generation"], replica["state"]) == (generation, "failed"):
                    given_up = replica
    assert given_up["exit"]["kind"] == "wrong_identity"
    assert "its engine is not the process that answers at its address" in await status_page(faulty, tmp_path)


async def test_an_engine_that_leaks_is_restarted_at_its_limit_and_then_given_up(faulty: Up, tmp_path: Path) -> None:
    ready = faulty.ready
    limit_mib = 256
    generation = await changed(ready, "--fault", "leak=64", memory_limit_mib=limit_mib, restart_budget=1)
    first = await replica_in(faulty, ready, generation, "ready")
    for restarts, state in ((1, "ready"), (2, "failed")):

        def leaks(restarts: int = restarts) -> dict[str, Any] | None:
            ask(ready)
            ((replica,),) = [deployment["replicas"] for deployment in status_of(ready)["deployments"]]
            found: dict[str, Any] = replica
            return found if replica["restarts"] == restarts and replica["state"] in ("ready", "failed") else None

        replica = await eventually(leaks, f"restart {restarts}", faulty)
        assert gone(first["pid"])
        assert replica["exit"]["kind"] == "memory_limit"
        held_mib = int(replica["exit"]["detail"].split()[1])
        assert held_mib > limit_mib
        assert replica["exit"]["detail"] == f"holds {held_mib} MiB, its limit is {limit_mib} MiB"
        assert replica["state"] == state
    assert "was stopped for its memory: it holds" in await status_page(faulty, tmp_path)
    await check_not_served(ready)


async def test_a_start_that_has_no_room_waits_and_is_given_up_with_both_figures(faulty: Up, tmp_path: Path) -> None:
    ready = faulty.ready
    (node,) = (await trio.to_thread.run_sync(status_of, ready))["nodes"]
    total_mib = node["total_mib"]
    # Never all of a machine is available, as this very test runs on it.
    generation = await changed(ready, memory_mib=total_mib, memory_wait_ms=2_000, restart_budget=0)
    waiting = await replica_in(faulty, ready, generation, "awaiting_memory")
    assert (waiting["pid"], waiting["restarts"]) == (None, 0)
    replica = await replica_in(faulty, ready, generation, "failed")
    detail = replica["exit"]["detail"]
    assert replica["exit"]["kind"] == "no_memory"
    assert detail.startswith(f"needs {total_mib} MiB, ")
    assert detail.endswith(" MiB were available after 2 s")
    generation = await changed(ready, memory_mib=total_mib + 1)
    replica = await replica_in(faulty, ready, generation, "failed")
    assert replica["exit"]["detail"] == f"needs {total_mib + 1} MiB, this machine has {total_mib} MiB in all"
    page = " ".join((await status_page(faulty, tmp_path)).split())
    assert f"was not started for want of memory: it {replica['exit']['detail']}" in page
    await changed(ready, memory_mib=64, memory_limit_mib=None)
    await eventually(lambda: answers(ready), "a start that fits", faulty)


async def test_an_engine_that_is_deaf_to_the_stop_is_killed(faulty: Up) -> None:
    ready = faulty.ready
    generation = await changed(ready, "--fault", "slow-stop=1000000", restart_budget=5, stop_timeout_ms=1_000)
    replica = await replica_in(faulty, ready, generation, "ready")
    assert await trio.to_thread.run_sync(answers, ready)
    await faulty.stop()
    assert gone(replica["pid"])
    last = [json.loads(line)["event"] for line in faulty.engine_log.splitlines() if line.startswith("{")][-1]
    assert last == "told_to_stop_slowly"


async def test_up_ends_with_1_and_says_why_its_engine_never_served(tmp_path: Path) -> None:
    async with started(tmp_path, *engine_with(tmp_path, "--fault", "exit-at-start=3")) as up:
        ready = await up.until(lambda: preliminary(up), "the controller")

        def deployed() -> bool:
            try:
                return bool(status_of(ready)["deployments"])
            except httpx2.HTTPError:
                return False

        await eventually(deployed, "the deployment", up)
        await changed(ready, restart_budget=0)
        assert await up.wait_end() == 1
        assert "the engine exited with status 3, and is not tried again" in up.errors
        assert "told_to_exit_at_start" in up.errors
        assert "Try it:" not in up.output


def preliminary(up: Up) -> Ready | None:
    """What the ready file would say, of an installation that does not serve yet."""
    secrets = up.data_dir / "controller" / "secrets"
    try:
        listen = json.loads((up.data_dir / "controller" / "listen").read_bytes())
        token, key = ((secrets / name).read_text().strip() for name in ("operator_token", "api_key"))
    except (FileNotFoundError, ValueError):
        return None
    url = f"http://{listen['host']}:{listen['port']}/v1"
    return Ready(base_url=url, api_key=key, operator_token=token, model="", models=(), pids={})
