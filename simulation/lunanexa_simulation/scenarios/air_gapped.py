"""A node without a network, over rounds of bundles: its agent is killed at any moment, media are tampered with, old
bundles come again, its store is lost. What runs is at each moment what one of the authority's bundles said, never an
older one than before; and its reports say so."""

import hashlib
from collections.abc import Callable
from typing import Final

import attrs
import trio

from lunanexa_apps.codec import decode, encode
from lunanexa_apps.node.air_gap.service import run_air_gapped_agent
from lunanexa_apps.node.settings import NodePorts, NodeSettings, Shutdown
from lunanexa_core.deployment import EngineSpec
from lunanexa_core.ids import AssignmentId, ClusterId, DeploymentId, NodeId
from lunanexa_core.southbound.bundle import Blob, Bundle, BundleRefusal, blob_path
from lunanexa_core.southbound.documents import DesiredAssignment, DesiredState
from lunanexa_core.southbound.heartbeat import ReplicaState
from lunanexa_core.southbound.outbox import OutboxReport, SignedReport
from lunanexa_simulation.clock import SimulatedClock
from lunanexa_simulation.credentials import SimulatedCredentials
from lunanexa_simulation.disk import SimulatedDisk
from lunanexa_simulation.engine_program import BINARY, engine_program
from lunanexa_simulation.http_client import SimulatedHttpClient, SimulatedNetwork
from lunanexa_simulation.ids import SimulatedIds
from lunanexa_simulation.inbox import SimulatedBundle, SimulatedInbox, SimulatedMedia
from lunanexa_simulation.life import ProcessLife
from lunanexa_simulation.memory import SimulatedMemory
from lunanexa_simulation.node_store import NodeStoreState, SimulatedNodeStore
from lunanexa_simulation.processes import SimulatedHost
from lunanexa_simulation.promises import Promises
from lunanexa_simulation.run import Run
from lunanexa_simulation.signing import SimulatedKeyring, SimulatedVerifier

CLUSTER, NODE, HOST = ClusterId("plant-7"), NodeId("edge-1"), "edge-1"
ROUNDS: Final = 5
DITHER_MS: Final = 3_000
WITHIN_MS: Final = 120_000


async def main(run: Run) -> None:
    """The scenario."""
    async with trio.open_nursery() as nursery:
        site = _Site(run, nursery)
        await site.start()
        with site.watched("what runs is never older than what ran", site.went_back):
            for generation in range(1, ROUNDS + 1):
                await _round(site, generation)
            await _store_lost(site)
        nursery.cancel_scope.cancel("the scenario is over")


async def _round(site: "_Site", generation: int) -> None:
    site.bring(f"{generation}", site.made(generation))
    await site.dither(f"round {generation}", DITHER_MS)
    await site.kill_and_start()
    await site.until_runs(generation)
    site.bring_forged(f"forged after {generation}", site.made(generation + 1))
    site.bring(f"old after {generation}", attrs.evolve(site.made(generation, words=9), baseline=True))
    wanted = BundleRefusal.BAD_SIGNATURE.value, BundleRefusal.CONTENT_CHANGED.value
    told = f"both are refused, and it is told ({generation})"
    await site.until(told, lambda: site.refused(*wanted), within_ms=WITHIN_MS)
    site.check(f"and nothing runs by them ({generation})", site.running() == generation, site.running())
    del site.media.bundles[f"forged after {generation}"], site.media.bundles[f"old after {generation}"]


async def _store_lost(site: "_Site") -> None:
    """What was in force lies in the inbox still, and its first is a baseline."""
    site.kill()
    site.machine.reboot()
    site.disk.state(NodeStoreState).facts.clear()
    site.disk.state(NodeStoreState).replicas.clear()
    site.media.reports.clear()
    await site.start()
    old = BundleRefusal.ROLLED_BACK.value, BundleRefusal.NO_BASELINE.value
    await site.until("a lost store takes nobody back", lambda: site.refused(*old), within_ms=WITHIN_MS)
    site.check("and nothing runs", site.running() is None, site.running())
    site.bring("baseline", attrs.evolve(site.made(ROUNDS + 1), baseline=True))
    await site.until_runs(ROUNDS + 1)


class _Site(Promises):
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

    # --- the agent ---

    async def start(self) -> None:
        self._lives += 1
        life, mount, view, inbox = ProcessLife(), self.disk.mount(), self.machine.view(), SimulatedInbox(self.media)
        http = SimulatedHttpClient(self._network, HOST)
        streams = self.run.streams
        ports = NodePorts(
            http=http,
            control=http,
            credentials=SimulatedCredentials(self._keyring, streams.stream("credentials"), self._clock),
            clock=self._clock,
            ids=SimulatedIds(streams.stream(f"{self._lives}/ids"), self._clock),
            store=SimulatedNodeStore(mount),
            processes=view,
            memory=SimulatedMemory(128 * 1024, used_mib=8 * 1024, held_mib=self.machine.held_mib),
            signer=self._key,
            verifier=SimulatedVerifier(self._keyring),
        )
        settings = NodeSettings(node=NODE, version="simulated", controllers=(), working_directory="/")

        async def program() -> None:
            await run_air_gapped_agent(ports, settings, inbox, self._authority.public_key, Shutdown())

        def kill() -> None:
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

    # --- media ---

    def made(self, generation: int, *, words: int = 1) -> Bundle:
        """A bundle whose engine is its own."""
        content = f"weights {generation}".encode()
        sha256 = hashlib.sha256(content).hexdigest()
        engine = EngineSpec(driver="reference", served_name=f"model-{generation}", binary=BINARY, slots=words)
        wanted = DesiredAssignment(
            assignment=AssignmentId("tiny"), generation=generation, deployment=DeploymentId("tiny"), engine=engine
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

    def bring(self, name: str, made: Bundle) -> None:
        content = f"weights {made.generation}".encode()
        document = self._authority.sign(encode(made))
        self.media.bundles[name] = SimulatedBundle(document=document, blobs={made.blobs[0].path: content})

    def bring_forged(self, name: str, made: Bundle) -> None:
        """In the authority's name, by somebody else."""
        document = attrs.evolve(self._nobody.sign(encode(made)), key_id=self._authority.key_id)
        self.media.bundles[name] = SimulatedBundle(document=document)

    # --- what is seen ---

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

    def refused(self, *refusals: str) -> bool:
        """Whether the newest report tells of these."""
        report = self.report()
        return report is not None and set(refusals) <= {one.refusal for one in report.refused}

    async def until_runs(self, generation: int) -> None:
        def told() -> bool:
            report = self.report()
            states = [] if report is None else [one.state for one in report.heartbeat.replicas]
            follows = report is not None and report.heartbeat.generation == generation
            return follows and states == [ReplicaState.READY] and self.running() == generation

        await self.until(f"generation {generation} runs, and it is told", told, within_ms=WITHIN_MS)
