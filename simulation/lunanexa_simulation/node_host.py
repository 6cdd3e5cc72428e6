"""One GPU machine: its disk, clock and processes, and the agent that runs on it and may be killed.

The machine's processes are not the agent's: they go on when it dies, and the next agent finds them.
"""

from collections.abc import Sequence
from typing import Final

import trio

from lunanexa_apps.node.enrolment import Admission
from lunanexa_apps.node.policy_file import DEFAULT_PLACE, parse_policy
from lunanexa_apps.node.service import NodeAgent, run_node_agent
from lunanexa_apps.node.settings import NodePorts, NodeSettings, Shutdown
from lunanexa_core.drivers.specification import EngineAddress
from lunanexa_core.identity.token import EnrolmentToken
from lunanexa_core.ids import AssignmentId, NodeId, StartId
from lunanexa_ports.signing import Signer
from lunanexa_simulation.clock import EPOCH_WALL_MS, SimulatedClock
from lunanexa_simulation.controller_host import HOST, NODE_PORT
from lunanexa_simulation.credentials import IdentityFolder, SimulatedCredentials
from lunanexa_simulation.disk import Mount, SimulatedDisk
from lunanexa_simulation.engine_program import BINARY, engine_program
from lunanexa_simulation.http_client import SimulatedHttpClient, SimulatedNetwork
from lunanexa_simulation.ids import SimulatedIds
from lunanexa_simulation.life import ProcessLife
from lunanexa_simulation.machine import FIRST_PORT, STRANGER, SimulatedHost
from lunanexa_simulation.memory import SimulatedMemory
from lunanexa_simulation.node_store import SimulatedNodeStore
from lunanexa_simulation.older import OlderSigner
from lunanexa_simulation.process import SimulatedProcess
from lunanexa_simulation.processes import SimulatedProcesses
from lunanexa_simulation.rng import Streams
from lunanexa_simulation.seen_on_disk import SeenOnDisk
from lunanexa_simulation.sight import OpenPassage
from lunanexa_simulation.signing import SimulatedKeyring, SimulatedVerifier

MEMORY_MIB: Final = 128 * 1024
PORTS_EACH: Final = 1_000
"""So many starts a machine has, each with a port of its own."""


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
        sync_ms: int,
        linger_ms: int,
        controllers: Sequence[EngineAddress] = (EngineAddress(HOST, NODE_PORT),),
        data_port: int | None = None,
        ports_each: int = PORTS_EACH,
    ) -> None:
        self.name = name
        self.disk = SimulatedDisk()
        self.disk.faults.delay_ms = sync_ms
        # Engines listen on loopback, of which the simulated network has one: each host has ports of its own.
        self.machine = SimulatedHost(nursery, name, first_port=FIRST_PORT + number * ports_each)
        self.machine.faults.linger_ms = linger_ms
        self.memory = SimulatedMemory(MEMORY_MIB, used_mib=8 * 1024, held_mib=self.machine.held_mib)
        self.clock = SimulatedClock(mono_ms=number * 7_777_777, wall_ms=EPOCH_WALL_MS + number)
        self.machine.programs[BINARY] = engine_program(network, self.clock)
        self._nursery = nursery
        self._network = network
        self._streams = streams
        self._signer = keyring.new_key(streams.stream(f"{name}/key"))
        self._verifier = SimulatedVerifier(keyring)
        self._keyring = keyring
        self._data_port = data_port
        self.data_host = f"{name}-data"
        """Data takes another way than what agent and controller say to each other: each may be cut by itself."""
        self.older = False
        """Whether its next agent speaks as one of an earlier version."""
        self.policy_file = ""
        """What its owner wrote; its next agent goes by it."""
        self.token: EnrolmentToken | None = None
        """Which its next agent enrols with."""
        self.identity = IdentityFolder()
        self._controllers = controllers
        self._starts = 0
        self._agent: _Agent | None = None
        self._running: NodeAgent | None = None
        self._seen = SeenOnDisk(self.disk)

    async def start(self) -> None:
        """Starts an agent from what the disk holds; returns when it runs."""
        assert self._agent is None, "the agent runs already"
        for host in (self.name, self.data_host):
            self._network.wake(host)
        self._starts += 1
        stream = self._streams.stream(f"{self.name}/{self._starts}/identity")
        credentials = SimulatedCredentials(self._keyring, stream, self.clock, self.identity)
        agent = _Agent(
            self.disk.mount(),
            SimulatedHttpClient(self._network, self.name),
            SimulatedHttpClient(self._network, self.name, credentials=credentials),
            SimulatedProcesses(self.machine),
        )
        self._agent = agent
        ids = SimulatedIds(self._streams.stream(f"{self.name}/{self._starts}/ids"), self.clock)
        ports = NodePorts(
            http=agent.http,
            control=agent.control,
            credentials=credentials,
            clock=self.clock,
            ids=ids,
            store=SimulatedNodeStore(agent.mount),
            processes=agent.processes,
            memory=self.memory,
            signer=OlderSigner(self._signer) if self.older else self._signer,
            verifier=self._verifier,
        )
        settings = NodeSettings(
            node=self.name,
            version="simulated",
            controllers=self._controllers,
            working_directory="/",
            policy=parse_policy(DEFAULT_PLACE, self.policy_file.encode()),
        )
        started: NodeAgent = await self._nursery.start(
            self._run, agent, ports, settings, name=f"{self.name} agent {self._starts}"
        )
        self._running = started
        if self._data_port is not None:
            self._network.listen_door(self.data_host, self._data_port, started.door, credentials)

    def crash(self) -> None:
        """Kills the agent at this instant; the machine's other processes go on."""
        agent, self._agent = self._agent, None
        assert agent is not None, "the agent is down"
        agent.mount.kill()
        self._close_door()
        agent.http.kill()
        agent.control.kill()
        agent.processes.die()
        agent.life.kill()

    def reboot(self, *, keep_unsynced: bool = False) -> None:
        """Power loss: every process is gone and nobody hears of it, the disk holds what was synced, the monotonic clock
        begins anew. It is up again when the next agent starts."""
        for host in (self.name, self.data_host):
            self._network.silence(host)
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
        self._close_door()

    def accepted(self) -> tuple[int, int] | None:
        """(epoch, generation) of the document on the disk."""
        return self._seen.accepted()

    def running(self) -> Sequence[tuple[AssignmentId, StartId]]:
        """The engine processes that live, each with the assignment that its start was recorded for."""
        starts = [process.start for process in self.engines() if process.group == process.identity.pid]
        assignment_of = self._seen.assignments() if starts else {}
        return [(assignment_of.get(start, AssignmentId(f"nobody's {start}")), start) for start in starts]

    def engines(self) -> Sequence[SimulatedProcess]:
        """What lives of all that agents of this machine started."""
        return [process for process in self.machine.living() if process.start != STRANGER]

    def lease_left_ms(self) -> int | None:
        """For how long its lease holds by its own clock, below 0 since when it does not; ``None``: it has had none."""
        until_ms = None if self._running is None else self._running.lease.deadline_mono_ms
        return None if until_ms is None else until_ms - self.clock.now().mono_ms

    def at_door(self) -> Sequence[OpenPassage]:
        """What passes the data listener now, against what the machine itself knows."""
        passing = () if self._data_port is None else self._network.inside(self.data_host, self._data_port)
        if not passing:
            return ()
        until_ms = None if self._running is None else self._running.lease.deadline_mono_ms
        unleased_ms = self.clock.now().mono_ms - (0 if until_ms is None else until_ms)
        return [
            OpenPassage(
                node=self.name, asked_for=asked_for, reached=self.machine.start_at(to.port), unleased_ms=unleased_ms
            )
            for asked_for, to in passing
        ]

    @property
    def signer(self) -> Signer:
        """Its enrolled key."""
        return self._signer

    def own_credentials(self) -> SimulatedCredentials:
        """What its agent shows, for whoever speaks in its name."""
        return SimulatedCredentials(
            self._keyring, self._streams.stream(f"{self.name}/other"), self.clock, self.identity
        )

    def _admission(self) -> Admission | None:
        if self.token is None:
            return None
        address = None if self._data_port is None else f"{self.data_host}:{self._data_port}"
        return Admission(token=self.token, data_address=address, used=self._forget_token)

    def _forget_token(self) -> None:
        self.token = None

    def _close_door(self) -> None:
        if self._data_port is not None:
            self._network.kill(self.data_host, self._data_port)

    async def _run(
        self, agent: "_Agent", ports: NodePorts, settings: NodeSettings, *, task_status: trio.TaskStatus[NodeAgent]
    ) -> None:
        async def program() -> None:
            await run_node_agent(ports, settings, agent.shutdown, admission=self._admission(), task_status=task_status)

        await agent.life.live(program)


class _Agent:
    """One agent's ports, as far as its death must reach them."""

    def __init__(
        self, mount: Mount, http: SimulatedHttpClient, control: SimulatedHttpClient, processes: SimulatedProcesses
    ) -> None:
        self.mount = mount
        self.http = http
        self.control = control
        self.processes = processes
        self.shutdown = Shutdown()
        self.life = ProcessLife()
