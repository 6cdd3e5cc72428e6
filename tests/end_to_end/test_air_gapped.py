"""A node in a network namespace that has nothing but loopback, directed by bundles alone."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

from lunanexa_simulation.real.proc import processes_that_hold
from tests.end_to_end.controllers import NODE, until
from tests.end_to_end.installation import ENGINE, environment
from tests.end_to_end.machines import why_not

pytestmark = pytest.mark.slow
WHY_NOT = why_not()
LIMIT_S = 60
_ASK = "import sys, urllib.request; sys.stdout.write(urllib.request.urlopen(sys.argv[1], timeout=10).read().decode())"
_LOOPBACK = ("0100007F", "00000000000000000000000001000000", "0000000000000000FFFF00000100007F")
_LISTENS = "0A"
_OUTWARD = ("Ip:OutNoRoutes", "Udp:OutDatagrams", "Ip6OutNoRoutes", "Udp6OutDatagrams")
_TRY = """
import socket
for family, kind, host in (
    (socket.AF_INET, socket.SOCK_STREAM, "192.0.2.1"),
    (socket.AF_INET6, socket.SOCK_STREAM, "2001:db8::1"),
    (socket.AF_INET, socket.SOCK_DGRAM, "127.0.0.1"),
):
    try:
        end = socket.socket(family, kind)
        end.connect((host, 53))
        end.send(b"?")
    except OSError:
        pass
"""


@pytest.fixture
def space() -> Iterator[str]:
    """A namespace without any way out."""
    name = f"lngap{os.getpid() % 100_000}"
    subprocess.run(["ip", "netns", "add", name], check=True)
    subprocess.run(["ip", "-n", name, "link", "set", "lo", "up"], check=True)
    yield name
    subprocess.run(["ip", "netns", "del", name], check=True)


class Site:
    """The node in its namespace, and an operator elsewhere."""

    def __init__(self, folder: Path, space: str) -> None:
        self.folder = folder
        self.space = space
        self.inbox, self.outbox, self.policy = folder / "inbox", folder / "outbox", folder / "node-policy.toml"
        self.inbox.mkdir()
        self.fingerprint = ""

    def tool(self, *arguments: str, status: int = 0) -> str:
        command = [str(NODE), *arguments]
        ended = subprocess.run(command, capture_output=True, check=False, env=environment(self.folder), text=True)
        assert ended.returncode == status, (arguments, ended.returncode, ended.stdout, ended.stderr)
        return ended.stdout

    def make(self, name: str, served_name: str, *options: str) -> Path:
        """A bundle that lies at the operator's."""
        engine = {"driver": "reference", "served_name": served_name, "binary": f"blob:{ENGINE.name}"}
        written = {
            "cluster": "plant-7",
            "node": "edge-1",
            "data_dir": str(self.folder / "data"),
            "deployments": [{"deployment": "tiny", "engine": engine}],
        }
        document, out = self.folder / f"{name}.json", self.folder / "made" / name
        document.write_text(json.dumps(written))
        key = ("--key", str(self.folder / "authority.pem"), "--blob", str(ENGINE))
        shown = self.tool("make-bundle", *key, "--document", str(document), "--out", str(out), *options)
        self.policy.write_text(shown.splitlines()[-1] + "\n")
        return out

    def bring(self, made: Path) -> None:
        shutil.copytree(made, self.inbox / f".{made.name}")
        (self.inbox / f".{made.name}").rename(self.inbox / made.name)

    def start(self) -> "subprocess.Popen[bytes]":
        places = ("--data-dir", str(self.folder / "data"), "--inbox", str(self.inbox), "--outbox", str(self.outbox))
        with (self.folder / "agent.log").open("ab") as log:
            return subprocess.Popen(
                [
                    *("ip", "netns", "exec", self.space, str(NODE), "run", "--air-gapped", *places),
                    *("--policy", str(self.policy), "--log-format", "json", "--heartbeat-ms", "200"),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment(self.folder),
            )

    def newest(self) -> dict[str, Any]:
        shown = json.loads(self.tool("read-outbox", str(self.outbox), "--fingerprint", self.fingerprint, "-o", "json"))
        assert shown["problems"] == {}
        newest: dict[str, Any] = shown["newest"]
        return newest

    def serves(self, served_name: str) -> bool:
        if not self.outbox.is_dir() or not list(self.outbox.glob("report-*.json")):
            return False
        replicas = self.newest()["heartbeat"]["replicas"]
        return any(one["state"] == "ready" and one["served_name"] == served_name for one in replicas)

    def refused(self) -> dict[str, str]:
        return {one["name"]: one["refusal"] for one in self.newest()["refused"]}

    def models(self) -> str:
        """What the engine answers, asked from inside."""
        (replica,) = [one for one in self.newest()["heartbeat"]["replicas"] if one["state"] == "ready"]
        url = f"http://127.0.0.1:{replica['port']}/v1/models"
        command = ["ip", "netns", "exec", self.space, sys.executable, "-c", _ASK, url]
        return subprocess.run(command, capture_output=True, check=True, text=True).stdout


def sockets_out(pid: int) -> list[str]:
    """Lines of the kernel's tables for the process's namespace that tell of more than loopback."""
    found = []
    for table in ("tcp", "tcp6", "udp", "udp6", "raw", "raw6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            local, remote, state = line.split()[1:4]
            ends = [local] if state == _LISTENS else [local, remote]
            if table[:3] != "tcp" or any(end.partition(":")[0] not in _LOOPBACK for end in ends):
                found.append(line)
    return found


def tries_out(space: str) -> int:
    """How often anything in the namespace has tried to send beyond loopback, or anything without a connection, since
    the namespace was made: the kernel counts what it has no route for, and datagrams (proc(5))."""
    shown = subprocess.run(
        ["ip", "netns", "exec", space, "cat", "/proc/net/snmp", "/proc/net/snmp6"],
        capture_output=True,
        check=True,
        text=True,
    ).stdout
    lines = [line.split() for line in shown.splitlines()]
    counts = {line[0]: int(line[1]) for line in lines if len(line) == 2}
    # Of IPv4 a line of names comes before one of values.
    for names, values in zip(lines[0::2], lines[1::2], strict=False):
        if names[0] == values[0]:
            counts |= {names[0] + name: int(value) for name, value in zip(names[1:], values[1:], strict=True)}
    return sum(counts[name] for name in _OUTWARD)


@pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT))
async def test_a_node_without_any_network(tmp_path: Path, space: str) -> None:
    site = Site(tmp_path, space)
    agent: subprocess.Popen[bytes] | None = None
    try:
        with trio.fail_after(LIMIT_S):
            init = ("init", "--air-gapped", "--node", "edge-1", "--data-dir", str(tmp_path / "data"), "-o", "json")
            site.fingerprint = json.loads(site.tool(*init))["fingerprint"]
            first = site.make("0001", "tiny", "--new-key")
            site.bring(first)
            agent = site.start()
            await until(lambda: site.serves("tiny"), "the first bundle's engine")
            assert '"tiny"' in site.models()
            assert sockets_out(agent.pid) == []
            site.bring(site.make("0002", "small", "--after", str(first)))
            await until(lambda: site.serves("small"), "the second bundle's engine")
            assert '"small"' in site.models()
            third = site.make("0003", "large", "--after", str(tmp_path / "made" / "0002"))
            text = (third / "bundle.json").read_text()
            (third / "bundle.json").write_text(text.replace('"large"', '"lards"'))
            site.bring(third)
            site.bring(site.make("again", "other"))
            wanted = {"0003": "bad_signature", "again": "rolled_back"}
            await until(lambda: site.refused() == wanted, "both refusals in the outbox")
            assert '"small"' in site.models()
            assert sockets_out(agent.pid) == []
            agent.send_signal(signal.SIGTERM)
            assert await trio.to_thread.run_sync(agent.wait) == 0
            assert [one["state"] for one in site.newest()["heartbeat"]["replicas"]] == ["absent"]
            assert tries_out(space) == 0, "nothing was tried at any moment"
            await trio.run_process(["ip", "netns", "exec", space, sys.executable, "-c", _TRY])
            assert tries_out(space) == 3, "a try is counted"
    finally:
        for pid in set(processes_that_hold(tmp_path)) - {os.getpid()}:
            os.kill(pid, signal.SIGKILL)
        if agent is not None:
            agent.wait()
