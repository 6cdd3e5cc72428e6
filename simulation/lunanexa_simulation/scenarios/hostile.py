"""A node's agent in somebody else's hands: it has the node's keys, and says what it likes."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import attrs

from lunanexa_apps.node.control import ControlChannel, ControlRefusal
from lunanexa_apps.node.settings import NodeSettings
from lunanexa_core.drivers.specification import EngineAddress
from lunanexa_core.southbound.heartbeat import Heartbeat
from lunanexa_simulation.controller_host import NODE_PORT
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
