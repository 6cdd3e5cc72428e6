"""The node agent as a service."""

from collections.abc import Sequence
from typing import Final

import attrs
import structlog
import trio

from lunanexa_apps.node.door import Door
from lunanexa_apps.node.enrolment import Admission
from lunanexa_apps.node.lease import LeaseKeeper
from lunanexa_apps.node.pulse import Pulse
from lunanexa_apps.node.recovery import Recovered, recover_replicas
from lunanexa_apps.node.replicas import Replicas
from lunanexa_apps.node.session import ControllerSession
from lunanexa_apps.node.settings import NodePorts, NodeSettings, Shutdown
from lunanexa_apps.node.trust import Trust
from lunanexa_core.ids import AssignmentId
from lunanexa_core.southbound.heartbeat import ReplicaReport
from lunanexa_ports.errors import PortFault

NOT_ENROLLED: Final = (
    "this node is not enrolled: have a token minted (lunanexa node token NAME), then use it (lunanexa-node enroll)"
)
_log = structlog.get_logger()


@attrs.frozen(kw_only=True)
class NodeAgent:
    """An agent's parts, for whoever runs or watches it."""

    trust: Trust
    replicas: Replicas
    recovered: dict[AssignmentId, Recovered]
    session: ControllerSession
    lease: LeaseKeeper
    door: Door
    """Of the data listener, where the node has one."""
    changed: Pulse
    """Set when the controller should hear of something."""

    def reports(self) -> Sequence[ReplicaReport]:
        return self.replicas.reports()


async def open_agent(
    ports: NodePorts, settings: NodeSettings, shutdown: Shutdown, admission: Admission | None
) -> NodeAgent:
    """Takes up what an earlier agent left. Raises ``PortFault`` for a node that neither is enrolled nor has an
    ``admission``."""
    changed = Pulse()
    trust = Trust(ports.store, ports.verifier, ports.credentials, settings.node)
    await trust.load()
    if trust.identity is None and admission is None:
        raise PortFault(NOT_ENROLLED)
    lease = LeaseKeeper(ports.clock, ports.store, lambda: (0, 0) if trust.accepted is None else replicas.order)
    lease.watch(changed.set)  # It is granted requests only once it has said that it has a lease.
    replicas = Replicas(ports, settings, lease, shutdown, changed)
    recovered = await recover_replicas(ports)
    await lease.load(engine_found=any(found.process is not None for found in recovered.values()))
    if trust.accepted is not None:
        _log.info("document_kept", epoch=trust.accepted.epoch, generation=trust.accepted.generation)
        replicas.follow(trust.accepted)
    session = ControllerSession(ports, settings, trust, replicas, lease, changed)
    return NodeAgent(
        trust=trust,
        replicas=replicas,
        recovered=recovered,
        session=session,
        lease=lease,
        door=_open_door(ports, trust, replicas, lease),
        changed=changed,
    )


def _open_door(ports: NodePorts, trust: Trust, replicas: Replicas, lease: LeaseKeeper) -> Door:
    door = Door(
        cluster=lambda: None if trust.identity is None else trust.identity.cluster,
        replicas=replicas.records,
        revoked=lambda: () if trust.accepted is None else trust.accepted.revoked,
        leased=lease.live,
        clock=ports.clock,
    )
    replicas.watchers.append(door.look)
    lease.watch(door.look)
    return door


async def run_node_agent(
    ports: NodePorts,
    settings: NodeSettings,
    shutdown: Shutdown,
    *,
    admission: Admission | None = None,
    task_status: trio.TaskStatus[NodeAgent] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Follows the controller until ``shutdown`` is asked for; then stops its engines, waits until the last of
    their processes is gone, says so in a last heartbeat and returns. Cancelled, it leaves engines running: the
    next agent finds them.

    Started once what an earlier agent left is recovered; the controller need not be there. A node that is not enrolled
    enrols itself by ``admission``. Raises as :func:`open_agent`."""
    agent = await open_agent(ports, settings, shutdown, admission)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(agent.lease.run, agent.replicas.any_outlives_no_lease)
        nursery.start_soon(agent.session.run, admission)
        task_status.started(agent)
        await agent.replicas.run(agent.recovered)
        nursery.cancel_scope.cancel("the engines are stopped")
    await agent.session.last_heartbeat()
    _log.info("agent_stopped")
