"""The controller's services around one kernel, in the order in which they may rely on each other."""

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from types import MappingProxyType

import attrs
import trio

from lunanexa_apps.controller.dispatch import KernelDispatch
from lunanexa_apps.controller.fleet import KernelFleet
from lunanexa_apps.controller.high_water import HighWater
from lunanexa_apps.controller.identity import ControllerIdentity
from lunanexa_apps.controller.insight import KernelInsight
from lunanexa_apps.controller.issuing import ClusterKeys
from lunanexa_apps.controller.janitor import run_janitor, run_reconciliation
from lunanexa_apps.controller.journal import KernelJournal
from lunanexa_apps.controller.kernel import Kernel
from lunanexa_apps.controller.keys import KernelKeys
from lunanexa_apps.controller.nodes import KernelNodePlane
from lunanexa_apps.controller.operator import KernelOperator
from lunanexa_apps.controller.recovery import KernelRecovery, run_high_water
from lunanexa_apps.controller.retention import RetentionPorts, run_retention
from lunanexa_apps.controller.snapshots import run_snapshots
from lunanexa_apps.controller.trust import KernelTrust
from lunanexa_apps.controller.workloads import KernelWorkloads
from lunanexa_core.commands import Begin
from lunanexa_core.leadership import Seat
from lunanexa_core.policy import Policy
from lunanexa_ports.clock import Clock
from lunanexa_ports.credentials import Credentials
from lunanexa_ports.fleet_keys import FleetKeys
from lunanexa_ports.ids import IdSource
from lunanexa_ports.journal import Journal
from lunanexa_ports.journal_upkeep import JournalUpkeep
from lunanexa_ports.leadership import Leadership
from lunanexa_ports.ledger_archive import LedgerArchive
from lunanexa_ports.metrics import Metrics
from lunanexa_ports.private_files import PrivateFiles
from lunanexa_ports.replays import Replays
from lunanexa_ports.signing import Verifier
from lunanexa_ports.snapshots import Snapshots
from lunanexa_ports.workers import Workers


@attrs.frozen(kw_only=True)
class ControllerPorts:
    """What the controller needs of the world."""

    journal: Journal
    leadership: Leadership
    clock: Clock
    ids: IdSource
    fleet_keys: FleetKeys
    server: Credentials
    """What the listener for nodes shows."""
    gateway: Credentials
    """What the gateway shows to nodes."""
    verifier: Verifier
    metrics: Metrics
    files: PrivateFiles
    snapshots: Snapshots
    replays: Replays
    upkeep: JournalUpkeep
    archive: LedgerArchive | None
    """Where what leaves the ledger is kept; ``None``: nowhere."""
    workers: Workers


@attrs.frozen(kw_only=True)
class Controller:
    """The faces of a running controller, for whoever puts sockets or memory streams before them."""

    kernel: Kernel
    dispatch: KernelDispatch
    operator: KernelOperator
    fleet: KernelFleet
    keys: KernelKeys
    nodes: KernelNodePlane
    workloads: KernelWorkloads
    insight: KernelInsight
    journal: KernelJournal
    recovery: KernelRecovery
    trust: KernelTrust


async def run_controller(
    ports: ControllerPorts,
    policy: Policy,
    begin: Begin,
    engine_secret: str,
    serve: Callable[[Controller], Awaitable[None]],
    *,
    seat: Seat,
    adopted_keys: Mapping[str, str] = MappingProxyType({}),
    node_url: str | None = None,
    task_status: trio.TaskStatus[Controller] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Runs kernel, janitor and reconciliation, and ``serve`` (gateway and listeners) inside them; returns when
    ``serve`` does: the faces are closed before the kernel is. ``adopted_keys``: of engines that somebody else runs, by
    URL. ``node_url``: where nodes enrol; ``None``: nowhere."""
    kernel = Kernel(
        ports.journal,
        ports.leadership,
        ports.clock,
        policy,
        seat,
        HighWater(ports.files),
        ports.snapshots,
        ports.fleet_keys,
    )
    keys = ClusterKeys(kernel, ports.fleet_keys, ports.clock, ports.ids)
    identity = ControllerIdentity(kernel, keys, ports.ids, server=ports.server, gateway=ports.gateway)
    dispatch = KernelDispatch(kernel, engine_secret, adopted_keys)
    controller = Controller(
        kernel=kernel,
        dispatch=dispatch,
        operator=KernelOperator(kernel, begin.version, keys),
        fleet=KernelFleet(kernel),
        keys=KernelKeys(kernel, ports.ids, frozenset(key.key for key in begin.keys)),
        nodes=KernelNodePlane(kernel, keys, ports.verifier, ports.metrics, engine_secret),
        workloads=KernelWorkloads(kernel, dispatch),
        insight=KernelInsight(kernel),
        journal=KernelJournal(kernel, begin.version),
        recovery=KernelRecovery(kernel),
        trust=KernelTrust(kernel, ports.ids, ports.fleet_keys, ports.workers, node_url),
    )
    # The kernel is outermost: it ends when nobody is left who may ask it.
    async with trio.open_nursery() as around:
        await around.start(kernel.run, begin)
        async with trio.open_nursery() as nursery:
            await nursery.start(run_high_water, kernel)
            await nursery.start(identity.run)
            await nursery.start(run_janitor, kernel)
            await nursery.start(partial(run_snapshots, kernel, ports.replays, rows=policy.snapshot_rows))
            await nursery.start(run_reconciliation, kernel, ports.ids)
            retention = RetentionPorts(
                upkeep=ports.upkeep, replays=ports.replays, workers=ports.workers, archive=ports.archive
            )
            await nursery.start(run_retention, kernel, retention)
            task_status.started(controller)
            await serve(controller)
            nursery.cancel_scope.cancel("the controller has stopped serving")
        around.cancel_scope.cancel("nobody is left to ask")
