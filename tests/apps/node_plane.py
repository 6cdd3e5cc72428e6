"""A node plane over a kernel in memory, and who may speak to it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import attrs
import trio
from trio.abc import Clock

from lunanexa_apps.codec import decode
from lunanexa_apps.controller.issuing import ClusterKeys
from lunanexa_apps.controller.kernel import Kernel
from lunanexa_apps.controller.nodes import KernelNodePlane
from lunanexa_apps.controller.secrets import begin_with
from lunanexa_core.ids import NodeId
from lunanexa_core.outcomes import Refusal
from lunanexa_core.southbound.documents import SignedDocument
from lunanexa_core.southbound.enrolment import Challenge
from lunanexa_simulation.clock import SimulatedClock
from lunanexa_simulation.disk import SimulatedDisk
from lunanexa_simulation.fleet_keys import SimulatedFleetKeys
from lunanexa_simulation.ids import SimulatedIds
from lunanexa_simulation.journal import SimulatedJournal
from lunanexa_simulation.metrics import SimulatedMetrics
from lunanexa_simulation.rng import Streams
from lunanexa_simulation.signing import SimulatedKeyring, SimulatedVerifier
from tests.apps.node_party import NodeParty, mint
from tests.core.builders import POLICY, SEAT, SECRET, begin
from tests.replayed import check_replay


@attrs.frozen(kw_only=True)
class Plane:
    """A node plane over a kernel, and who may speak to it."""

    kernel: Kernel
    ids: SimulatedIds
    metrics: SimulatedMetrics
    fleet_keys: SimulatedFleetKeys
    keyring: SimulatedKeyring
    streams: Streams
    clock: SimulatedClock
    disk: SimulatedDisk
    plane: KernelNodePlane = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        object.__setattr__(self, "plane", self.another_plane())

    def another_plane(self) -> KernelNodePlane:
        """Of a controller that leads from now on: it knows what the journal holds."""
        keys = ClusterKeys(self.kernel, self.fleet_keys, self.clock, self.ids)
        return KernelNodePlane(self.kernel, keys, SimulatedVerifier(self.keyring), self.metrics, SECRET)

    def party(self, name: str) -> NodeParty:
        return NodeParty(self.keyring, self.streams, self.clock, name)

    async def enrolled(self, name: str, *, again: bool = False) -> NodeParty:
        node = self.party(name)
        node.accept(await self.plane.enrol(node.name, node.enrolment(await mint(self.kernel, name, again=again))))
        return node

    async def renew(self, node: NodeParty, document: SignedDocument) -> bytes | Refusal:
        return await self.plane.renew(node.name, node.peer, document)

    async def sleeps(self, seconds: float) -> None:
        """All machines but for their clocks: nobody's timers run through days."""
        self.clock.wake(round(seconds * 1_000))
        await trio.sleep(POLICY.lease_ms / 1_000)
        await self.kernel.wait_leading()

    async def challenge(self, name: str) -> str:
        word = await self.plane.challenge(NodeId(name))
        assert isinstance(word, bytes)
        return decode(Challenge, word).challenge


@asynccontextmanager
async def node_plane(time: Clock, node_url: str | None = None) -> AsyncIterator[Plane]:
    assert time.current_time() == trio.current_time()
    clock, streams, keyring, disk = SimulatedClock(), Streams(3), SimulatedKeyring(), SimulatedDisk()
    fleet_keys, store = SimulatedFleetKeys(keyring, streams.stream("fleet keys")), SimulatedJournal(disk.mount())
    metrics = SimulatedMetrics()
    kernel = Kernel(store, store, clock, POLICY, SEAT, fleet_keys=fleet_keys)
    async with trio.open_nursery() as nursery:
        await nursery.start(kernel.run, begin_with(begin(node_url=node_url), fleet_keys))
        yield Plane(
            kernel=kernel,
            ids=SimulatedIds(streams.stream("ids"), clock),
            metrics=metrics,
            fleet_keys=fleet_keys,
            keyring=keyring,
            streams=streams,
            clock=clock,
            disk=disk,
        )
        nursery.cancel_scope.cancel("the test is over")
    check_replay(kernel, disk)
