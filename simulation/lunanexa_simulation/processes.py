"""One simulated machine's processes: they outlive the agent, end in every bad way, and their numbers are reused.

A program is a coroutine function found by the first word of a command line, run as a task of the world's
nursery. The machine keeps the intents (as a disk would) and the logs; :class:`SimulatedProcesses` is one
agent's view of it, and dies with the agent.
"""

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final, TypeAlias

import attrs
import trio

from lunanexa_core.ids import BootId, StartId
from lunanexa_ports.errors import PortUnavailable
from lunanexa_ports.processes import LaunchOrder, ManagedProcess, Processes, ProcessExit, ProcessIdentity, SpawnFailed

SIGTERM: Final = 15
SIGKILL: Final = 9
FIRST_PID: Final = 1_000
FIRST_PORT: Final = 40_000
LINE_CHARACTERS: Final = 400
LOG_LINES: Final = 1_000

STRANGER: Final = StartId("stranger")
"""What a process that is none of ours goes by."""

Program: TypeAlias = "Callable[[SimulatedProcess], Awaitable[int]]"
"""What a process does. It returns its exit code; SIGTERM ends it unless it said that it handles that itself
(:attr:`SimulatedProcess.handles_terminate`); SIGKILL cancels it."""


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


class SimulatedProcess:
    """A process as its program sees it."""

    def __init__(self, host: "SimulatedHost", start: StartId, argv: Sequence[str], environment: Mapping[str, str],
                 log_name: str, group: int | None) -> None:  # fmt: skip
        self.argv = tuple(argv)
        self.environment = dict(environment)
        self.handles_terminate = False
        self.terminated = trio.Event()
        self.identity = host.next_identity()
        self.start = start
        self.group = self.identity.pid if group is None else group
        self.exit: ProcessExit | None = None
        self.ended = trio.Event()
        self.hung = False
        self.leaked_mib: Callable[[], int] = lambda: 0
        self.host = host
        self.log_name = log_name
        self._scope = trio.CancelScope()
        self._going_on = trio.Event()

    def print(self, line: str) -> None:
        """One line of output."""
        log = self.host.logs.setdefault(self.log_name, [])
        log.append(line[:LINE_CHARACTERS])
        del log[:-LOG_LINES]

    @contextmanager
    def listening(self, port: int) -> Iterator[None]:
        """The port is this process's as long as the block runs."""
        assert port not in self.host.listeners, f"port {port} is taken"
        self.host.listeners[port] = self.identity
        try:
            yield
        finally:
            if self.host.listeners.get(port) == self.identity:
                del self.host.listeners[port]

    def option(self, name: str) -> str:
        """The word that follows the first ``name`` on the command line."""
        return self.argv[self.argv.index(name) + 1]

    def fork(self, program: Program) -> None:
        """A child in the same group."""
        child = SimulatedProcess(self.host, self.start, self.argv, self.environment, self.log_name, self.group)
        self.host.run(child, program)

    async def while_hung(self) -> None:
        """Returns at once unless the process hangs. What serves requests awaits it before each."""
        while self.hung:
            await self._going_on.wait()

    # --- for faults ---

    def hang(self, *, on: bool = True) -> None:
        """It lives and answers nothing more (or goes on)."""
        self.hung = on
        if on:
            self._going_on = trio.Event()
        else:
            self._going_on.set()

    def crash(self, *, code: int | None = None, signal: int | None = None) -> None:
        """It ends by itself: with ``code``, or by ``signal``."""
        if self.exit is None:
            self.exit = ProcessExit(code=code, signal=signal)
            self._scope.cancel()

    def terminate(self) -> None:
        self.terminated.set()
        if not self.handles_terminate and not self.host.faults.ignore_terminate:
            self.crash(signal=SIGTERM)

    async def play(self, program: Program) -> None:
        code: int | None = None
        with self._scope:
            code = await program(self)
        killed = self.exit
        if killed is not None and self.host.faults.linger_ms:
            await trio.sleep(self.host.faults.linger_ms / 1_000)
        self.exit = killed or ProcessExit(code=code)
        self.ended.set()
        await self.host.release(self)


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

    def view(self) -> "SimulatedProcesses":
        """The host for one agent that starts now."""
        return SimulatedProcesses(self)

    def run(self, process: SimulatedProcess, program: Program) -> None:
        self.processes = [other for other in self.processes if not other.ended.is_set()]
        self.processes.append(process)
        self.nursery.start_soon(process.play, program, name=f"{self._name} {process.argv[0]} {process.start}")

    def living(self, start: StartId | None = None) -> list[SimulatedProcess]:
        """All living processes, or those of one start; checkers ask it."""
        alive = [process for process in self.processes if not process.ended.is_set()]
        return [process for process in alive if start is None or process.start == start]

    def resident_mib(self, processes: "Sequence[SimulatedProcess]") -> int:
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


class SimulatedManaged(ManagedProcess):
    """One agent's handle of one start."""

    def __init__(self, host: SimulatedHost, start: StartId, identity: ProcessIdentity,
                 main: SimulatedProcess | None) -> None:  # fmt: skip
        self._host = host
        self._start = start
        self._identity = identity
        self._main = main

    @property
    def identity(self) -> ProcessIdentity:
        return self._identity

    def members(self) -> list[SimulatedProcess]:
        return [one for one in self._host.living(self._start) if one.group == self._identity.pid]

    async def wait(self) -> ProcessExit:
        await trio.lowlevel.checkpoint()
        if self._main is None:
            return ProcessExit()
        await self._main.ended.wait()
        return self._main.exit or ProcessExit()

    def terminate(self) -> None:
        for process in self.members():
            process.terminate()

    def kill(self) -> None:
        for process in self.members():
            process.crash(signal=SIGKILL)

    async def wait_group_gone(self) -> None:
        await self.wait()
        for process in self.members():
            await process.ended.wait()

    def resident_mib(self) -> int | None:
        members = self.members()
        known = members and self._host.faults.resident_mib is not None
        return self._host.resident_mib(members) if known else None


class SimulatedProcesses(Processes):
    """The host in the eyes of one agent, until that agent is dead."""

    def __init__(self, host: SimulatedHost) -> None:
        self._host = host
        self._alive = True

    def die(self) -> None:
        """The agent was killed: nothing it still tries gets out. Its launchers and engines go on."""
        self._alive = False

    async def start(self, order: LaunchOrder) -> ManagedProcess:
        await trio.lowlevel.checkpoint()
        self._check()
        if order.start in self._host.intents:
            running = self.adopt(order.start)
            if running is None:
                raise SpawnFailed("the start id was used before")
            return running
        self._host.intents[order.start] = None
        launched = _Launch(self._host, order)
        self._host.nursery.start_soon(launched.run)
        await launched.done.wait()
        self._check()
        if launched.process is None:
            self._host.intents.pop(order.start, None)
            raise SpawnFailed(f"{order.argv[0]}: {launched.problem}")
        return SimulatedManaged(self._host, order.start, launched.process.identity, launched.process)

    def adopt(self, start: StartId) -> ManagedProcess | None:
        self._check()
        if start not in self._host.intents:
            return None
        identity = self._host.intents[start]
        if identity is None:
            # Revoked: its launcher, if there still is one, finds nothing to take.
            del self._host.intents[start]
            return None
        if identity.boot != self._host.boot:
            return None
        main = next((one for one in self._host.living(start) if one.identity == identity), None)
        found = SimulatedManaged(self._host, start, identity, main)
        return found if found.members() else None

    def recorded(self) -> Sequence[StartId]:
        self._check()
        return sorted(self._host.intents)

    def forget(self, start: StartId) -> None:
        self._check()
        self._host.intents.pop(start, None)

    def last_lines(self, log_name: str, limit: int) -> tuple[str, ...]:
        self._check()
        return tuple(self._host.logs.get(log_name, [])[-limit:]) if limit > 0 else ()

    def owner_of_listener(self, port: int) -> ProcessIdentity | None:
        self._check()
        return self._host.listeners.get(port)

    def free_port(self) -> int:
        self._check()
        return self._host.take_port()

    def _check(self) -> None:
        if not self._alive:
            raise PortUnavailable("the simulated agent is dead")


class _Launch:
    """The launcher of one start, which does not care whether its agent lives."""

    def __init__(self, host: SimulatedHost, order: LaunchOrder) -> None:
        self.done = trio.Event()
        self.process: SimulatedProcess | None = None
        self.problem = "no such file"
        self._host = host
        self._order = order

    async def run(self) -> None:
        host, order, boot = self._host, self._order, self._host.boot
        await trio.sleep(host.faults.spawn_ms / 1_000)
        program = host.programs.get(order.argv[0])
        if host.boot != boot:
            self.problem = "the machine went with its launcher"
        elif host.faults.spawn_failures > 0:
            host.faults.spawn_failures -= 1
            self.problem = "simulated failure"
        elif order.start not in host.intents:
            self.problem = "the start was revoked"
        elif program is not None:
            self.process = SimulatedProcess(host, order.start, order.argv, order.environment, order.log_name, None)
            host.intents[order.start] = self.process.identity
            host.run(self.process, program)
        self.done.set()
