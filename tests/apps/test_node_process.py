"""``lunanexa-node`` as a process, with a real engine: killed, restarted, stopped, left by its supervisor."""

import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
import trio

from lunanexa_adapters.asgi.errors import render_error
from lunanexa_adapters.crypto.signing import Ed25519Signer, Ed25519Verifier
from lunanexa_adapters.http_server.lean import serve_lean
from lunanexa_adapters.http_server.listeners import addresses, open_listeners
from lunanexa_adapters.processes.identity import all_stats
from lunanexa_core.southbound.heartbeat import IdentityGrade, ReplicaReport, ReplicaState
from tests.apps.node_world import NODE, TinyController, assignment

pytestmark = pytest.mark.slow
LIMIT_S = 120
KEY = "8VtTqXN0a5Wc1rYp3LzK7mGdBh2FjUeS"
ENGINE = str(Path(sys.executable).with_name("lunanexa-engine"))


class Node:
    """The data directory of a node, and the agents that run on it one after another."""

    def __init__(self, directory: Path, port: int) -> None:
        self._directory = directory
        self._port = port
        secrets = directory / "node" / "secrets"
        secrets.mkdir(parents=True)
        (secrets / "controller_key").write_text(KEY)

    async def start(self, supervisor: int | None = None) -> trio.Process:
        environment = dict(os.environ)
        if supervisor is not None:
            environment["LUNANEXA_SUPERVISOR_FD"] = str(supervisor)
        command = [sys.executable, "-m", "lunanexa_apps.node.main", "run", "--data-dir", str(self._directory)]
        command += ["--controller", f"http://127.0.0.1:{self._port}", "--node", NODE, "--log-format", "json"]
        return await trio.lowlevel.open_process(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            pass_fds=() if supervisor is None else (supervisor,),
        )


@asynccontextmanager
async def controller_and_node(directory: Path) -> AsyncIterator[tuple[TinyController, Node]]:
    """A small controller on a real socket, and a node that may be started; no engine is left behind."""
    signer = Ed25519Signer.load_or_create(directory / "controller.key")
    controller = TinyController(signer, Ed25519Verifier(), bearer=KEY)
    controller.desire(assignment(binary=ENGINE))
    faults: list[BaseException] = []
    with trio.fail_after(LIMIT_S):
        async with trio.open_nursery() as nursery:
            listeners = await open_listeners("127.0.0.1", 0)
            port = addresses(listeners)[0][1]
            serve = partial(serve_lean, controller, listeners, render_error=render_error, on_fault=faults.append)
            await nursery.start(serve)
            try:
                yield controller, Node(directory / "data", port)
            finally:
                report = controller.report()
                if report is not None and report.pid is not None and _lives(report.pid):
                    os.killpg(report.pid, signal.SIGKILL)
                nursery.cancel_scope.cancel()


def _lives(pid: int) -> bool:
    return any(stat.pid == pid and not stat.ended for stat in all_stats())


async def ready(controller: TinyController) -> ReplicaReport:
    report = await controller.until_state(ReplicaState.READY)
    assert report.identity is IdentityGrade.PROVEN
    assert report.pid is not None
    assert _lives(report.pid)
    return report


async def test_an_agent_is_killed_and_restarted_and_then_stops_its_engine(tmp_path: Path) -> None:
    async with controller_and_node(tmp_path) as (controller, node):
        agent = await node.start()
        first = await ready(controller)
        agent.kill()
        await agent.wait()
        boots = {beat.boot for beat in controller.heartbeats}
        agent = await node.start()
        await controller.until(lambda: {beat.boot for beat in controller.heartbeats} != boots)
        again = await ready(controller)
        assert (again.start, again.pid) == (first.start, first.pid)
        agent.send_signal(signal.SIGTERM)
        assert await agent.wait() == 0
        assert first.pid is not None
        assert not _lives(first.pid)
        assert ReplicaState.ABSENT in {one.state for beat in controller.heartbeats for one in beat.replicas}
        assert list((tmp_path / "data" / "node" / "intents").iterdir()) == []


async def test_an_engine_that_is_killed_is_replaced(tmp_path: Path) -> None:
    async with controller_and_node(tmp_path) as (controller, node):
        agent = await node.start()
        first = await ready(controller)
        assert first.pid is not None
        os.kill(first.pid, signal.SIGKILL)
        report = await controller.until_state(ReplicaState.BACKOFF)
        assert report.exit is not None
        assert (report.exit.kind, report.exit.signal) == ("signalled", signal.SIGKILL)
        second = await ready(controller)
        assert second.start != first.start
        agent.send_signal(signal.SIGINT)
        assert await agent.wait() == 0


async def test_the_end_of_the_supervisor_ends_the_agent_and_leaves_the_engine(tmp_path: Path) -> None:
    async with controller_and_node(tmp_path) as (controller, node):
        read_end, write_end = os.pipe()
        agent = await node.start(read_end)
        report = await ready(controller)
        os.close(write_end)
        os.close(read_end)
        assert await agent.wait() == 0
        assert report.pid is not None
        assert _lives(report.pid)


async def test_one_agent_a_data_directory(tmp_path: Path) -> None:
    async with controller_and_node(tmp_path) as (controller, node):
        agent = await node.start()
        await ready(controller)
        second = await node.start()
        assert await second.wait() == 75
        agent.send_signal(signal.SIGTERM)
        assert await agent.wait() == 0
