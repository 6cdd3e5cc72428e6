"""``lunanexa-node`` as a process, with a real engine: killed, restarted, stopped, left by its supervisor."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio

from lunanexa_adapters.asgi.errors import render_error
from lunanexa_adapters.crypto.credentials import TlsCredentials
from lunanexa_adapters.crypto.fleet_keys import LocalFleetKeys
from lunanexa_adapters.crypto.signing import Ed25519Verifier
from lunanexa_adapters.http_client.http_client import H11HttpClient
from lunanexa_adapters.http_server.lean import serve_lean
from lunanexa_adapters.http_server.listeners import addresses, open_listeners
from lunanexa_adapters.http_server.tls_listener import TlsListener
from lunanexa_adapters.processes.identity import all_stats
from lunanexa_adapters.system.clock import SystemClock
from lunanexa_core.identity.names import gateway_identity, node_identity
from lunanexa_core.identity.token import EnrolmentToken
from lunanexa_core.southbound.heartbeat import IdentityGrade, ReplicaReport, ReplicaState
from lunanexa_ports.errors import PortUnavailable
from lunanexa_ports.http_client import HttpRequest, HttpUnreachable, TlsPeer
from tests.apps.node_world import assignment
from tests.apps.tiny_controller import CLUSTER, NODE, TinyController

pytestmark = pytest.mark.slow
LIMIT_S = 120
ENGINE = str(Path(sys.executable).with_name("lunanexa-engine"))


class Node:
    """The data directory of a node, and the agents that run on it one after another."""

    def __init__(self, directory: Path, port: int, token: EnrolmentToken) -> None:
        self.directory = directory
        self.token_file = directory.with_name("token")
        self.token_file.write_text(token.line())
        self.url = f"https://127.0.0.1:{port}"

    async def start(self, supervisor: int | None = None, *more: str) -> trio.Process:
        environment = dict(os.environ)
        if supervisor is not None:
            environment["LUNANEXA_SUPERVISOR_FD"] = str(supervisor)
        return await trio.lowlevel.open_process(
            self.command(
                "run", "--controller", self.url, "--token-file", str(self.token_file), "--log-format", "json", *more
            ),
            env=environment,
            stdin=subprocess.DEVNULL,
            pass_fds=() if supervisor is None else (supervisor,),
        )

    async def ask(self, *words: str) -> tuple[int, Any, str]:
        """One command to its end: status, its JSON document, and what it says of errors."""
        done = await trio.run_process(
            self.command(*words, "-o", "json"), capture_stdout=True, capture_stderr=True, check=False
        )
        return done.returncode, json.loads(done.stdout or b"null"), done.stderr.decode()

    def command(self, name: str, *words: str) -> list[str]:
        module = [sys.executable, "-m", "lunanexa_apps.node.main"]
        return [*module, name, "--data-dir", str(self.directory), *words]


@asynccontextmanager
async def controller_and_node(directory: Path) -> AsyncIterator[tuple[TinyController, Node]]:
    """A small controller on a real socket, and a node that may be started; no engine is left behind."""
    clock = SystemClock()
    keys = LocalFleetKeys(directory / "keys", clock)
    controller = TinyController(keys, Ed25519Verifier(), clock)
    controller.desire(assignment(binary=ENGINE))
    credentials = TlsCredentials(None)
    controller.serve_as(credentials)
    faults: list[BaseException] = []
    with trio.fail_after(LIMIT_S):
        async with trio.open_nursery() as nursery:
            listeners = await open_listeners("127.0.0.1", 0)
            port = addresses(listeners)[0][1]
            secured = [TlsListener(one, credentials, demand=False, on_fault=faults.append) for one in listeners]
            serve = partial(serve_lean, controller, secured, render_error=render_error, on_fault=faults.append)
            await nursery.start(serve)
            try:
                yield controller, Node(directory / "data", port, controller.mint())
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


async def test_two_agents_on_one_machine_leave_each_other_alone(tmp_path: Path) -> None:
    """One dies; meanwhile the other stops what it has, and starts again."""
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    async with controller_and_node(here) as (ours, our_node), controller_and_node(there) as (theirs, their_node):
        agent, other = await our_node.start(), await their_node.start()
        first = await ready(ours)
        await ready(theirs)
        agent.kill()
        await agent.wait()
        theirs.desire()
        await theirs.until_state(ReplicaState.ABSENT)
        other.send_signal(signal.SIGTERM)
        assert await other.wait() == 0
        boots = {beat.boot for beat in theirs.heartbeats}
        other = await their_node.start()
        await theirs.until(lambda: {beat.boot for beat in theirs.heartbeats} != boots)
        assert first.pid is not None
        assert _lives(first.pid)
        boots = {beat.boot for beat in ours.heartbeats}
        agent = await our_node.start()
        await ours.until(lambda: {beat.boot for beat in ours.heartbeats} != boots)
        again = await ready(ours)
        assert (again.start, again.pid) == (first.start, first.pid)
        for process in (agent, other):
            process.send_signal(signal.SIGTERM)
            assert await process.wait() == 0


async def test_a_node_is_enrolled_examined_and_run_for_one_round(tmp_path: Path) -> None:
    async with controller_and_node(tmp_path) as (controller, node):
        status, document, _ = await node.ask("doctor")
        assert (status, document["ok"]) == (1, False)
        assert not node.directory.exists()
        token = ("--token-file", str(node.token_file))
        status, document, errors = await node.ask("enroll", "--controller", node.url, *token)
        assert status == 0, errors
        assert (document["node"], document["data_address"]) == (NODE, None)
        assert not node.token_file.exists()
        assert {path.stat().st_mode & 0o077 for path in (node.directory / "node" / "identity").iterdir()} == {0}
        status, document, errors = await node.ask("run", "--once")
        assert status == 0, errors
        assert [one["state"] for one in document["replicas"]] == ["ready"]
        report = await ready(controller)
        assert document["replicas"][0]["start"] == report.start
        status, document, errors = await node.ask("doctor")
        assert status == 0, (document, errors)
        # The engine outlived the round, and the next one finds it.
        status, document, errors = await node.ask("run", "--once")
        assert [one["start"] for one in document["replicas"]] == [report.start]
        controller.desire()
        status, document, errors = await node.ask("run", "--once")
        assert status == 0
        assert report.pid is not None
        assert not _lives(report.pid)


async def test_commands_say_what_is_wrong_and_what_mends_it(tmp_path: Path) -> None:
    async with controller_and_node(tmp_path) as (controller, node):
        token = ("--token-file", str(node.token_file))
        status, _, errors = await node.ask("enroll", "--controller", "http://127.0.0.1:1", *token)
        assert (status, "https://HOST:PORT" in errors) == (2, True)
        status, _, errors = await node.ask("enroll", "--controller", node.url, "--token-file", str(tmp_path / "no"))
        assert (status, "lunanexa node token" in errors) == (78, True)
        status, _, errors = await node.ask("enroll", "--controller", "https://127.0.0.1:1", *token)
        assert (status, "--node-listen" in errors) == (69, True)
        good = node.token_file.read_text()
        node.token_file.write_text(good[:-9] + "AAAA" + good[-5:])
        status, _, errors = await node.ask("enroll", "--controller", node.url, *token)
        assert (status, "a part of it is missing or was changed" in errors) == (78, True)
        assert good not in errors
        stranger = LocalFleetKeys(tmp_path / "stranger", SystemClock())
        elsewhere = TinyController(stranger, Ed25519Verifier(), SystemClock())
        node.token_file.write_text(elsewhere.mint().line())
        status, _, errors = await node.ask("enroll", "--controller", node.url, *token)
        assert (status, "nothing of the token was sent" in errors) == (1, True)
        assert not controller.enrolments
        status, document, _ = await node.ask("check-config", *token)
        assert status == 78
        assert [one["step"] for one in document["steps"] if one["verdict"] == "problem"] == ["--controller"]
        status, _, errors = await node.ask("run", "--once")
        assert (status, "lunanexa-node enroll" in errors) == (78, True)


async def test_the_owners_policy_has_the_last_word(tmp_path: Path) -> None:
    policy = tmp_path / "node-policy.toml"
    async with controller_and_node(tmp_path) as (controller, node):
        policy.write_text('programs = ["/usr/bin/"]\n')
        policy.chmod(0o666)
        status, document, _ = await node.ask("check-config", "--policy", str(policy))
        assert status == 78
        (found,) = [one for one in document["steps"] if one["step"] == "policy"]
        assert f"chmod go-w {policy}" in found["found"]
        agent = await node.start(None, "--policy", str(policy))
        assert await agent.wait() == 78
        assert not controller.enrolments
        policy.chmod(0o644)
        agent = await node.start(None, "--policy", str(policy))
        await controller.until(lambda: controller.heartbeats and controller.heartbeats[-1].refused)
        assert [one.refusal for one in controller.heartbeats[-1].refused] == ["policy_program"]
        agent.send_signal(signal.SIGTERM)
        assert await agent.wait() == 0
        policy.write_text(f'programs = ["{ENGINE}"]\n')
        status, document, errors = await node.ask("run", "--once", "--policy", str(policy))
        assert status == 0, errors
        assert [one["state"] for one in document["replicas"]] == ["ready"]
        # A stricter one stops what runs.
        policy.write_text("replicas = 0\n")
        status, document, errors = await node.ask("run", "--once", "--policy", str(policy))
        assert status == 1, errors
        # The controller is told that it is gone, before the round's end or with it. What was told and answered is
        # forgotten, and the document may list it no more.
        told = [one.state for beat in controller.heartbeats for one in beat.replicas]
        assert told[-1:] == [ReplicaState.ABSENT], (told, errors)
        assert {one["state"] for one in document["replicas"]} <= {"absent"}
        assert [one["refusal"] for one in document["refused"]] == ["policy_replicas"]
        status, document, _ = await node.ask("doctor", "--policy", str(policy))
        assert {"step": "policy", "verdict": "ok", "found": f"{policy}: replicas 0", "fix": None} in document["steps"]


async def test_commands_go_beside_an_agent_that_runs(tmp_path: Path) -> None:
    async with controller_and_node(tmp_path) as (controller, node):
        agent = await node.start()
        await ready(controller)
        status, document, errors = await node.ask("doctor")
        assert status == 0, (document, errors)
        assert "lunanexa-node (pid " in json.dumps(document)
        status, _, errors = await node.ask("run", "--once")
        assert (status, "runs on it" in errors) == (75, True)
        node.token_file.write_text(controller.mint().line())
        status, _, errors = await node.ask("enroll", "--controller", node.url, "--token-file", str(node.token_file))
        assert (status, "stop it first" in errors) == (75, True)
        agent.send_signal(signal.SIGTERM)
        assert await agent.wait() == 0


async def test_a_gateway_reaches_an_engine_through_the_data_listener_and_nobody_else_does(tmp_path: Path) -> None:
    async with controller_and_node(tmp_path) as (controller, node):
        (free,) = await open_listeners("127.0.0.1", 0)
        port = addresses([free])[0][1]
        await free.aclose()
        agent = await node.start(None, "--data-address", f"127.0.0.1:{port}")
        report = await ready(controller)
        assert controller.data_address == f"127.0.0.1:{port}"
        identity = node_identity(CLUSTER, NODE).uri
        gateway, other = TlsCredentials(None), TlsCredentials(None)
        controller.serve_as(gateway, party=gateway_identity)
        controller.serve_as(other)
        request = HttpRequest(
            method="GET",
            host="127.0.0.1",
            port=port,
            target="/health",
            tls=TlsPeer(identity=identity, server_name=report.start),
        )
        async with H11HttpClient(credentials=gateway).exchange(request) as response:
            assert response.status == 200
        elsewhere = attrs.evolve(request, tls=TlsPeer(identity=identity, server_name="start_1_nobodys"))
        for credentials, asked in ((gateway, elsewhere), (other, request)):
            with pytest.raises(PortUnavailable):
                async with H11HttpClient(credentials=credentials).exchange(asked):
                    pass
        wrong = attrs.evolve(request, tls=TlsPeer(identity=identity + "x", server_name=report.start))
        with pytest.raises(HttpUnreachable):
            async with H11HttpClient(credentials=gateway).exchange(wrong):
                pass
        agent.send_signal(signal.SIGTERM)
        assert await agent.wait() == 0
