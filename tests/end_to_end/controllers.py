"""Controllers that share one PostgreSQL store, and a node with an engine for whoever of them leads: real processes, as
docs/operations/high-availability.md has them."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import httpx2
import trio

from lunanexa_simulation.real.proc import processes_that_hold
from tests.end_to_end.installation import (
    ENGINE,
    LIMIT_S,
    Ready,
    answers,
    check_store_in,
    environment,
    status_of,
    told_by,
)
from tests.replayed import Told

T = TypeVar("T")

CONTROLLER: Final = Path(sys.executable).with_name("lunanexa-controller")
NODE: Final = Path(sys.executable).with_name("lunanexa-node")
MODEL: Final = "tiny"
TOKEN_MS: Final = 20
_POLL_S: Final = 0.02


def free_ports(count: int) -> list[int]:
    """Below those that the system gives to clients: they stay ours while nobody listens."""
    found: list[int] = []
    for port in range(10_000 + os.getpid() % 9_000, 20_000):
        with socket.socket() as free, suppress(OSError):
            free.bind(("127.0.0.1", port))
            found.append(port)
        if len(found) == count:
            return found
    raise OSError("no port is free")


async def until(condition: Callable[[], T | None], what: str, limit_s: float = LIMIT_S) -> T:
    """What ``condition``, which may block, returns once that is truthy."""
    with trio.move_on_after(limit_s):
        while True:
            found = await trio.to_thread.run_sync(condition)
            if found:
                return found
            await trio.sleep(_POLL_S)
    raise AssertionError(f"{what} did not come in {limit_s} s")


class Member:
    """One controller's data directory, and its process while there is one."""

    def __init__(self, folder: Path, name: str, port: int, node_port: int, store: str) -> None:
        self.name = name
        self.node_url = f"https://127.0.0.1:{node_port}"
        self.store = store
        self.data_dir = folder / name
        self.origin = f"http://127.0.0.1:{port}"
        self.process: subprocess.Popen[bytes] | None = None
        self.told: set[Told] = set()
        """What it said of its state, for the check at the end."""
        self._folder = folder
        self._port = port
        self._errors = folder / f"{name}.log"

    def start(self) -> None:
        assert self.process is None
        with self._errors.open("ab") as errors:
            self.process = subprocess.Popen(
                [
                    *(str(CONTROLLER), "--data-dir", str(self.data_dir), "--listen", f"127.0.0.1:{self._port}"),
                    *("--node-listen", self.node_url.removeprefix("https://")),
                    *("--drain-ms", "0", "--log-format", "json"),
                ],
                stdin=subprocess.DEVNULL,
                stdout=errors,
                stderr=errors,
                env=environment(self._folder, LUNANEXA_STORE=self.store),
                start_new_session=True,
            )

    def signal(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    async def end(self, number: int | None = None) -> int:
        """Its exit status, after this signal."""
        assert self.process is not None
        if number == signal.SIGTERM:
            await trio.to_thread.run_sync(self.note_state)
        process, self.process = self.process, None
        if number is not None:
            process.send_signal(number)
        return await trio.to_thread.run_sync(process.wait, LIMIT_S)

    def note_state(self) -> None:
        """Has it say what its state is, led or followed, while it runs."""
        if self.process is not None and self.process.poll() is None:
            self.told |= told_by(self.ready)

    @property
    def secrets(self) -> Path:
        return self.data_dir / "controller" / "secrets"

    def take_secrets_of(self, other: "Member") -> None:
        shutil.copytree(other.secrets, self.secrets)

    def events(self, name: str) -> list[dict[str, Any]]:
        """The lines of this kind in its log."""
        lines = [json.loads(line) for line in self.log.splitlines() if line.startswith("{")]
        return [line for line in lines if line["event"] == name]

    @property
    def log(self) -> str:
        return self._errors.read_text()

    @property
    def ready(self) -> Ready:
        """For whoever asks this controller, whether it leads or not."""
        return Ready(
            base_url=f"{self.origin}/v1",
            api_key=(self.secrets / "api_key").read_text().strip(),
            operator_token=(self.secrets / "operator_token").read_text().strip(),
            model=MODEL,
            models=(MODEL,),
            pids={"controller": None if self.process is None else self.process.pid},
        )

    def blockers(self) -> list[str] | None:
        """Why it is not ready; none while it leads, ``None`` when nothing answers."""
        with suppress(httpx2.TransportError):
            answer = httpx2.get(f"{self.origin}/ready", timeout=LIMIT_S)
            assert answer.status_code in (200, 503), answer.text
            found: list[str] = answer.json()["blockers"]
            return found
        return None

    def leads(self) -> bool:
        return self.blockers() == []

    def follows(self) -> bool:
        return self.blockers() == ["not_leader"]

    def engine(self) -> int | None:
        """The engine's process, once this leader has heard of it."""
        replicas = [one for deployment in status_of(self.ready)["deployments"] for one in deployment["replicas"]]
        return next((one["pid"] for one in replicas if one["state"] == "ready"), None)

    def mint(self, node: str) -> str:
        """An enrolment token for a node."""
        answer = httpx2.post(
            f"{self.origin}/admin/v1/nodes/{node}/token",
            headers={"authorization": f"Bearer {self.ready.operator_token}"},
            json={"loopback": True},
            timeout=LIMIT_S,
        )
        assert answer.status_code == 200, answer.text
        line: str = answer.json()["line"]
        return line

    def deploy(self) -> None:
        """Asks for one slow engine."""
        ready = self.ready
        engine = {"driver": "reference", "served_name": MODEL, "binary": str(ENGINE)}
        answer = httpx2.put(
            f"{self.origin}/admin/v1/deployments/default",
            headers={"authorization": f"Bearer {ready.operator_token}"},
            json={"alias": MODEL, "engine": {**engine, "arguments": ["--itl-ms", str(TOKEN_MS)]}},
            timeout=LIMIT_S,
        )
        assert answer.status_code == 200, answer.text


def start_node(folder: Path, members: Sequence[Member]) -> "subprocess.Popen[bytes]":
    """A node agent that obeys whichever of them leads."""
    data_dir = folder / "node"
    data_dir.mkdir()
    token_file = data_dir / "token"
    token_file.write_text(members[0].mint("local"))
    token_file.chmod(0o600)
    named = [word for member in members for word in ("--controller", member.node_url)]
    told = ["--token-file", str(token_file), "--log-format", "json"]
    with (folder / "node.log").open("ab") as errors:
        return subprocess.Popen(
            [str(NODE), "run", "--data-dir", str(data_dir), *named, *told],
            stdin=subprocess.DEVNULL,
            stdout=errors,
            stderr=errors,
            env=environment(folder),
            start_new_session=True,
        )


def tell_logs(folder: Path) -> None:
    """Pytest shows this of a test that failed."""
    for log in sorted(folder.glob("*.log")):
        print(f"--- {log.name}\n{log.read_text()[-8_000:]}")


def make_members(folder: Path, *stores: str) -> list[Member]:
    """One for each address of the one store."""
    ports = iter(free_ports(2 * len(stores)))
    return [Member(folder, f"c{n}", next(ports), next(ports), store) for n, store in enumerate(stores)]


@asynccontextmanager
async def cleaned_up(folder: Path, members: Sequence[Member]) -> AsyncIterator[None]:
    """Tells what was logged, leaves no process behind, and checks what the store replays to."""
    try:
        yield
        for member in members:
            await trio.to_thread.run_sync(member.note_state)
    finally:
        tell_logs(folder)
        for pid in set(processes_that_hold(folder)) - {os.getpid()}:
            os.kill(pid, signal.SIGKILL)
        for member in members:
            if member.process is not None:
                member.process.wait()
    told = [one for member in members for one in member.told]
    assert told, "no controller said anything of its state"
    await check_store_in([member.data_dir for member in members], members[-1].store, told)


@asynccontextmanager
async def controllers(folder: Path, *stores: str, told: int | None = None) -> AsyncIterator[list[Member]]:
    """A controller for each address of the one store. The first leads and serves, the others follow. Their node is told
    of the first ``told``; ``None``: of all."""
    members = make_members(folder, *stores)
    first, *others = members
    async with cleaned_up(folder, members):
        first.start()
        await until(first.leads, "a leader")
        for other in others:
            other.take_secrets_of(first)
        # In a thread: what it asks the controller may need this process's loop, where the store is behind a proxy.
        node = await trio.to_thread.run_sync(start_node, folder, members[:told])
        try:
            await trio.to_thread.run_sync(first.deploy)
            await until(partial(answers, first.ready), "the first answer")
            for other in others:
                other.start()
            for other in others:
                await until(other.follows, "a follower")
            yield members
        finally:
            node.kill()
            node.wait()
