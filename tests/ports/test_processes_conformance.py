"""Both process hosts pass the one suite."""

import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio

from lunanexa_adapters.processes.processes import LinuxProcesses
from lunanexa_ports.conformance import processes
from lunanexa_ports.processes import Processes
from lunanexa_simulation.machine import SimulatedHost
from lunanexa_simulation.process import SimulatedProcess
from lunanexa_simulation.processes import SimulatedProcesses

pytestmark = pytest.mark.thorough

RUNS = "import signal; print('ready', flush=True); signal.pause()"
EXITS = "import sys; print('one\\ntwo\\nthree', flush=True); sys.exit(int(sys.argv[1]))"
STUBBORN = """
import signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print('ready', flush=True)
while True: signal.pause()
"""
LEAVES_A_CHILD = """
import os, signal
if os.fork() == 0:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True: signal.pause()
print('ready', flush=True)
"""
LISTENS = """
import signal, socket, sys
listener = socket.create_server(('127.0.0.1', int(sys.argv[1])))
print('ready', flush=True)
signal.pause()
"""


class LinuxHost(processes.HostUnderTest):
    """This machine, with Python one-liners as programs."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def open(self) -> Processes:
        return LinuxProcesses(intents=self._directory / "intents", logs=self._directory / "logs")

    def working_directory(self) -> str:
        return str(self._directory)

    def runs(self) -> tuple[str, ...]:
        return self._python(RUNS)

    def exits(self, code: int) -> tuple[str, ...]:
        return self._python(EXITS, str(code))

    def stubborn(self) -> tuple[str, ...]:
        return self._python(STUBBORN)

    def leaves_a_child(self) -> tuple[str, ...]:
        return self._python(LEAVES_A_CHILD)

    def listens(self, port: int) -> tuple[str, ...]:
        return self._python(LISTENS, str(port))

    def missing(self) -> tuple[str, ...]:
        return ("/nowhere/at/all",)

    def _python(self, program: str, *arguments: str) -> tuple[str, ...]:
        return (sys.executable, "-I", "-S", "-c", program, *arguments)


async def run_until_terminated(process: SimulatedProcess) -> int:
    process.handles_terminate = True
    process.print("ready")
    await process.terminated.wait()
    return 0


async def exit_with(process: SimulatedProcess) -> int:
    for line in ("one", "two", "three"):
        process.print(line)
    return int(process.argv[1])


async def stay(process: SimulatedProcess) -> int:
    process.handles_terminate = True
    process.print("ready")
    await trio.sleep_forever()


async def leave_a_child(process: SimulatedProcess) -> int:
    process.fork(stay)
    return 0


async def listen(process: SimulatedProcess) -> int:
    with process.listening(int(process.argv[1])):
        return await run_until_terminated(process)


class SimulatedHostUnderTest(processes.HostUnderTest):
    """The simulated machine; each opening kills the view before it."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self._host = SimulatedHost(nursery)
        self._host.programs |= {
            "runs": run_until_terminated,
            "exits": exit_with,
            "stubborn": stay,
            "leaves": leave_a_child,
            "listens": listen,
        }
        self._views: list[SimulatedProcesses] = []

    def open(self) -> Processes:
        self._views.append(SimulatedProcesses(self._host))
        return self._views[-1]

    def working_directory(self) -> str:
        return "/"

    def runs(self) -> tuple[str, ...]:
        return ("runs",)

    def exits(self, code: int) -> tuple[str, ...]:
        return ("exits", str(code))

    def stubborn(self) -> tuple[str, ...]:
        return ("stubborn",)

    def leaves_a_child(self) -> tuple[str, ...]:
        return ("leaves",)

    def listens(self, port: int) -> tuple[str, ...]:
        return ("listens", str(port))

    def missing(self) -> tuple[str, ...]:
        return ("missing",)


@pytest.fixture(params=["simulated", "linux"])
async def host(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[processes.HostUnderTest]:
    if request.param == "linux":
        yield LinuxHost(tmp_path)
        return
    async with trio.open_nursery() as nursery:
        yield SimulatedHostUnderTest(nursery)
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("check", processes.CHECKS, ids=lambda check: check.__name__)
async def test_processes(check: processes.Check, host: processes.HostUnderTest) -> None:
    with trio.fail_after(processes.DEADLINE_S):
        await check(host)
