"""``lunanexa-sim processes``: the real command with real processes, and what it does when something is wrong."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

import attrs
import jsonschema_rs
import pytest
import trio

from lunanexa_adapters.children.children import LinuxChildren
from lunanexa_adapters.http_client.http_client import H11HttpClient
from lunanexa_adapters.sqlite.journal_reader import open_sqlite_journal_reader
from lunanexa_ports.http_client import HttpRequest, HttpResponse
from lunanexa_simulation.cli.program import start
from lunanexa_simulation.cli.tools import INTERRUPTED, Tools
from lunanexa_simulation.documents import simulation_schema
from lunanexa_simulation.real.proc import engines_in, ours_that_hold
from lunanexa_simulation.real.tools import RealTools
from lunanexa_simulation.serving.tools import ServeTools
from tests.end_to_end.controllers import until
from tests.end_to_end.installation import environment

T = TypeVar("T")
pytestmark = pytest.mark.slow
PROGRAM: Final = Path(sys.executable).with_name("lunanexa-sim")
LIMIT_S: Final = 600


def started(folder: Path, *arguments: str) -> "subprocess.Popen[str]":
    """The command, with its temporary files in ``folder``."""
    return subprocess.Popen(
        [str(PROGRAM), "processes", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment(folder, TMPDIR=str(folder)),
        start_new_session=True,
    )


def ended(process: "subprocess.Popen[str]") -> str:
    told, _ = process.communicate(timeout=LIMIT_S)
    print(told)
    return told


def document_in(path: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(path.read_bytes())
    jsonschema_rs.validator_for(simulation_schema()).validate(document)
    return document


def test_a_fleet_of_processes_outlives_all_kills(tmp_path: Path) -> None:
    place = tmp_path / "run.json"
    process = started(tmp_path, "--seed", "11", "--json", str(place))
    told = ended(process)
    assert process.returncode == 0, told
    document = document_in(place)
    assert (document["seed"], document["scenario"], document["verdict"]) == (11, "processes", "held")
    assert (document["digest"], document["hardware_performance_validated"], document["folder"]) == (None, False, None)
    assert {check["verdict"] for check in document["checks"]} == {"held"}
    strikes = [one["told"] for one in document["mishaps"]]
    assert len(strikes) == 5
    checks = [check["name"] for check in document["checks"]]
    for strike in strikes:
        assert any(strike in name and "all is routable again" in name for name in checks)
    assert document["happened"]["answer whole"] > 20
    assert (document["happened"]["strike kill -9"], document["happened"]["strike SIGSTOP"]) == (4, 1)
    assert list(tmp_path.iterdir()) == [place], "nothing is left"


def ready_of(folder: Path) -> Mapping[str, Any] | None:
    found = list(folder.glob("**/ready.json"))
    return json.loads(found[0].read_bytes()) if found else None


async def test_a_process_that_dies_by_itself_is_told_with_its_log(tmp_path: Path) -> None:
    place, kept = tmp_path / "run.json", tmp_path / "kept"
    process = started(tmp_path, "--nodes", "1", "--keep-folder", str(kept), "--json", str(place))
    facts = await until(lambda: ready_of(kept), "the controller's ready file")
    os.kill(facts["pid"], signal.SIGKILL)
    told = await trio.to_thread.run_sync(ended, process)
    assert process.returncode == 3
    document = document_in(place)
    assert (document["verdict"], document["problem"]) == ("crashed", "controller ended by itself, with status -9")
    assert [log["process"] for log in document["logs"]] == ["controller"]
    assert '"leading"' in " ".join(document["logs"][0]["lines"])
    assert f"stores and logs, with secrets: {kept}" in told
    assert "again: lunanexa-sim processes --seed 1 --nodes 1 --rounds 1" in told
    assert (kept / "controller.log").is_file()
    assert not ours_that_hold(tmp_path)


async def test_an_interrupted_run_leaves_nothing(tmp_path: Path) -> None:
    """Also where it is told again while it cleans up."""
    process = started(tmp_path, "--nodes", "2")
    await until(lambda: ready_of(tmp_path), "the controller's ready file")
    await until(lambda: len(ours_that_hold(tmp_path)) > 2, "controller and agents")
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        process.send_signal(number)
    told = await trio.to_thread.run_sync(ended, process)
    assert process.returncode == INTERRUPTED
    assert "Traceback" not in told
    assert not ours_that_hold(tmp_path)
    assert os.listdir(tmp_path) == []


async def test_a_run_that_is_killed_leaves_nothing(tmp_path: Path) -> None:
    """Also where one of its processes is stopped and notices nothing."""
    process = started(tmp_path, "--nodes", "1")
    await until(lambda: engines_below(tmp_path), "the engine")
    (agent,) = (pid for pid, line in ours_that_hold(tmp_path).items() if "lunanexa_apps.node.main" in line)
    os.kill(agent, signal.SIGSTOP)
    process.kill()
    await trio.to_thread.run_sync(ended, process)  # The reaper has its output too.
    assert not ours_that_hold(tmp_path)
    assert os.listdir(tmp_path) == []


def engines_below(folder: Path) -> list[int]:
    return [pid for node in folder.glob("**/loop-1") for pid in engines_in(node)]


def test_a_folder_that_holds_something_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("x")
    process = started(tmp_path, "--keep-folder", str(tmp_path))
    assert "name a new folder" in ended(process)
    assert process.returncode == 64
    assert [one.name for one in tmp_path.iterdir()] == ["mine"]


@attrs.frozen
class _Changed:
    """A response whose body says something else: as a relay that changes bytes would."""

    inner: HttpResponse

    @property
    def status(self) -> int:
        return self.inner.status

    @property
    def headers(self) -> Any:
        return self.inner.headers

    async def read(self, limit: int) -> bytes:
        return (await self.inner.read(limit)).replace(b'"content":"', b'"content":"!')

    async def chunks(self) -> AsyncIterator[Any]:
        async for chunk in self.inner.chunks():
            yield bytes(chunk).replace(b'"content":"', b'"content":"!')


class ChangingClient(H11HttpClient):
    """Between callers and front; the fleet itself does not use it."""

    def exchange(self, request: HttpRequest) -> AbstractAsyncContextManager[HttpResponse]:
        return self._changed(request) if request.target.startswith("/v1/chat") else super().exchange(request)

    @asynccontextmanager
    async def _changed(self, request: HttpRequest) -> AsyncIterator[HttpResponse]:
        async with super().exchange(request) as response:
            yield _Changed(response)


def loop(function: Callable[[], Awaitable[T]], /, *, clock: trio.abc.Clock | None = None) -> T:
    return trio.run(function, clock=clock)


def no_serve() -> ServeTools:
    raise AssertionError("nothing of this is asked for")


def test_an_answer_that_is_not_the_engines_breaks_safety(tmp_path: Path) -> None:
    place = tmp_path / "run.json"
    tools = RealTools(children=LinuxChildren, http=ChangingClient, open_journal=open_sqlite_journal_reader)
    arguments = ["processes", "--nodes", "1", "--rounds", "0", "--json", str(place)]
    code = start([*arguments, "--keep-folder", str(tmp_path / "kept")], Tools(loop, lambda: tools, serve=no_serve))
    assert code == 1
    document = document_in(place)
    assert document["verdict"] == "safety_broken"
    assert document["problem"].startswith("what came is the engine's answer or its beginning: ")
    # Callers beside each other may find it together.
    assert {check["name"] for check in document["checks"] if check["verdict"] == "broken"} == {
        "what came is the engine's answer or its beginning"
    }
    assert not ours_that_hold(tmp_path)
