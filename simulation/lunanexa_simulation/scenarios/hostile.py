"""A node's agent in somebody else's hands: it has the node's keys, and says what it likes. And who shows a certificate
of any name."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import attrs

from lunanexa_apps.node.control import ControlChannel, ControlRefusal
from lunanexa_apps.node.settings import NodeSettings
from lunanexa_core.drivers.specification import EngineAddress
from lunanexa_core.identity.certificate import terms_at
from lunanexa_core.identity.names import Identity
from lunanexa_core.ids import ClusterId
from lunanexa_core.southbound.heartbeat import Heartbeat
from lunanexa_simulation.controller_host import NODE_PORT
from lunanexa_simulation.credentials import IdentityFolder, SimulatedCredentials
from lunanexa_simulation.fleet_keys import SimulatedFleetKeys
from lunanexa_simulation.http_client import SimulatedHttpClient
from lunanexa_simulation.node_host import NodeHost
from lunanexa_simulation.world import World


@asynccontextmanager
async def speaking_as(world: World, node: NodeHost) -> AsyncIterator[ControlChannel]:
    """By the node's own key and certificate, to the controller."""
    control = SimulatedHttpClient(world.network, node.name, credentials=node.own_credentials())
    controllers = [EngineAddress(world.controller.host, NODE_PORT)]
    settings = NodeSettings(node=node.name, version="simulated", controllers=controllers, working_directory="/")
    channel = ControlChannel(control, node.signer, settings)
    channel.cluster = world.kernel.state.cluster
    try:
        yield channel
    finally:
        await control.aclose()


def next_heartbeat(world: World, node: NodeHost) -> Heartbeat:
    """What the controller would take next from the node."""
    reading = world.kernel.observed.nodes[node.name]
    return attrs.evolve(reading.heartbeat, sequence=reading.sequence + 1)


async def says(world: World, node: NodeHost, heartbeat: Heartbeat) -> ControlRefusal | None:
    """Why the controller does not take it; ``None``: it does."""
    async with speaking_as(world, node) as channel:
        answer = await channel.heartbeat(heartbeat)
    return answer if isinstance(answer, ControlRefusal) else None


def shown_as(world: World, identity: Identity, *, of_ours: bool = True, age_ms: int = 0) -> SimulatedCredentials:
    """A certificate of that name, so old, by the cluster's own authority or another one."""
    stream, folder = world.run.streams.stream("stranger"), IdentityFolder(trusted=world.nodes[0].identity.trusted)
    keys = world.fleet_keys if of_ours else SimulatedFleetKeys(world.keyring, stream)
    credentials = SimulatedCredentials(world.keyring, stream, world.clock, folder)
    terms = terms_at(identity.uri, "1", world.clock.now().wall_ms - age_ms)
    folder.chain = keys.issue(next(iter(keys.authorities())), credentials.request(), terms)
    return credentials


def cluster_of(world: World) -> ClusterId:
    """The cluster that the controller serves."""
    cluster = world.kernel.state.cluster
    assert cluster is not None
    return cluster
