"""The machine of the controller: the services that ship, over simulated ports, and its power switch."""

from collections.abc import Callable
from typing import Final

import attrs
import trio

from lunanexa_apps.controller.kernel import Kernel
from lunanexa_apps.controller.service import Controller, ControllerPorts, run_controller
from lunanexa_core.drivers.specification import EngineAddress
from lunanexa_core.ids import HolderId
from lunanexa_core.leadership import Seat
from lunanexa_core.policy import RETAIN_BYTES_MAX
from lunanexa_core.southbound.controllers import controller_url
from lunanexa_ports.asgi import AsgiApplication
from lunanexa_ports.clock import Clock
from lunanexa_simulation.answers import SimulatedAnswers
from lunanexa_simulation.controller_planes import build_planes
from lunanexa_simulation.credentials import SimulatedCredentials
from lunanexa_simulation.disk import SimulatedDisk
from lunanexa_simulation.http_client import SimulatedHttpClient, SimulatedNetwork
from lunanexa_simulation.ids import SimulatedIds
from lunanexa_simulation.installation import Installation
from lunanexa_simulation.journal import JournalState, SimulatedJournal
from lunanexa_simulation.ledger_archive import ArchiveFolder, SimulatedLedgerArchive
from lunanexa_simulation.life import ProcessLife
from lunanexa_simulation.metrics import SimulatedMetrics
from lunanexa_simulation.private_files import PrivateFolder, SimulatedPrivateFiles
from lunanexa_simulation.replays import SimulatedReplays
from lunanexa_simulation.rng import Streams
from lunanexa_simulation.sight import OfLeader, Sight
from lunanexa_simulation.snapshots import SimulatedSnapshots, SnapshotFiles
from lunanexa_simulation.workers import SimulatedWorkers

HOST: Final = "controller"
PORT: Final = 8400
NODE_PORT: Final = 8443
"""For nodes, over mutual TLS."""


class ControllerHost:
    """Starts, crashes and stops the controller's process; its disk stays."""

    def __init__(
        self,
        *,
        nursery: trio.Nursery,
        network: SimulatedNetwork,
        streams: Streams,
        clock: Clock,
        installation: Installation,
        disk: SimulatedDisk,
        sight: Sight,
        host: str = HOST,
    ) -> None:
        """``disk`` holds the journal; the controllers of one service share it."""
        self.disk = disk
        self.folder = PrivateFolder()
        self.host = host
        self._seat = Seat(HolderId(f"holder_{host}"), f"{host}:{PORT}")
        self.metrics = SimulatedMetrics()
        self._nursery = nursery
        self._network = network
        self._streams = streams
        self._clock = clock
        self._installation = installation
        self._sight = sight
        self._process: ProcessLife | None = None
        self._journal: SimulatedJournal | None = None
        self._mount = disk.mount()
        self._own = disk if host == HOST else SimulatedDisk()
        self._local = self._own.mount()
        self._starts = 0
        self._server, self._gateway = self._credentials("server"), self._credentials("gateway")
        self._client: SimulatedHttpClient | None = None
        self._files = SimulatedPrivateFiles(self.folder)
        self._kernel: Kernel | None = None
        self.before_nodes: Callable[[AsgiApplication], AsgiApplication] = lambda app: app
        """What stands before what it serves to nodes, from its next process on: an accomplice behind its TLS."""

    @property
    def node_address(self) -> EngineAddress:
        """Where it answers nodes."""
        return EngineAddress(self.host, NODE_PORT)

    @property
    def server(self) -> SimulatedCredentials:
        """What its listener for nodes shows."""
        return self._server

    @property
    def gateway(self) -> SimulatedCredentials:
        """What its gateway shows to nodes."""
        return self._gateway

    @property
    def kernel(self) -> Kernel:
        """The serving process's kernel."""
        assert self._kernel is not None, "the controller is down"
        return self._kernel

    async def start(self) -> None:
        """Starts a process from what the disk holds; returns when it serves."""
        assert self._process is None, "the controller runs already"
        self._network.wake(self.host)
        self._starts += 1
        self._process = process = ProcessLife()
        self._mount = self.disk.mount()
        self._local = self._own.mount()
        self._files = SimulatedPrivateFiles(self.folder)
        self._server, self._gateway = self._credentials("server"), self._credentials("gateway")
        self._client = SimulatedHttpClient(self._network, self.host, credentials=self._gateway)
        self.metrics = SimulatedMetrics()
        await self._nursery.start(self._run, process, name=f"{self.host} process {self._starts}")

    def crash(self, *, keep_unsynced: bool = False) -> None:
        """Kills the process at this instant, whatever it does."""
        process, self._process = self._process, None
        assert process is not None, "the controller is down"
        self._mount.kill(keep_unsynced=keep_unsynced)
        self._local.kill(keep_unsynced=keep_unsynced)
        self._files.kill()
        assert self._client is not None
        self._client.kill()
        for port in (PORT, NODE_PORT):
            self._network.kill(self.host, port)
        self._unwatch()
        process.kill()

    def lose_power(self, *, keep_unsynced: bool = False) -> None:
        """The same of the whole machine: nobody hears of it. It is up again when the next process starts."""
        self._network.silence(self.host)
        self.crash(keep_unsynced=keep_unsynced)

    async def stop(self) -> None:
        """Ends the process in order; returns when it is gone."""
        process, self._process = self._process, None
        assert process is not None, "the controller is down"
        process.stop.set()
        await process.ended.wait()

    @property
    def up(self) -> bool:
        """Whether a process runs and serves."""
        return self._kernel is not None

    def cut(self, cut: bool) -> None:
        """Cuts the way of this process to the journal, and mends it."""
        self._mount.cut = cut

    @property
    def is_cut(self) -> bool:
        """Whether the way of this process to the journal is cut."""
        return self._mount.cut

    def durable(self) -> JournalState:
        """What is on the disk."""
        return self.disk.state(JournalState)

    def snapshots(self) -> dict[int, bytes]:
        """The snapshots that this machine keeps, by sequence."""
        return self._own.state(SnapshotFiles).files

    def archived(self) -> ArchiveFolder:
        """What left the ledger, as this machine keeps it."""
        return self._own.state(ArchiveFolder)

    def _credentials(self, name: str) -> SimulatedCredentials:
        stream = self._streams.stream(f"{self.host}/{self._starts}/{name}")
        return SimulatedCredentials(self._installation.keyring, stream, self._clock)

    def _unwatch(self) -> None:
        if self._kernel is self._sight.kernel:
            self._sight.kernel = None
        self._kernel = None

    async def _run(self, process: ProcessLife, *, task_status: trio.TaskStatus[None]) -> None:
        ids = SimulatedIds(self._streams.stream(f"{self.host}/{self._starts}/ids"), self._clock)
        installation = self._installation
        journal = SimulatedJournal(self._mount)
        ports = ControllerPorts(
            journal=journal,
            leadership=journal,
            clock=self._clock,
            ids=ids,
            fleet_keys=installation.fleet_keys,
            server=self._server,
            gateway=self._gateway,
            verifier=installation.verifier,
            metrics=self.metrics,
            snapshots=SimulatedSnapshots(self._local),
            replays=SimulatedReplays(self._mount, self._local),
            upkeep=journal,
            archive=SimulatedLedgerArchive(self._local),
            workers=SimulatedWorkers(),
            files=self._files,
        )

        async def serve(controller: Controller) -> None:
            await self._serve(controller, ports, process, task_status)

        node_url = controller_url(self.node_address)

        async def program() -> None:
            await run_controller(
                ports,
                installation.policy,
                attrs.evolve(installation.begin, node_url=node_url),
                installation.engine_secret,
                serve,
                seat=self._seat,
                node_url=node_url,
            )

        await process.live(program)

    async def _serve(
        self, controller: Controller, ports: ControllerPorts, process: ProcessLife, task_status: trio.TaskStatus[None]
    ) -> None:
        assert self._client is not None
        answers = SimulatedAnswers(self._local, RETAIN_BYTES_MAX)
        planes = build_planes(controller, ports, self._client, answers, self._installation.gateway)
        nodes = self.before_nodes(planes.nodes)
        controller.kernel.listeners.append(OfLeader(controller.kernel, self._sight.grants))
        self._kernel = controller.kernel
        async with trio.open_nursery() as nursery:
            await nursery.start(planes.gateway.run)
            await nursery.start(planes.stream.run)
            self._network.listen(self.host, PORT, process.guard(planes.root))
            self._network.listen(self.host, NODE_PORT, process.guard(nodes), credentials=self._server)
            task_status.started()
            await process.stop.wait()
            for port in (PORT, NODE_PORT):
                self._network.kill(self.host, port)
            self._unwatch()
            nursery.cancel_scope.cancel("the controller stops")
