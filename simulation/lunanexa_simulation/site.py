"""A machine without a network, and what people carry to it and from it."""

import hashlib
from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Final

import attrs
import trio

from lunanexa_apps.codec import decode, encode
from lunanexa_apps.node.air_gap.service import AirGappedAgent, run_air_gapped_agent
from lunanexa_apps.node.settings import LocalPorts, NodeSettings, Shutdown
from lunanexa_core.deployment import EngineSpec
from lunanexa_core.ids import AssignmentId, ClusterId, DeploymentId, NodeId, StartId
from lunanexa_core.southbound.bundle import Blob, Bundle, blob_path
from lunanexa_core.southbound.documents import DesiredAssignment, DesiredState
from lunanexa_core.southbound.heartbeat import ReplicaState
from lunanexa_core.southbound.outbox import OutboxReport, SignedReport
from lunanexa_ports.signing import Signer, Verifier
from lunanexa_simulation.clock import SimulatedClock
from lunanexa_simulation.disk import SimulatedDisk
from lunanexa_simulation.engine_program import BINARY, engine_program
from lunanexa_simulation.http_client import SimulatedHttpClient, SimulatedNetwork
from lunanexa_simulation.ids import SimulatedIds
from lunanexa_simulation.inbox import SimulatedBundle, SimulatedInbox, SimulatedMedia
from lunanexa_simulation.life import ProcessLife
from lunanexa_simulation.machine import STRANGER, SimulatedHost
from lunanexa_simulation.memory import SimulatedMemory
from lunanexa_simulation.node_store import NodeStoreState, SimulatedNodeStore
from lunanexa_simulation.processes import SimulatedProcesses
from lunanexa_simulation.promises import Promises
from lunanexa_simulation.run import Run
from lunanexa_simulation.seen_on_disk import SeenOnDisk
from lunanexa_simulation.signing import SimulatedKeyring, SimulatedVerifier

CLUSTER, NODE, HOST = ClusterId("plant-7"), NodeId("edge-1"), "edge-1"
WITHIN_MS: Final = 120_000


class Site(Promises):
    """The machine, its media, and who has the authority's key."""

    def __init__(self, run: Run, nursery: trio.Nursery) -> None:
        super().__init__(run)
        self.media = SimulatedMedia(delay_ms=20)
        self.disk = SimulatedDisk()
        self.disk.faults.delay_ms = 5
        self.machine = SimulatedHost(nursery, HOST)
        self._nursery = nursery
        self._clock = SimulatedClock()
        self._network = SimulatedNetwork(nursery, run.streams)
        self.machine.programs[BINARY] = engine_program(self._network, self._clock)
        self._keyring = SimulatedKeyring()
        self._key, self._authority, self._nobody = (
            self._keyring.new_key(run.streams.stream(name)) for name in ("node key", "authority", "nobody")
        )
        self._lives = 0
        self._newest = 0
        self._kill: Callable[[], None] = lambda: None
        self.agent: AirGappedAgent | None = None
        """The one that runs, once it has recovered."""
        self.signed: dict[str, Bundle] = {}
        """What the authority signed, by digest."""
        self.engine_secret = run.streams.stream("engine secret").randbytes(16).hex()
        self._seen = SeenOnDisk(self.disk)
        run.manner.attend_site(self)

    # --- the agent ---

    async def start(self) -> None:
        self._lives += 1
        life, mount, inbox = ProcessLife(), self.disk.mount(), SimulatedInbox(self.media)
        view = SimulatedProcesses(self.machine)
        http = SimulatedHttpClient(self._network, HOST)
        streams = self.run.streams
        ports = LocalPorts(
            http=http,
            clock=self._clock,
            ids=SimulatedIds(streams.stream(f"{self._lives}/ids"), self._clock),
            store=SimulatedNodeStore(mount),
            processes=view,
            memory=SimulatedMemory(128 * 1024, used_mib=8 * 1024, held_mib=self.machine.held_mib),
            signer=self._key,
            verifier=self.verifier,
        )
        settings = NodeSettings(node=NODE, version="simulated", controllers=(), working_directory="/")

        def heard(agent: AirGappedAgent) -> None:
            self.agent = agent

        started = _Started(heard)

        async def program() -> None:
            key = self._authority.public_key
            await run_air_gapped_agent(ports, settings, inbox, key, Shutdown(), task_status=started)

        def kill() -> None:
            self.agent = None
            mount.kill()
            inbox.kill()
            http.kill()
            view.die()
            life.kill()

        self._kill = kill
        self._nursery.start_soon(life.live, program)

    def kill(self) -> None:
        self._kill()
        self.trace("the agent is killed")

    async def kill_and_start(self) -> None:
        self.kill()
        await self.start()

    def copy_of_store(self) -> NodeStoreState:
        """What the node's store holds now."""
        return deepcopy(self.disk.state(NodeStoreState))

    def set_back(self, copy: NodeStoreState) -> None:
        """The store holds that instead."""
        self.trace("the store is set back")
        store = self.disk.state(NodeStoreState)
        store.facts, store.replicas = dict(copy.facts), dict(copy.replicas)
        store.start_number = copy.start_number

    # --- media ---

    def made(self, generation: int, *, words: int = 1) -> Bundle:
        """A bundle whose engine is its own."""
        content = f"weights {generation}".encode()
        sha256 = hashlib.sha256(content).hexdigest()
        engine = EngineSpec(driver="reference", served_name=f"model-{generation}", binary=BINARY, slots=words)
        wanted = DesiredAssignment(
            assignment=AssignmentId("tiny"),
            generation=generation,
            deployment=DeploymentId("tiny"),
            engine=engine,
            engine_key=self.engine_secret,
        )
        return Bundle(
            cluster=CLUSTER,
            node=NODE,
            generation=generation,
            predecessor=None if generation == 1 else generation - 1,
            baseline=generation == 1,
            document=DesiredState(cluster=CLUSTER, node=NODE, epoch=0, generation=generation, assignments=(wanted,)),
            blobs=(Blob(path=blob_path(sha256), size_bytes=len(content), sha256=sha256),),
        )

    def bring(self, name: str, made: Bundle, *, content: bytes | None = None) -> None:
        """Signed by the authority. ``content``: what its blob holds instead of what it should."""
        content = f"weights {made.generation}".encode() if content is None else content
        document = self._authority.sign(encode(made))
        self.signed[hashlib.sha256(document.payload).hexdigest()] = made
        self.media.bundles[name] = SimulatedBundle(document=document, blobs={made.blobs[0].path: content})

    def bring_forged(self, name: str, made: Bundle) -> None:
        """In the authority's name, by somebody else."""
        document = attrs.evolve(self._nobody.sign(encode(made)), key_id=self._authority.key_id)
        self.media.bundles[name] = SimulatedBundle(document=document)

    @property
    def key(self) -> Signer:
        """The node's own."""
        return self._key

    @property
    def verifier(self) -> Verifier:
        """Of all signatures here."""
        return SimulatedVerifier(self._keyring)

    # --- what is seen ---

    async def until_clean(self, generation: int) -> None:
        """Whatever its agents died of, the node keeps the blob of what runs, and no other."""
        wanted = {blob.sha256 for blob in self.made(generation).blobs}
        told = f"no blob of an earlier generation is left ({generation})"
        await self.until(told, lambda: self.media.taken.keys() == wanted, within_ms=WITHIN_MS)

    def running(self) -> int | None:
        """The generation of the engine that runs."""
        lives = [process for process in self.machine.living() if process.argv[0] == BINARY]
        if len(lives) > 1:
            self.check("there are never two engines", holds=False, told=lives)
        return int(lives[0].option("--alias").rpartition("-")[2]) if lives else None

    def went_back(self) -> str | None:
        """Asked at each quiescent instant."""
        running = self.running()
        if running is not None and running < self._newest:
            return f"generation {running} runs after {self._newest}"
        self._newest = max(self._newest, running or 0)
        return None

    def report(self) -> OutboxReport | None:
        """The newest; the checker's own eyes, without the key."""
        if not self.media.reports:
            return None
        signed = decode(SignedReport, self.media.reports[max(self.media.reports)])
        return decode(OutboxReport, signed.payload)

    def refused(self) -> dict[str, str]:
        """What the newest report says that is not followed, and why."""
        report = self.report()
        return {} if report is None else {one.name: one.refusal for one in report.refused}

    async def until_runs(self, generation: int) -> None:
        def told() -> bool:
            report = self.report()
            states = [] if report is None else [one.state for one in report.heartbeat.replicas]
            follows = report is not None and report.heartbeat.generation == generation
            return follows and states == [ReplicaState.READY] and self.running() == generation

        await self.until(f"generation {generation} runs, and it is told", told, within_ms=WITHIN_MS)

    def living(self) -> Sequence[tuple[AssignmentId, StartId]]:
        """The engine processes that live, each with the assignment that its start was recorded for."""
        assignment_of = self._seen.assignments()
        starts = [one.start for one in self.machine.living() if one.start != STRANGER]
        return [(assignment_of.get(start, AssignmentId(f"nobody's {start}")), start) for start in starts]


class _Started(trio.TaskStatus[AirGappedAgent]):
    """Where an agent says that it runs, though it may be killed before."""

    def __init__(self, heard: Callable[[AirGappedAgent], object]) -> None:
        self._heard = heard

    def started(self, value: AirGappedAgent | None = None) -> None:
        assert value is not None
        self._heard(value)
