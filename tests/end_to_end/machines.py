"""A fleet of several machines on one: each node agent in a network namespace of its own, on a wire of its own to the
controller, which can be cut in either direction without either side being told.

Needs root and iproute2, as ``.ci/run`` has them.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import attrs
import httpx2
import trio

from lunanexa_simulation.real.proc import processes_that_hold
from tests.end_to_end.controllers import CONTROLLER, NODE, tell_logs, until
from tests.end_to_end.installation import (
    ENGINE,
    LIMIT_S,
    Ready,
    check_store_in,
    environment,
    lunanexa,
    status_of,
    told_by,
)
from tests.replayed import Told

DOOR_PORT: Final = 8410
_NOBODY: Final = "02:00:00:00:00:01"
"""A hardware address that nobody has: what is sent to it is lost in silence."""


def why_not() -> str | None:
    """Why there can be no machines here."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    try:
        made = subprocess.run(["ip", "netns", "add", "lunanexa-try"], capture_output=True, check=False)
    except FileNotFoundError:
        return "there is no ip command: apt install iproute2"
    if made.returncode != 0:
        return f"no network namespace can be made: {made.stderr.decode().strip()}"
    _ip("netns", "del", "lunanexa-try")
    return None


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


class Machine:
    """One namespace, its wire, and the agent in it."""

    def __init__(self, folder: Path, number: int) -> None:
        self.name = f"spark-{number}"
        self.data_dir = folder / self.name
        self.log = folder / f"{self.name}.log"
        self.process: subprocess.Popen[bytes] | None = None
        tag = f"{os.getpid() % 10_000:04}"
        self._space, self._here, self._there = f"ln{tag}-{number}", f"ln{tag}h{number}", f"ln{tag}n{number}"
        net = f"10.213.{os.getpid() % 250}"
        self.controller, self.address = f"{net}.{4 * number + 1}", f"{net}.{4 * number + 2}"
        self._folder = folder

    def plug_in(self) -> None:
        _ip("netns", "add", self._space)
        _ip("link", "add", self._here, "type", "veth", "peer", "name", self._there, "netns", self._space)
        _ip("addr", "add", f"{self.controller}/30", "dev", self._here)
        _ip("link", "set", self._here, "up")
        for step in (
            ("addr", "add", f"{self.address}/30", "dev", self._there),
            ("link", "set", self._there, "up"),
            ("link", "set", "lo", "up"),
        ):
            _ip("-n", self._space, *step)

    def unplug(self) -> None:
        subprocess.run(["ip", "netns", "del", self._space], capture_output=True, check=False)
        subprocess.run(["ip", "link", "del", self._here], capture_output=True, check=False)

    def cut(self, *, to_node: bool = False, from_node: bool = False) -> None:
        """From now on nothing arrives that goes to the node, or comes from it."""
        if to_node:
            _ip("neigh", "replace", self.address, "dev", self._here, "lladdr", _NOBODY, "nud", "permanent")
        if from_node:
            self._in("neigh", "replace", self.controller, "dev", self._there, "lladdr", _NOBODY, "nud", "permanent")

    def heal(self) -> None:
        subprocess.run(["ip", "neigh", "del", self.address, "dev", self._here], capture_output=True, check=False)
        inside = ["ip", "-n", self._space, "neigh", "del", self.controller, "dev", self._there]
        subprocess.run(inside, capture_output=True, check=False)

    def command(self, *arguments: str) -> list[str]:
        """A command of the node's program, as it is run on this machine."""
        return ["ip", "netns", "exec", self._space, str(NODE), *arguments]

    async def enrol(self, controller_port: int, token_file: Path) -> "subprocess.CompletedProcess[bytes]":
        arguments = ("--controller", f"https://{self.controller}:{controller_port}", "--token-file", str(token_file))
        address = ("--data-address", f"{self.address}:{DOOR_PORT}")
        with trio.fail_after(LIMIT_S):
            return await trio.run_process(
                self.command("enroll", *arguments, *address, "--data-dir", str(self.data_dir)),
                capture_stdout=True,
                capture_stderr=True,
                check=False,
                env=environment(self._folder),
            )

    def start(self) -> None:
        """An agent; engines that an earlier one left are its own."""
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command("run", "--data-dir", str(self.data_dir), "--log-format", "json"),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment(self._folder),
                start_new_session=True,
            )

    def kill(self) -> None:
        """kill -9 of the agent alone."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()
        self.process = None

    def _in(self, *arguments: str) -> None:
        _ip("-n", self._space, *arguments)


@attrs.define(kw_only=True)
class Fleet:
    """A controller outside and its machines."""

    folder: Path
    data_dir: Path
    machines: list[Machine]
    process: "subprocess.Popen[bytes]"
    facts: Mapping[str, Any]
    told: set[Told] = attrs.Factory(set)
    """What the controller said of its state, for the check at the end."""

    def note_state(self) -> None:
        """Has it say so, if it runs."""
        if self.process.poll() is None:
            self.told |= told_by(self.ready)

    @property
    def ready(self) -> Ready:
        return Ready(
            base_url=self.facts["base_url"],
            api_key=self.facts["api_key"],
            operator_token=self.facts["operator_token"],
            model="tiny",
            models=("tiny",),
            pids={"controller": self.process.pid},
        )

    @property
    def node_port(self) -> int:
        return int(self.facts["node_url"].rpartition(":")[2])

    async def operate(self, *arguments: str, status: int = 0) -> Any:
        """A command of an operator, with its JSON answer."""
        ended = await lunanexa(self.folder, *arguments, "--data-dir", str(self.data_dir), "-o", "json")
        assert ended.returncode == status, (arguments, ended.returncode, ended.stdout, ended.stderr)
        return json.loads(ended.stdout)

    async def mint(self, machine: Machine, *options: str) -> Path:
        """A token for a machine, in a file."""
        file = self.folder / f"{machine.name}.token"
        await self.operate("node", "token", machine.name, "--out", str(file), *options)
        return file

    def node(self, machine: Machine) -> dict[str, Any]:
        """What the status says of a machine."""
        found = [one for one in status_of(self.ready)["nodes"] if one["node"] == machine.name]
        assert len(found) == 1, found
        node: dict[str, Any] = found[0]
        return node

    def state_of(self, machine: Machine) -> str:
        return str(self.node(machine)["state"])

    def serving(self, deployment: str) -> dict[str, str]:
        """The start ids that are ready, by node."""
        entry = next(one for one in status_of(self.ready)["deployments"] if one["deployment"] == deployment)
        return {one["node"]: one["start"] for one in entry["replicas"] if one["state"] == "ready"}

    def apply(self, deployment: str, *, replicas: int, itl_ms: int, **more: object) -> None:
        """Deploys the reference engine under an alias of the same name."""
        engine = {"driver": "reference", "served_name": deployment, "binary": str(ENGINE), "slots": 64}
        answer = httpx2.put(
            f"{self.ready.origin}/admin/v1/deployments/{deployment}",
            headers={"authorization": f"Bearer {self.facts['operator_token']}"},
            json={
                "alias": deployment,
                "replicas": replicas,
                "engine": {**engine, "arguments": ["--itl-ms", str(itl_ms)]},
                **more,
            },
            timeout=LIMIT_S,
        )
        assert answer.status_code == 200, answer.text


@asynccontextmanager
async def fleet(folder: Path, count: int) -> AsyncIterator[Fleet]:
    """A controller, and machines that nobody has enrolled. At the end no process is left, and the store is checked."""
    data_dir, ready_file = folder / "controller", folder / "ready.json"
    machines = [Machine(folder, number) for number in range(1, count + 1)]
    process: subprocess.Popen[bytes] | None = None
    told: set[Told] = set()
    try:
        for machine in machines:
            machine.plug_in()
        process = _start_controller(folder, data_dir, ready_file)
        await until(ready_file.exists, "the ready file")
        facts = json.loads(ready_file.read_bytes())
        made = Fleet(folder=folder, data_dir=data_dir, machines=machines, process=process, facts=facts)
        yield made
        await trio.to_thread.run_sync(made.note_state)
        told = made.told
        assert told, "the controller said nothing of its state"
    finally:
        tell_logs(folder)
        for pid in set(processes_that_hold(folder)) - {os.getpid()}:
            os.kill(pid, signal.SIGKILL)
        for one in (process, *(machine.process for machine in machines)):
            if one is not None:
                one.wait()
        for machine in machines:
            machine.unplug()
    await check_store_in([data_dir], "", told)


def _start_controller(folder: Path, data_dir: Path, ready_file: Path) -> "subprocess.Popen[bytes]":
    with (folder / "controller.log").open("ab") as log:
        return subprocess.Popen(
            [
                *(str(CONTROLLER), "--data-dir", str(data_dir), "--listen", "127.0.0.1:0", "--drain-ms", "0"),
                *("--node-listen", "0.0.0.0:0", "--ready-file", str(ready_file), "--log-format", "json"),
            ],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=environment(folder),
            start_new_session=True,
        )


def say(line: str) -> None:
    """For who reads the test's report."""
    print(line, file=sys.stderr)
