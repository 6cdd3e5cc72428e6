"""What only a real process of a replay shows: what is seen of it, and how it ends."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from lunanexa_adapters.children.replays import ChildReplays
from lunanexa_ports.errors import PortFault, PortUnavailable

SECRET = "postgresql://someone:planted@nowhere/none"
HELD = "import os, sys; sys.stdin.readline(); open(sys.argv[1], 'w').write(str(os.getpid())); sys.stdin.read()"


def replays(*program: str) -> ChildReplays:
    return ChildReplays((sys.executable, *program), {"postgresql": SECRET, "snapshots": "/nowhere"}, {"MARK": "5"})


async def pid_in(file: Path) -> int:
    with trio.fail_after(60):
        while not (told := _text(file)):
            await trio.sleep(0.01)
    return int(told)


def _text(file: Path) -> str:
    return file.read_text() if file.exists() else ""


async def _dies(replays: ChildReplays) -> None:
    with pytest.raises(PortUnavailable, match="ended with status -9"):
        await replays.carry(7)


@asynccontextmanager
async def held(file: Path) -> AsyncIterator[int]:
    """The process of a replay that has its order and does not answer."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(replays("-S", "-c", HELD, str(file)).snapshot, 7, "0" * 64)
        yield await pid_in(file)
        nursery.cancel_scope.cancel("seen enough")


async def test_nothing_that_others_may_see_tells_the_store(tmp_path: Path) -> None:
    async with held(tmp_path / "pid") as pid:
        shown = [await trio.Path(f"/proc/{pid}/{name}").read_bytes() for name in ("cmdline", "environ")]
        assert all(b"planted" not in part for part in shown)
        assert b"MARK=5" in shown[1]


async def test_it_gives_way_to_everybody_else(tmp_path: Path) -> None:
    async with held(tmp_path / "pid") as pid:
        assert os.getpriority(os.PRIO_PROCESS, pid) == 19
        assert os.sched_getscheduler(pid) == os.SCHED_IDLE
        assert os.getpgid(pid) == pid


async def test_cancelling_ends_it(tmp_path: Path) -> None:
    async with held(tmp_path / "pid") as pid:
        pass
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def test_its_death_is_unavailable(tmp_path: Path) -> None:
    file = tmp_path / "pid"
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_dies, replays("-S", "-c", HELD, str(file)))
            os.kill(await pid_in(file), signal.SIGKILL)


@pytest.mark.parametrize(
    ("script", "error"),
    [
        ("", PortUnavailable),
        ("print('no answer')", PortUnavailable),
        ("raise SystemExit(3)", PortUnavailable),
        ('print(\'{"said":"kept","text":""}\'); raise SystemExit(1)', PortUnavailable),
        ('print(\'{"said":"unavailable","text":"why"}\')', PortUnavailable),
        ('print(\'{"said":"fault","text":"why"}\')', PortFault),
    ],
)
async def test_an_answer_that_is_none(script: str, error: type[Exception]) -> None:
    with trio.fail_after(60), pytest.raises(error):
        await replays("-S", "-c", script).snapshot(7, "0" * 64)


async def test_a_program_that_is_not_there() -> None:
    with pytest.raises(PortUnavailable, match="could be started"):
        await ChildReplays(("/nowhere/python",), {}, {}).snapshot(7, "0" * 64)


@pytest.mark.slow
async def test_it_ends_with_who_ordered_it() -> None:
    """Its server takes the connection and says nothing: the replay would wait."""
    with trio.fail_after(120):
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        url = f"postgresql://u@127.0.0.1:{listener.socket.getsockname()[1]}/d?connect_timeout=600&sslmode=disable"
        order = {"postgresql": url, "snapshots": "/nowhere", "until": 7}
        process = await trio.lowlevel.open_process(
            [sys.executable, "-m", "lunanexa_apps.replayer.main"], stdin=subprocess.PIPE
        )
        assert process.stdin is not None
        await process.stdin.send_all(json.dumps(order).encode() + b"\n")
        async with listener, await listener.accept():
            await process.stdin.aclose()
            assert await process.wait() == 1
