"""A real agent whose controller answers no more: an engine that may not outlive the lease ends by itself, and comes up
again when the agent has asked."""

import os
import signal
from pathlib import Path
from typing import Any

import httpx2
import pytest
import trio

from lunanexa_core.policy import Policy
from tests.end_to_end.installation import LIMIT_S, Ready, Up, answers, gone, running

pytestmark = pytest.mark.slow

LEASE_S = Policy().node_lease_ms / 1_000
KEEP_MS = 500
STOP_MS = 2_000
HEARTBEATS_S = 4.0
"""The lease began with one of the last heartbeats before."""


def apply_exclusive(ready: Ready) -> None:
    """The deployment as it is, but exclusive."""
    headers = {"authorization": f"Bearer {ready.operator_token}"}
    url = f"{ready.origin}/admin/v1/deployments"
    (known,) = httpx2.get(url, headers=headers, timeout=LIMIT_S).raise_for_status().json()["data"]
    spec: dict[str, Any] = known["spec"]
    spec |= {"exclusive": True, "cut_off_keep_ms": KEEP_MS, "engine": spec["engine"] | {"stop_timeout_ms": STOP_MS}}
    httpx2.put(f"{url}/{spec['deployment']}", json=spec, headers=headers, timeout=LIMIT_S).raise_for_status()


async def another_engine(up: Up, before: int) -> int:
    def there() -> int | None:
        now = up.read_ready()
        pid = None if now is None else now.pids["engine"]
        return None if pid == before else pid

    pid = await up.until(there, "another engine in the ready file")
    with trio.fail_after(60):
        while not await trio.to_thread.run_sync(answers, up.ready):
            await trio.sleep(0.05)
    return pid


@pytest.mark.parametrize("agent_dies", [False, True])
async def test_an_exclusive_engine_ends_with_its_lease_and_returns_with_it(tmp_path: Path, agent_dies: bool) -> None:
    """Also where the agent dies meanwhile: the next one knows until when its predecessor had a lease."""
    async with running(tmp_path) as up:
        await trio.to_thread.run_sync(apply_exclusive, up.ready)
        engine = await another_engine(up, up.ready.pid("engine"))
        controller, agent = up.ready.pid("controller"), up.ready.pid("node")
        began_s = trio.current_time()
        os.kill(controller, signal.SIGSTOP)
        if agent_dies:
            os.kill(agent, signal.SIGKILL)
        try:
            with trio.fail_after(LEASE_S + (KEEP_MS + STOP_MS) / 1_000 + 30):
                while not gone(engine):
                    await trio.sleep(0.05)
            lived_s = trio.current_time() - began_s
        finally:
            os.kill(controller, signal.SIGCONT)
        assert lived_s > LEASE_S - HEARTBEATS_S
        again = await another_engine(up, engine)
        assert again != engine
