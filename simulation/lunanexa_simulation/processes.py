"""The ``processes`` port over a simulated machine: one agent's view of it, which dies with the agent."""

from collections.abc import Sequence

import trio

from lunanexa_core.ids import StartId
from lunanexa_ports.errors import PortUnavailable
from lunanexa_ports.processes import LaunchOrder, ManagedProcess, Processes, ProcessExit, ProcessIdentity, SpawnFailed
from lunanexa_simulation.machine import SimulatedHost
from lunanexa_simulation.process import SIGKILL, SimulatedProcess


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
