"""One GPU machine: its disk, clock and processes, and the agent that runs on it and may be killed.

The machine's processes are not the agent's: they go on when it dies, and the next agent finds them.
"""

from collections.abc import Sequence
from typing import Final

import trio

from lunanexa_apps.codec import decode
from lunanexa_apps.node.service import NodeAgent, run_node_agent
from lunanexa_apps.node.settings import NodePorts, NodeSettings, Shutdown
from lunanexa_core.drivers.specification import EngineAddress
from lunanexa_core.ids import AssignmentId, NodeId, StartId
from lunanexa_core.lifecycle.record import ReplicaRecord
from lunanexa_core.southbound.documents import DesiredState, SignedDocument
from lunanexa_simulation.clock import EPOCH_WALL_MS, SimulatedClock
from lunanexa_simulation.controller_host import HOST, PORT
from lunanexa_simulation.disk import Mount, SimulatedDisk
from lunanexa_simulation.engine_program import BINARY, engine_program
from lunanexa_simulation.http_client import SimulatedHttpClient, SimulatedNetwork
from lunanexa_simulation.ids import SimulatedIds
from lunanexa_simulation.life import ProcessLife
from lunanexa_simulation.memory import SimulatedMemory
from lunanexa_simulation.node_store import NodeStoreState, SimulatedNodeStore
from lunanexa_simulation.processes import (
    FIRST_PORT,
    STRANGER,
    SimulatedHost,
    SimulatedProcess,
    SimulatedProcesses,
)
from lunanexa_simulation.rng import Streams
from lunanexa_simulation.signing import SimulatedKeyring, SimulatedVerifier

MEMORY_MIB: Final = 128 * 1024
_PORTS_EACH: Final = 1_000


class NodeHost:
    """Starts, crashes and stops the agent of one machine."""

    def __init__(
        self,
        *,
        nursery: trio.Nursery,
        network: SimulatedNetwork,
        streams: Streams,
        keyring: SimulatedKeyring,
        name: NodeId,
        number: int,
        bearer: str,
        sync_ms: int,
        linger_ms: int,
        controllers: Sequence[EngineAddress] = (EngineAddress(HOST, PORT),),
    ) -> None:
        self.name = name
        self.disk = SimulatedDisk()
        self.disk.faults.delay_ms = sync_ms
        # Engines listen on loopback, of which the simulated network has one: each host has ports of its own.
        self.machine = SimulatedHost(nursery, name, first_port=FIRST_PORT + number * _PORTS_EACH)
        self.machine.faults.linger_ms = linger_ms
        self.memory = SimulatedMemory(MEMORY_MIB, used_mib=8 * 1024, held_mib=self.machine.held_mib)
        self.clock = SimulatedClock(mono_ms=number * 7_777_777, wall_ms=EPOCH_WALL_MS + number)
        self.machine.programs[BINARY] = engine_program(network, self.clock)
        self._nursery = nursery
        self._network = network
        self._streams = streams
        self._signer = keyring.new_key(streams.stream(f"{name}/key"))
        self._verifier = SimulatedVerifier(keyring)
        self._bearer = bearer
        self._controllers = controllers
        self._starts = 0
        self._agent: _Agent | None = None
        self._seen = _Seen(self.disk)

    async def start(self) -> None:
        """Starts an agent from what the disk holds; returns when it runs."""
        assert self._agent is None, "the agent runs already"
        self._starts += 1
        agent = _Agent(self.disk.mount(), SimulatedHttpClient(self._network, self.name), self.machine.view())
        self._agent = agent
        ids = SimulatedIds(self._streams.stream(f"{self.name}/{self._starts}/ids"), self.clock)
        ports = NodePorts(
            http=agent.http,
            clock=self.clock,
            ids=ids,
            store=SimulatedNodeStore(agent.mount),
            processes=agent.processes,
            memory=self.memory,
            signer=self._signer,
            verifier=self._verifier,
        )
        settings = NodeSettings(
            node=self.name,
            version="simulated",
            controllers=self._controllers,
            bearer=self._bearer,
            working_directory="/",
        )
        await self._nursery.start(self._run, agent, ports, settings, name=f"{self.name} agent {self._starts}")

    def crash(self) -> None:
        """Kills the agent at this instant; the machine's other processes go on."""
        agent, self._agent = self._agent, None
        assert agent is not None, "the agent is down"
        agent.mount.kill()
        agent.http.kill()
        agent.processes.die()
        agent.life.kill()

    def reboot(self, *, keep_unsynced: bool = False) -> None:
        """Power loss, and the machine comes up again without an agent: every process is gone, the disk holds what
        was synced, the monotonic clock begins anew."""
        self.disk.crash(keep_unsynced=keep_unsynced)
        if self._agent is not None:
            self.crash()
        self.machine.reboot()
        self.clock.reboot()

    @property
    def up(self) -> bool:
        """Whether an agent runs."""
        return self._agent is not None

    async def stop(self) -> None:
        """Has the agent stop its engines and end; returns when it is gone."""
        agent, self._agent = self._agent, None
        assert agent is not None, "the agent is down"
        agent.shutdown.ask()
        await agent.life.ended.wait()

    def accepted(self) -> tuple[int, int] | None:
        """(epoch, generation) of the document on the disk."""
        return self._seen.accepted()

    def running(self) -> Sequence[tuple[AssignmentId, StartId]]:
        """The engine processes that live, each with the assignment that its start was recorded for."""
        assignment_of = self._seen.assignments()
        starts = [process.start for process in self.engines() if process.group == process.identity.pid]
        return [(assignment_of.get(start, AssignmentId(f"nobody's {start}")), start) for start in starts]

    def engines(self) -> Sequence[SimulatedProcess]:
        """What lives of all that agents of this machine started."""
        return [process for process in self.machine.living() if process.start != STRANGER]

    async def _run(
        self, agent: "_Agent", ports: NodePorts, settings: NodeSettings, *, task_status: trio.TaskStatus[NodeAgent]
    ) -> None:
        async def program() -> None:
            await run_node_agent(ports, settings, agent.shutdown, task_status=task_status)

        await agent.life.live(program)


class _Agent:
    """One agent's ports, as far as its death must reach them."""

    def __init__(self, mount: Mount, http: SimulatedHttpClient, processes: SimulatedProcesses) -> None:
        self.mount = mount
        self.http = http
        self.processes = processes
        self.shutdown = Shutdown()
        self.life = ProcessLife()


class _Seen:
    """What checkers read from a node's disk; each value is decoded once."""

    def __init__(self, disk: SimulatedDisk) -> None:
        self._disk = disk
        self._document: bytes | None = None
        self._order: tuple[int, int] | None = None
        self._records: dict[AssignmentId, bytes] = {}
        self._assignment_of: dict[StartId, AssignmentId] = {}

    def accepted(self) -> tuple[int, int] | None:
        document = self._disk.state(NodeStoreState).facts.get("document")
        if document != self._document and document is not None:
            self._document = document
            self._order = decode(DesiredState, decode(SignedDocument, document).payload).order
        return self._order

    def assignments(self) -> dict[StartId, AssignmentId]:
        for assignment, value in self._disk.state(NodeStoreState).replicas.items():
            if self._records.get(assignment) != value:
                self._records[assignment] = value
                start = decode(ReplicaRecord, value).start
                if start is not None:
                    self._assignment_of[start] = assignment
        return self._assignment_of
