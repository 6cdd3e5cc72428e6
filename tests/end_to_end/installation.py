"""One installation as a user has it: a ``lunanexa up`` of its own with real processes and sockets.

Nothing here decides by time: every wait is for a condition, under a limit that only a fault reaches.
"""

import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import attrs
import httpx2
import trio

from lunanexa_adapters.files.snapshots import LocalSnapshots
from lunanexa_adapters.postgres.address import parse_address
from lunanexa_adapters.postgres.journal import open_postgres_journal
from lunanexa_adapters.sqlite.journal_reader import open_sqlite_journal_reader
from lunanexa_apps.installation import STORE
from lunanexa_simulation.real.proc import processes_that_hold
from tests.end_to_end.processes import is_alive, parent_of
from tests.replayed import Told, check_store

T = TypeVar("T")

LIMIT_S = 120
LUNANEXA = Path(sys.executable).with_name("lunanexa")
ENGINE = Path(sys.executable).with_name("lunanexa-engine")
QUESTION = {"role": "user", "content": "What does the sea keep?"}


@attrs.frozen(kw_only=True)
class Ready:
    """What the ready file says."""

    base_url: str
    api_key: str
    operator_token: str
    model: str
    models: tuple[str, ...]
    pids: Mapping[str, int | None]

    @property
    def origin(self) -> str:
        return self.base_url.removesuffix("/v1")

    def pid(self, name: str) -> int:
        pid = self.pids[name]
        assert pid is not None, f"no {name} runs"
        return pid


def environment(folder: Path, **more: str) -> dict[str, str]:
    """This process's, without settings of its user's own LunaNexa."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("LUNANEXA_")}
    folders = {"XDG_CONFIG_HOME": str(folder / "config"), "XDG_DATA_HOME": str(folder / "share")}
    return inherited | folders | {"NO_COLOR": "1", "COLUMNS": "200"} | more


class Up:
    """One run of ``lunanexa up`` in ``folder``, in a session of its own as a terminal gives it one.

    A later run in the same folder finds the data directory of the one before it.
    Made by :func:`running`, :func:`started` and :func:`served`, which check its store afterwards.
    """

    def __init__(self, folder: Path, *arguments: str, **variables: str) -> None:
        self.folder = folder
        self._store = variables.get("LUNANEXA_STORE", "")
        self._told: set[Told] = set()
        self.data_dir = folder / "data"
        self.ready_file = folder / "ready.json"
        self._output, self._errors = folder / "stdout", folder / "stderr"
        self._variables = variables
        self._command = [
            str(LUNANEXA),
            "up",
            *("--data-dir", str(self.data_dir), "--listen", "127.0.0.1:0", "--ready-file", str(self.ready_file)),
            *arguments,
        ]
        self.start()

    def start(self) -> None:
        """Also again, when the process is gone."""
        with self._output.open("wb") as output, self._errors.open("wb") as errors:
            self.process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                env=environment(self.folder, **self._variables),
                start_new_session=True,
            )

    @property
    def output(self) -> str:
        return self._output.read_text()

    @property
    def errors(self) -> str:
        return self._errors.read_text()

    def read_ready(self) -> Ready | None:
        """The ready file, if this run wrote it: a killed predecessor leaves one behind."""
        try:
            ready = Ready(**json.loads(self.ready_file.read_bytes()))
        except FileNotFoundError:
            return None
        controller = ready.pids["controller"]
        return ready if controller is not None and parent_of(controller) == self.process.pid else None

    @property
    def ready(self) -> Ready:
        ready = self.read_ready()
        assert ready is not None, "there is no ready file"
        return ready

    async def wait_ready(self) -> Ready:
        """Returns when the first call would succeed and the user was told so."""
        await self.until(lambda: "Try it:" in self.output, "the announcement")
        return await self.until(self.read_ready, "the ready file")

    async def until(self, condition: Callable[[], T | None], what: str, *, running: bool = True) -> T:
        """What ``condition`` returns, once that is truthy. Fails with all that was said when it never is."""
        with trio.move_on_after(LIMIT_S):
            while True:
                ended = running and self.process.poll() is not None
                found = condition()
                if found:
                    return found
                if ended:
                    break
                await trio.sleep(0.02)
        raise AssertionError(
            f"{what} did not come; up's status: {self.process.poll()}\n{self.output}{self.errors}{self.engine_log}"
        )

    @property
    def engine_log(self) -> str:
        logs = sorted((self.data_dir / "node").glob("**/*.log"))
        return "".join(f"--- {log.name}\n{log.read_text(errors='replace')}" for log in logs)

    def interrupt(self) -> None:
        """What Ctrl-C does: the whole foreground process group gets the signal."""
        self.note_state()
        os.killpg(self.process.pid, signal.SIGINT)

    async def wait_end(self) -> int:
        """The exit status; nothing of the run is left then."""
        await self.until(lambda: self.process.poll() is not None, "the end", running=False)
        assert not self.left(), (self.left(), self.errors)
        assert not self.ready_file.exists()
        return self.process.returncode

    async def stop(self) -> None:
        """Ctrl-C, and what must follow of it."""
        self.interrupt()
        status = await self.wait_end()
        assert status == 0, (status, self.errors)
        assert self._told, "the controller said nothing of its state"

    def left(self) -> dict[int, str]:
        """The processes that still hold anything below the folder, with their command lines."""
        return {pid: line for pid, line in processes_that_hold(self.folder).items() if pid != os.getpid()}

    def end_all(self) -> None:
        """Leaves nothing behind, whatever went wrong."""
        self.process.kill()
        self.process.wait()
        for pid in self.left():
            os.kill(pid, signal.SIGKILL)

    def note_state(self) -> None:
        """Has the controller, if one serves, say what its state is, for :meth:`check_replay`."""
        ready = self.read_ready() if self.process.poll() is None else None
        if ready is not None:
            self._told |= told_by(ready)

    async def check_replay(self) -> None:
        """After the end of all processes."""
        await check_store_in([self.data_dir], self._store, self._told)


@asynccontextmanager
async def started(folder: Path, *arguments: str, **variables: str) -> AsyncIterator[Up]:
    """An :class:`Up`. The test stops it as it sees fit; what is left at the end is killed."""
    up = Up(folder, *arguments, **variables)
    try:
        yield up
        up.note_state()
    finally:
        up.end_all()
    await up.check_replay()


@asynccontextmanager
async def running(folder: Path, *arguments: str, **variables: str) -> AsyncIterator[Up]:
    """As :func:`started`, once it serves."""
    async with started(folder, *arguments, **variables) as up:
        await up.wait_ready()
        yield up


@contextmanager
def served(folder: Path) -> Iterator[Up]:
    """One that serves, for several tests; that it ends well is part of them, if none of them has ended it."""
    up = Up(folder)
    try:
        trio.run(up.wait_ready)
        yield up
        if up.process.poll() is None:
            trio.run(up.stop)
    finally:
        up.end_all()
    trio.run(up.check_replay)


def engine_with(folder: Path, *options: str) -> tuple[str, ...]:
    """Options for ``up`` that serve a reference engine with options that ``up`` itself does not have."""
    program = folder / "engine-with-options"
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(str(ENGINE))} "$@" {shlex.join(options)}\n')
    program.chmod(0o700)
    return "--engine", "reference", "--engine-binary", str(program)


async def lunanexa(folder: Path, *arguments: str, **variables: str) -> "subprocess.CompletedProcess[bytes]":
    """One command of the program, run to its end."""
    with trio.fail_after(LIMIT_S):
        return await trio.run_process(
            [str(LUNANEXA), *arguments],
            capture_stdout=True,
            capture_stderr=True,
            check=False,
            env=environment(folder, **variables),
        )


def status_of(ready: Ready) -> dict[str, Any]:
    """The status document."""
    answer = httpx2.get(
        f"{ready.origin}/admin/v1/status", headers={"authorization": f"Bearer {ready.operator_token}"}, timeout=LIMIT_S
    )
    answer.raise_for_status()
    document: dict[str, Any] = answer.json()
    return document


def told_by(ready: Ready) -> set[Told]:
    """What the controller says of its state; nothing if it can't be asked, or has not read its store yet."""
    try:
        answer = httpx2.get(
            f"{ready.origin}/admin/v1/journal/state",
            headers={"authorization": f"Bearer {ready.operator_token}"},
            timeout=LIMIT_S,
        )
    except httpx2.TransportError:
        return set()
    assert answer.status_code in (200, 503), (answer.status_code, answer.text)
    document = answer.json()
    return {Told(document["sequence"], document["digest"])} if answer.status_code == 200 else set()


async def check_store_in(data_dirs: Iterable[Path], store: str, told: Iterable[Told]) -> None:
    """Checks the one store of these controllers, of which none runs any more: that at the URL ``store``, or if there is
    no URL that in the data directory."""
    folders = list(data_dirs)
    snapshots = [LocalSnapshots(folder / "controller" / "snapshots") for folder in folders]
    opened = open_postgres_journal(parse_address(store)) if store else open_sqlite_journal_reader(folders[0] / STORE)
    async with opened as journal:
        await check_store(journal, set(told), snapshots)


def receipt_of(ready: Ready, workload: str) -> dict[str, Any]:
    """The receipt of one request."""
    found = [receipt for receipt in status_of(ready)["receipts"] if receipt["workload"] == workload]
    assert len(found) == 1, (workload, found)
    receipt: dict[str, Any] = found[0]
    return receipt


def ask(ready: Ready) -> httpx2.Response:
    """A short chat."""
    return httpx2.post(
        f"{ready.base_url}/chat/completions",
        headers={"authorization": f"Bearer {ready.api_key}"},
        json={"model": ready.model, "messages": [QUESTION], "max_tokens": 4, "seed": 1},
        timeout=LIMIT_S,
    )


def answers(ready: Ready) -> bool:
    """Whether a call succeeds now. Anything but an answer or an honest 'not now' fails the test."""
    try:
        answer = ask(ready)
    except httpx2.TransportError:
        return False
    assert answer.status_code in (200, 502, 503), (answer.status_code, answer.text)
    return answer.status_code == 200


@attrs.frozen
class HeldStream:
    """A streamed answer that has begun; nothing reads it but the test."""

    workload: str
    lines: AsyncIterator[str]
    first: str

    async def rest(self) -> list[str]:
        """All events from the first one to the last, or to where the stream was cut."""
        events = [self.first]
        with trio.fail_after(LIMIT_S), contextlib.suppress(httpx2.TransportError):
            async for line in self.lines:
                events += [line] if line else []
        return events


@asynccontextmanager
async def held_stream(ready: Ready, *, max_tokens: int) -> AsyncIterator[HeldStream]:
    """A stream of which the first event was read."""
    body = {"model": ready.model, "messages": [QUESTION], "max_tokens": max_tokens, "ignore_eos": True, "stream": True}
    async with (
        httpx2.AsyncClient(headers={"authorization": f"Bearer {ready.api_key}"}, timeout=LIMIT_S) as client,
        client.stream("POST", f"{ready.base_url}/chat/completions", json=body) as answer,
    ):
        assert answer.status_code == 200, answer.status_code
        lines = aiter(answer.aiter_lines())
        first = await anext(lines)
        yield HeldStream(answer.headers["x-lunanexa-workload-id"], lines, first)


def gone(*pids: int) -> bool:
    """Whether none of these processes runs any more."""
    return not any(is_alive(pid) for pid in pids)
