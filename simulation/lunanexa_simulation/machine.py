"""One simulated machine: its processes outlive the agent, end in every bad way, and their numbers are reused.

A program is found by the first word of a command line. The machine keeps the intents (as a disk would) and the logs.
"""

from collections.abc import Sequence
from typing import Final

import attrs
import trio

from lunanexa_core.ids import BootId, StartId
from lunanexa_ports.processes import ProcessIdentity
from lunanexa_simulation.process import SIGKILL, Program, SimulatedProcess

FIRST_PID: Final = 1_000
FIRST_PORT: Final = 40_000

STRANGER: Final = StartId("stranger")
"""What a process that is none of ours goes by."""


@attrs.define(kw_only=True)
class HostFaults:
    """Switches of a fault plan, read when they matter."""

    spawn_failures: int = 0
    """So many of the next starts fail."""
    spawn_ms: int = 0
    """How long a launcher takes before it records its identity."""
    ignore_terminate: bool = False
    """No program ends by SIGTERM."""
    linger_ms: int = 0
    """How long a killed process stays in the kernel's hands before it is gone."""
    resident_mib: int | None = 64
    """What each process holds beside what it leaks; ``None``: nobody can read it."""
    release_ms: int = 0
    """How long the machine takes to have the memory of a process back that is gone."""


class SimulatedHost:
    """A machine. ``nursery`` carries its processes and must outlive every agent on it."""

    def __init__(self, nursery: trio.Nursery, name: str = "host", *, first_port: int = FIRST_PORT) -> None:
        self.faults = HostFaults()
        self.programs: dict[str, Program] = {}
        self.logs: dict[str, list[str]] = {}
        self.listeners: dict[int, ProcessIdentity] = {}
        self.intents: dict[StartId, ProcessIdentity | None] = {}
        """Per start id who took it; ``None``: nobody yet."""
        self.processes: list[SimulatedProcess] = []
        self.nursery = nursery
        self._releasing: set[SimulatedProcess] = set()
        self._name = name
        self._boots = 1
        self._pids = FIRST_PID
        self._next_port = first_port

    @property
    def boot(self) -> BootId:
        return BootId(f"boot_{self._name}_{self._boots}")

    def next_identity(self) -> ProcessIdentity:
        self._pids += 1
        return ProcessIdentity(boot=self.boot, pid=self._pids, start_ticks=round(trio.current_time() * 100))

    def take_port(self) -> int:
        self._next_port += 1
        return self._next_port

    def run(self, process: SimulatedProcess, program: Program) -> None:
        self.processes = [other for other in self.processes if not other.ended.is_set()]
        self.processes.append(process)
        self.nursery.start_soon(process.play, program, name=f"{self._name} {process.argv[0]} {process.start}")

    def living(self, start: StartId | None = None) -> list[SimulatedProcess]:
        """All living processes, or those of one start; checkers ask it."""
        alive = [process for process in self.processes if not process.ended.is_set()]
        return [process for process in alive if start is None or process.start == start]

    def resident_mib(self, processes: Sequence[SimulatedProcess]) -> int:
        """What they hold together."""
        return sum((self.faults.resident_mib or 0) + process.leaked_mib() for process in processes)

    def held_mib(self) -> int:
        """What processes keep of this machine's memory: those that live, and those it was not taken back from."""
        return self.resident_mib([*self.living(), *self._releasing])

    async def release(self, process: SimulatedProcess) -> None:
        """Takes back the memory of a process that is gone; a machine that was off has none to take back."""
        if process.identity.boot == self.boot:
            self._releasing.add(process)
        await trio.sleep(self.faults.release_ms / 1_000)
        self._releasing.discard(process)

    def start_at(self, port: int) -> StartId | None:
        """Whose process listens there."""
        identity = self.listeners.get(port)
        return next((process.start for process in self.living() if process.identity == identity), None)

    def main_process(self, start: StartId) -> SimulatedProcess | None:
        """The living main process of a start, for fault plans."""
        return next((one for one in self.living(start) if one.group == one.identity.pid), None)

    def reuse_pid(self, start: StartId) -> SimulatedProcess:
        """The number of an ended start now belongs to a stranger, which is returned."""
        identity = self.intents[start]
        assert identity is not None
        assert not self.living(start)
        # After a reboot ticks count from nothing, so that only the boot tells the two apart.
        ticks = identity.start_ticks + (1 if identity.boot == self.boot else 0)
        stranger = SimulatedProcess(self, STRANGER, ("stranger",), {}, "stranger.log", None)
        stranger.identity = attrs.evolve(identity, boot=self.boot, start_ticks=ticks)
        stranger.group = identity.pid
        self.run(stranger, _until_killed)
        return stranger

    def reboot(self) -> None:
        """Power loss: every process is gone at once; intents and logs are on the disk."""
        for process in self.living():
            process.crash(signal=SIGKILL)
            process.ended.set()
        self.processes.clear()
        self.listeners.clear()
        self._releasing.clear()
        self._boots += 1


async def _until_killed(_: SimulatedProcess) -> int:
    await trio.sleep_forever()
