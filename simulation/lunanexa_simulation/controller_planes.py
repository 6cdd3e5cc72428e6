"""What a controller's process serves, put together as its composition root does it."""

from typing import Final

import attrs

from lunanexa_adapters.asgi.control import build_control_app
from lunanexa_adapters.asgi.data_plane import DataPlane, DataPlaneSettings
from lunanexa_adapters.asgi.node_plane import NodePlaneApp
from lunanexa_adapters.asgi.root import NodeRoot, Root
from lunanexa_adapters.websocket.application import WebSocketPlane
from lunanexa_apps.controller.gateway.service import Gateway
from lunanexa_apps.controller.gateway.settings import GatewaySettings
from lunanexa_apps.controller.service import Controller, ControllerPorts
from lunanexa_core.ids import SessionId
from lunanexa_ports.answers import Answers
from lunanexa_ports.http_client import HttpClient

_EDGE: Final = DataPlaneSettings(version="simulated")


@attrs.frozen(kw_only=True)
class Planes:
    """``root`` is for clients and operators, ``nodes`` for nodes; ``gateway`` and ``stream`` are to be run."""

    gateway: Gateway
    stream: WebSocketPlane
    root: Root
    nodes: NodeRoot


def build_planes(
    controller: Controller, ports: ControllerPorts, client: HttpClient, answers: Answers, settings: GatewaySettings
) -> Planes:
    """Of one process. ``client`` reaches engines; ``answers`` are those that callers had kept."""
    ids, clock, metrics = ports.ids, ports.clock, ports.metrics
    session = SessionId(ids.new("ses"))
    gateway = Gateway(
        dispatch=controller.dispatch,
        client=client,
        clock=clock,
        ids=ids,
        metrics=metrics,
        workers=ports.workers,
        session=session,
        answers=answers,
        settings=settings,
    )
    stream = WebSocketPlane(
        gateway=gateway, workloads=controller.workloads, ids=ids, clock=clock, metrics=metrics, session=session
    )
    data_plane = DataPlane(
        gateway=gateway,
        workloads=controller.workloads,
        health=controller.operator,
        metrics=metrics,
        ids=ids,
        clock=clock,
        settings=_EDGE,
    )
    control = build_control_app(
        operator=controller.operator,
        fleet=controller.fleet,
        keys=controller.keys,
        insight=controller.insight,
        journal=controller.journal,
        recovery=controller.recovery,
        trust=controller.trust,
        health=controller.operator,
        ids=ids,
    )
    return Planes(
        gateway=gateway,
        stream=stream,
        root=Root(data_plane=data_plane, control=control, stream=stream, ids=ids),
        nodes=NodeRoot(nodes=NodePlaneApp(controller.nodes, ids), ids=ids),
    )
