"""The agent of a node without a network, as a service. It asks nobody and tells nobody: it looks into its inbox, makes
the bundle in force true with engines on this machine, and writes reports into its outbox."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

import attrs
import structlog
import trio

from lunanexa_apps.node.air_gap.blobs import BlobKeeper
from lunanexa_apps.node.air_gap.bundles import Bundles
from lunanexa_apps.node.air_gap.outbox import Outbox
from lunanexa_apps.node.lease import LeaseKeeper
from lunanexa_apps.node.pulse import Pulse
from lunanexa_apps.node.recovery import recover_replicas
from lunanexa_apps.node.replicas import Replicas
from lunanexa_apps.node.settings import LocalPorts, NodeSettings, Shutdown
from lunanexa_core.southbound.heartbeat import ReplicaReport
from lunanexa_ports.errors import PortError
from lunanexa_ports.inbox import Inbox

LAST_REPORT_S: Final = 5.0
_log = structlog.get_logger()


@attrs.frozen(kw_only=True)
class AirGappedAgent:
    """An agent's parts, for whoever runs or watches it."""

    bundles: Bundles
    replicas: Replicas

    def reports(self) -> Sequence[ReplicaReport]:
        return self.replicas.reports()


async def run_air_gapped_agent(
    ports: LocalPorts,
    settings: NodeSettings,
    inbox: Inbox,
    authority: str,
    shutdown: Shutdown,
    *,
    task_status: trio.TaskStatus[AirGappedAgent] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Follows the bundles that ``authority`` (raw Ed25519 public key, hex) has signed until ``shutdown`` is asked for;
    then stops its engines, reports a last time and returns. Cancelled, it leaves engines running: the next agent finds
    them.

    Started once what an earlier agent left is recovered. Raises ``PortFault`` and ``PortUnavailable`` where store or
    counter can't be used at the start; later it tries again."""
    changed = Pulse()
    bundles = Bundles(ports, inbox, settings.node, authority)
    await bundles.load()
    lease = LeaseKeeper(ports.clock, ports.store, lambda: replicas.order, standing=True)
    replicas = Replicas(ports, settings, lease, shutdown, changed)
    recovered = await recover_replicas(ports)
    _follow(bundles, replicas)
    outbox = Outbox(ports, settings, inbox, bundles, replicas)

    async def look() -> None:
        if await bundles.look():
            _follow(bundles, replicas)

    steps = {"look": look, "sweep": BlobKeeper(inbox, bundles, replicas).sweep, "report": outbox.say}
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_rounds, settings, replicas, steps, changed)
        task_status.started(AirGappedAgent(bundles=bundles, replicas=replicas))
        await replicas.run(recovered)
        nursery.cancel_scope.cancel("the engines are stopped")
    with trio.move_on_after(LAST_REPORT_S, shield=True):
        await outbox.say_last()
    _log.info("agent_stopped")


async def _rounds(
    settings: NodeSettings, replicas: Replicas, steps: Mapping[str, Callable[[], Awaitable[None]]], changed: Pulse
) -> None:
    """Runs for ever. What people brought is seen within a heartbeat's interval. A step that fails keeps no other from
    its turn: a node whose disk is full must say so."""
    await replicas.wait_looked()
    problems: dict[str, str] = {}
    while True:
        for name, step in steps.items():
            try:
                await step()
                problems.pop(name, None)
            except PortError as error:
                if problems.get(name) != str(error):
                    _log.error("round_failed", step=name, reason=str(error))
                problems[name] = str(error)
        with trio.move_on_after(settings.heartbeat_ms / 1_000):
            await changed.wait()


def _follow(bundles: Bundles, replicas: Replicas) -> None:
    if bundles.desired is not None:
        replicas.follow(bundles.desired)
