"""The node agent as a service."""

from collections.abc import Sequence

import attrs
import structlog
import trio

from lunanexa_apps.node.pulse import Pulse
from lunanexa_apps.node.recovery import recover_replicas
from lunanexa_apps.node.replicas import Replicas
from lunanexa_apps.node.session import ControllerSession
from lunanexa_apps.node.settings import NodePorts, NodeSettings, Shutdown
from lunanexa_apps.node.trust import Trust
from lunanexa_core.southbound.heartbeat import ReplicaReport

_log = structlog.get_logger()


@attrs.frozen(kw_only=True)
class NodeAgent:
    """A running agent, for whoever watches it in the same process."""

    trust: Trust
    replicas: Replicas

    def reports(self) -> Sequence[ReplicaReport]:
        return self.replicas.reports()


async def run_node_agent(
    ports: NodePorts,
    settings: NodeSettings,
    shutdown: Shutdown,
    *,
    task_status: trio.TaskStatus[NodeAgent] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Follows the controller until ``shutdown`` is asked for; then stops its engines, waits until the last of
    their processes is gone, says so in a last heartbeat and returns. Cancelled, it leaves engines running: the
    next agent finds them.

    Started once what an earlier agent left is recovered; the controller need not be there."""
    changed = Pulse()
    trust = Trust(ports.store, ports.verifier, settings.node)
    await trust.load()
    replicas = Replicas(ports, settings, shutdown, changed)
    recovered = await recover_replicas(ports)
    if trust.accepted is not None:
        _log.info("document_kept", epoch=trust.accepted.epoch, generation=trust.accepted.generation)
        replicas.follow(trust.accepted)
    session = ControllerSession(ports, settings, trust, replicas, changed)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(session.run)
        task_status.started(NodeAgent(trust=trust, replicas=replicas))
        await replicas.run(recovered)
        nursery.cancel_scope.cancel("the engines are stopped")
    await session.last_heartbeat()
    _log.info("agent_stopped")
