"""The whole edge over the real kernel and gateway, in memory and on virtual time."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import attrs
from trio.abc import Clock

from lunanexa_adapters.asgi.control import ControlApp, build_control_app
from lunanexa_adapters.asgi.data_plane import DataPlane, DataPlaneSettings
from lunanexa_adapters.asgi.node_plane import NodePlaneApp
from lunanexa_adapters.asgi.root import NodeRoot, Root
from lunanexa_adapters.websocket.application import WebSocketPlane
from lunanexa_apps.controller.fleet import KernelFleet
from lunanexa_apps.controller.insight import KernelInsight
from lunanexa_apps.controller.issuing import ClusterKeys
from lunanexa_apps.controller.journal import KernelJournal
from lunanexa_apps.controller.keys import KernelKeys
from lunanexa_apps.controller.nodes import KernelNodePlane
from lunanexa_apps.controller.operator import KernelOperator
from lunanexa_apps.controller.recovery import KernelRecovery
from lunanexa_apps.controller.trust import KernelTrust
from lunanexa_apps.controller.workloads import KernelWorkloads
from lunanexa_core.ids import KeyId
from lunanexa_core.keys import ApiKey, Role, secret_digest
from lunanexa_core.workload import Dialect
from lunanexa_ports.asgi import AsgiApplication
from lunanexa_simulation.ids import SimulatedIds
from lunanexa_simulation.rng import Streams
from lunanexa_simulation.signing import SimulatedVerifier
from lunanexa_simulation.workers import SimulatedWorkers
from tests.apps.gateway_fleet import NEWCOMER, Fleet, fleet
from tests.apps.node_party import NodeParty
from tests.core.builders import SECRET, SESSION, api_key

OPERATOR = "lno_" + "o" * 10 + "0123456789abcdefghijklmnopqrst"
KEY = (b"authorization", b"Bearer " + SECRET.encode())
JSON = (b"content-type", b"application/json")
OPERATOR_KEY = (b"authorization", b"Bearer " + OPERATOR.encode())
LIMITS = dict.fromkeys(Dialect, 2_000) | {Dialect.CHAT: 4_000}


@attrs.frozen(kw_only=True)
class Edge:
    root: Root
    data_plane: DataPlane
    control: ControlApp
    node_plane: NodePlaneApp
    stream: WebSocketPlane
    world: Fleet
    nodes: NodeRoot
    """What the listener for nodes serves."""
    newcomer: NodeParty
    """A node that nobody has let in."""


@asynccontextmanager
async def edge(
    time: Clock,
    *engines: AsgiApplication,
    keys: tuple[ApiKey, ...] = (),
    bodies_bytes_max: int = 1 << 20,
    **options: Any,
) -> AsyncIterator[Edge]:
    streams = Streams(2)
    operator_key = api_key(key=KeyId("key_o"), digest=secret_digest(OPERATOR), roles=frozenset({Role.OPERATOR}))
    async with fleet(time, *engines, more_keys=(operator_key, *keys), **options) as world:
        ids = SimulatedIds(streams.stream("edge"), world.clock)
        operator = KernelOperator(world.kernel, "0.1.0")
        cluster_keys = ClusterKeys(world.kernel, world.fleet_keys, world.clock, ids)
        nodes = KernelNodePlane(world.kernel, cluster_keys, SimulatedVerifier(world.keyring), world.metrics, SECRET)
        workloads = KernelWorkloads(world.kernel, world.dispatch)
        data_plane = DataPlane(
            gateway=world.gateway,
            workloads=workloads,
            health=operator,
            metrics=world.metrics,
            ids=ids,
            clock=world.clock,
            settings=DataPlaneSettings(version="0.1.0", body_limits=LIMITS, bodies_bytes_max=bodies_bytes_max),
        )
        key_plane = KernelKeys(world.kernel, ids, frozenset({operator_key.key}))
        control = build_control_app(
            operator=operator,
            fleet=KernelFleet(world.kernel),
            keys=key_plane,
            insight=KernelInsight(world.kernel),
            journal=KernelJournal(world.kernel, "0.1.0"),
            recovery=KernelRecovery(world.kernel),
            trust=KernelTrust(world.kernel, ids, world.fleet_keys, SimulatedWorkers(), "https://controller:8443"),
            health=operator,
            ids=ids,
        )
        stream = WebSocketPlane(
            gateway=world.gateway,
            workloads=workloads,
            ids=ids,
            clock=world.clock,
            metrics=world.metrics,
            session=SESSION,
        )
        node_plane = NodePlaneApp(nodes, ids)
        root = Root(data_plane=data_plane, control=control, stream=stream, ids=ids)
        yield Edge(
            root=root,
            data_plane=data_plane,
            control=control,
            node_plane=node_plane,
            stream=stream,
            world=world,
            nodes=NodeRoot(nodes=node_plane, ids=ids),
            newcomer=NodeParty(world.keyring, streams, world.clock, NEWCOMER),
        )
