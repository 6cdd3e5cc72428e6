"""The agent of a node without a network: bundles in, engines, reports out."""

import hashlib
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import attrs
import pytest
import trio
from trio.testing import MockClock

from lunanexa_apps.codec import decode, encode
from lunanexa_apps.node.air_gap.bundles import BLOBS_AGAIN_MS
from lunanexa_apps.node.air_gap.identity import become_air_gapped, read_air_gapped, refuse_air_gapped
from lunanexa_apps.node.air_gap.reading import read_outbox
from lunanexa_apps.node.air_gap.service import run_air_gapped_agent
from lunanexa_apps.node.settings import Shutdown
from lunanexa_core.ids import NodeId
from lunanexa_core.nodes.policy import NodePolicy
from lunanexa_core.southbound.bundle import Blob, Bundle, BundleRefusal, blob_path
from lunanexa_core.southbound.documents import DesiredState, SignedDocument
from lunanexa_core.southbound.heartbeat import ReplicaState
from lunanexa_core.southbound.outbox import OutboxReport, SignedReport, key_fingerprint
from lunanexa_ports.errors import PortFault
from lunanexa_simulation.inbox import SimulatedBundle, SimulatedInbox, SimulatedMedia
from lunanexa_simulation.node_store import NodeStoreState, SimulatedNodeStore
from lunanexa_simulation.rng import Streams
from tests.apps.node_world import CLUSTER, NODE, NodeWorld, assignment, node_world

CONTENT = b"weights"
BLOB = Blob(
    path=blob_path(hashlib.sha256(CONTENT).hexdigest()),
    size_bytes=len(CONTENT),
    sha256=hashlib.sha256(CONTENT).hexdigest(),
)


@pytest.fixture
def clock() -> MockClock:
    return MockClock(autojump_threshold=0)


class Site:
    """A node without a network, and the people who carry its media."""

    def __init__(self, world: NodeWorld) -> None:
        self.world = world
        self.media = SimulatedMedia()
        self.authority = world.keyring.new_key(Streams(1).stream("authority"))
        self.nobody = world.keyring.new_key(Streams(2).stream("nobody"))

    async def start(self) -> "Agent":
        parts = self.world.parts()
        inbox, agent = SimulatedInbox(self.media), Agent()

        async def live(*, task_status: trio.TaskStatus[object]) -> None:
            with agent.scope:
                await run_air_gapped_agent(
                    parts.ports,
                    parts.settings,
                    inbox,
                    self.authority.public_key,
                    agent.shutdown,
                    task_status=task_status,
                )
            agent.ended.set()

        def kill() -> None:
            parts.kill()
            inbox.kill()
            agent.scope.cancel()

        agent.kill = kill
        await self.world._nursery.start(live)  # as the world's own agents are started
        return agent

    def bring(self, name: str, made: Bundle, *, forged: bool = False, blobs: dict[str, bytes] | None = None) -> None:
        signer = self.nobody if forged else self.authority
        document = attrs.evolve(signer.sign(encode(made)), key_id=self.authority.key_id)
        self.media.bundles[name] = SimulatedBundle(document=document, blobs=blobs or {})

    def report(self) -> OutboxReport | None:
        if not self.media.reports:
            return None
        return decode(OutboxReport, decode(SignedReport, self.media.reports[max(self.media.reports)]).payload)

    async def until_said(self, *, generation: int, state: ReplicaState = ReplicaState.READY) -> OutboxReport:
        while True:
            report = self.report()
            states = [] if report is None else [one.state for one in report.heartbeat.replicas]
            if report is not None and report.heartbeat.generation == generation and states == [state]:
                return report
            await trio.sleep(0.1)

    async def until_refused(self, name: str) -> str:
        while True:
            report = self.report()
            found = [] if report is None else [one.refusal for one in report.refused if one.name == name]
            if found:
                return found[0]
            await trio.sleep(0.1)


class Agent:
    def __init__(self) -> None:
        self.shutdown, self.scope, self.ended = Shutdown(), trio.CancelScope(), trio.Event()
        self.kill: Callable[[], None] = lambda: None


def made(generation: int, before: int | None = None, *, runs: int = 1, blobs: tuple[Blob, ...] = ()) -> Bundle:
    """One that wants an engine of the generation ``runs``."""
    document = DesiredState(
        cluster=CLUSTER, node=NODE, epoch=0, generation=generation, assignments=(assignment(generation=runs),)
    )
    return Bundle(
        cluster=CLUSTER,
        node=NODE,
        generation=generation,
        predecessor=before,
        baseline=before is None,
        document=document,
        blobs=blobs,
    )


async def test_bundles_start_engines_and_reports_say_so(clock: MockClock) -> None:
    async with node_world(clock) as world:
        site = Site(world)
        agent = await site.start()
        site.bring("1", made(1))
        report = await site.until_said(generation=1)
        assert (report.cluster, report.refused) == (CLUSTER, ())
        (first,) = world.host.living()
        site.bring("2", made(2, 1))
        site.bring("3", made(3, 2, runs=3))
        await site.until_said(generation=3)
        (second,) = world.host.living()
        assert second.start != first.start
        agent.shutdown.ask()
        await agent.ended.wait()
        assert world.host.living() == []
        last = site.report()
        assert last is not None
        assert all(one.state is ReplicaState.ABSENT for one in last.heartbeat.replicas)
        assert world.controller.heartbeats == [], "no controller is asked"


async def test_what_may_not_be_followed_is_refused_told_and_changes_nothing(clock: MockClock) -> None:
    async with node_world(clock) as world:
        site = Site(world)
        await site.start()
        site.bring("1", made(1))
        site.bring("2", made(2, 1))
        await site.until_said(generation=2)
        (engine,) = world.host.living()
        site.bring("forged", made(3, 2), forged=True)
        site.bring("old", made(1, runs=9))
        site.bring("other content", made(2, 1, runs=9))
        site.bring("skips", made(5, 4))
        site.media.bundles["rubbish"] = SimulatedBundle(document=None)
        site.media.bundles["stranger"] = SimulatedBundle(document=site.nobody.sign(encode(made(3, 2))))
        wrong = site.authority.sign(b"{}")
        site.media.bundles["empty"] = SimulatedBundle(document=wrong)
        for name, refusal in (
            ("forged", BundleRefusal.BAD_SIGNATURE),
            ("old", BundleRefusal.ROLLED_BACK),
            ("other content", BundleRefusal.CONTENT_CHANGED),
            ("skips", BundleRefusal.SKIPPED),
            ("rubbish", BundleRefusal.NOT_READABLE),
            ("stranger", BundleRefusal.UNKNOWN_KEY),
            ("empty", BundleRefusal.NOT_READABLE),
        ):
            assert await site.until_refused(name) == refusal.value, name
        report = site.report()
        assert report is not None
        assert not {"1", "2"} & {one.name for one in report.refused}, "what was in force may lie there"
        assert report.heartbeat.document_refusal is not None
        assert world.host.living() == [engine]


async def test_blobs_are_there_before_the_document_is_followed(clock: MockClock) -> None:
    async with node_world(clock) as world:
        site = Site(world)
        await site.start()
        site.bring("1", made(1, blobs=(BLOB,)))
        assert await site.until_refused("1") == BundleRefusal.BLOB_MISSING.value
        site.media.bundles["1"].blobs[BLOB.path] = b"w3ights"
        await trio.sleep(BLOBS_AGAIN_MS / 1_000 + 5)
        assert await site.until_refused("1") == BundleRefusal.BLOB_CHANGED.value
        assert world.host.living() == []
        site.media.bundles["1"].blobs[BLOB.path] = CONTENT
        await site.until_said(generation=1)
        assert site.media.taken == {BLOB.sha256: CONTENT}


def blob_of(content: bytes) -> Blob:
    sha256 = hashlib.sha256(content).hexdigest()
    return Blob(path=blob_path(sha256), size_bytes=len(content), sha256=sha256)


async def test_blobs_go_that_nothing_in_force_names_nor_runs_by(clock: MockClock) -> None:
    other, third = blob_of(b"other"), blob_of(b"third")
    async with node_world(clock) as world:
        site = Site(world)
        first = await site.start()
        site.media.taken["0" * 64] = b"of before its store was lost"
        site.bring("1", made(1, blobs=(BLOB,)), blobs={BLOB.path: CONTENT})
        await site.until_said(generation=1)
        assert site.media.taken == {BLOB.sha256: CONTENT}, "what nothing names goes with the first in force"
        site.bring("2", made(2, 1, blobs=(BLOB, other)), blobs={other.path: b"other"})
        await site.until_said(generation=2)
        assert site.media.taken.keys() == {BLOB.sha256, other.sha256}
        site.media.bundles.clear()
        site.bring("3", made(3, 2, blobs=(third,)), blobs={third.path: b"third"})
        await site.until_said(generation=3)
        assert site.media.taken == {third.sha256: b"third"}
        first.kill()
        await first.ended.wait()
        site.media.taken[other.sha256] = b"of a switch that its agent did not outlive"
        await site.start()
        while other.sha256 in site.media.taken:
            await trio.sleep(0.1)
        assert site.media.taken == {third.sha256: b"third"}


async def test_an_engine_keeps_its_blobs_until_it_is_gone(clock: MockClock) -> None:
    async with node_world(clock) as world:
        site = Site(world)
        world.policy = NodePolicy(arguments_refused=("--no",))
        await site.start()
        site.bring(
            "1",
            running_by(made(1, blobs=(BLOB,)), model_path=f"/srv/node/node/{BLOB.path}"),
            blobs={BLOB.path: CONTENT},
        )
        await site.until_said(generation=1)
        site.bring("2", running_by(made(2, 1, runs=2), arguments=("--no",)))
        report = await site.until_said(generation=2)
        assert [one.refusal for one in report.heartbeat.refused] == ["policy_argument"]
        await trio.sleep(60)
        assert site.media.taken == {BLOB.sha256: CONTENT}, "the older engine goes on, and may have to start again"
        site.bring("3", made(3, 2, runs=3))
        await site.until_said(generation=3)
        while site.media.taken:
            await trio.sleep(0.1)


def running_by(bundle: Bundle, **changes: Any) -> Bundle:
    """The same with another engine."""
    (one,) = bundle.document.assignments
    wanted = attrs.evolve(one, engine=attrs.evolve(one.engine, **changes))
    return attrs.evolve(bundle, document=attrs.evolve(bundle.document, assignments=(wanted,)))


async def test_a_node_without_room_says_so(clock: MockClock) -> None:
    async with node_world(clock) as world:
        site = Site(world)
        await site.start()
        site.media.room_bytes = 3
        site.bring("1", made(1, blobs=(BLOB,)), blobs={BLOB.path: CONTENT})
        assert await site.until_refused("1") == BundleRefusal.NO_ROOM.value
        site.media.room_bytes = None
        await site.until_said(generation=1)


async def test_a_damaged_inbox_keeps_no_report_back(clock: MockClock) -> None:
    async with node_world(clock) as world:
        site = Site(world)
        await site.start()
        site.bring("1", made(1))
        number = (await site.until_said(generation=1)).number
        site.media.damaged = True
        (engine,) = world.host.living()
        engine.crash(code=3)
        while (report := site.report()) is None or report.number == number:
            await trio.sleep(0.1)
        await site.until_said(generation=1)


async def test_an_agent_that_dies_is_followed_by_one_that_knows(clock: MockClock) -> None:
    async with node_world(clock) as world:
        site = Site(world)
        first = await site.start()
        site.bring("1", made(1))
        number = (await site.until_said(generation=1)).number
        (engine,) = world.host.living()
        first.kill()
        await first.ended.wait()
        site.media.plugged_in = False
        boot = site.report()
        await site.start()
        while site.report() == boot:
            await trio.sleep(0.1)
        report = await site.until_said(generation=1)
        assert report.number > number
        assert world.host.living() == [engine]


async def test_a_lost_or_old_store_takes_nobody_back(clock: MockClock) -> None:
    async with node_world(clock) as world:
        site = Site(world)
        agent = await site.start()
        site.bring("1", made(1))
        await site.until_said(generation=1)
        store = world.disk.state(NodeStoreState)
        old = deepcopy(store)
        site.bring("2", made(2, 1, runs=2))
        await site.until_said(generation=2)
        for copy in (NodeStoreState(), old):
            agent.shutdown.ask()
            await agent.ended.wait()
            store.facts, store.replicas = dict(copy.facts), dict(copy.replicas)
            agent = await site.start()
            assert await site.until_refused("1") == BundleRefusal.ROLLED_BACK.value
            assert await site.until_refused("2") == BundleRefusal.NO_BASELINE.value
            await trio.sleep(60)
            assert world.host.living() == []
            assert not store.replicas, "nor is anything left to be started"
        site.bring("3", attrs.evolve(made(3, 2, runs=3), baseline=True))
        await site.until_said(generation=3)


async def test_another_authority_begins_with_a_bundle_above_the_counter(clock: MockClock) -> None:
    async with node_world(clock) as world:
        site = Site(world)
        agent = await site.start()
        site.bring("1", made(1))
        await site.until_said(generation=1)
        (engine,) = world.host.living()
        agent.kill()
        await agent.ended.wait()
        site.authority = world.keyring.new_key(Streams(3).stream("another"))
        await site.start()
        assert await site.until_refused("1") == BundleRefusal.UNKNOWN_KEY.value
        assert world.host.living() == [engine], "nothing is stopped before there is something in its place"
        site.bring("low", made(1, runs=2))
        assert await site.until_refused("low") == BundleRefusal.ROLLED_BACK.value
        site.bring("2", made(2, runs=2))
        await site.until_said(generation=2)
        assert engine not in world.host.living()


async def test_only_the_registered_key_is_believed(clock: MockClock) -> None:
    async with node_world(clock) as world:
        site = Site(world)
        await site.start()
        site.bring("1", made(1))
        await site.until_said(generation=1)
        files = [(f"{number:03}", data) for number, data in site.media.reports.items()]
        own = decode(SignedReport, files[-1][1])
        fingerprint = key_fingerprint(own.public_key)
        assert fingerprint is not None
        forged: SignedDocument = site.nobody.sign(own.payload)
        other = SignedReport(
            public_key=site.nobody.public_key,
            key_id=forged.key_id,
            signature=forged.signature,
            payload=forged.payload,
        )
        files += [
            ("900", encode(other)),
            ("901", encode(attrs.evolve(own, payload=own.payload.replace(b"ready", b"alive")))),
            ("902", b"{}"),
        ]
        read = read_outbox(files, fingerprint, world.verifier)
        assert {one.name for one in read if one.report is None} == {"900", "901", "902"}
        assert read[-1].report == site.report()


async def test_a_directory_is_of_one_kind_and_one_node(clock: MockClock) -> None:
    async with node_world(clock) as world:
        store = SimulatedNodeStore(world.disk.mount())
        await refuse_air_gapped(store)
        await become_air_gapped(store, NODE)
        await become_air_gapped(store, NODE)
        known = await read_air_gapped(store)
        assert known is not None
        assert known.node == NODE
        with pytest.raises(PortFault, match="node-1"):
            await become_air_gapped(store, NodeId("another"))
        with pytest.raises(PortFault, match="--air-gapped"):
            await refuse_air_gapped(store)
    async with node_world(clock) as world:
        await world.start()
        while world.token is None or world.spent == 0:
            await trio.sleep(0.1)
        with pytest.raises(PortFault, match="enrolled"):
            await become_air_gapped(SimulatedNodeStore(world.disk.mount()), NODE)
