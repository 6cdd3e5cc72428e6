"""Composition root of ``lunanexa-controller``: adapters, kernel, gateway, listeners, signals.

The first SIGTERM or SIGINT drains: nothing new is admitted, what runs may end within ``--drain-ms``; a
second one ends the process at once. The end of a supervisor ends it at once too: it would be restarted
beside its successor.
"""

import gc
import os
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from importlib.metadata import version
from pathlib import Path

import attrs
import structlog
import trio

from lunanexa_adapters.asgi.control import build_control_app
from lunanexa_adapters.asgi.data_plane import DataPlane, DataPlaneSettings
from lunanexa_adapters.asgi.errors import render_error
from lunanexa_adapters.asgi.node_plane import NodePlaneApp
from lunanexa_adapters.asgi.root import NodeRoot, Root
from lunanexa_adapters.children.replays import ChildReplays
from lunanexa_adapters.children.supervisor import wait_supervisor_gone
from lunanexa_adapters.crypto.credentials import TlsCredentials
from lunanexa_adapters.crypto.fleet_keys import LocalFleetKeys
from lunanexa_adapters.crypto.signing import Ed25519Verifier
from lunanexa_adapters.files.ledger_archive import LocalLedgerArchive
from lunanexa_adapters.files.lock import describe_holder
from lunanexa_adapters.files.private_files import LocalPrivateFiles
from lunanexa_adapters.files.snapshots import LocalSnapshots
from lunanexa_adapters.http_client.http_client import H11HttpClient
from lunanexa_adapters.http_server.lean import serve_lean
from lunanexa_adapters.http_server.limits import ServerLimits
from lunanexa_adapters.http_server.listeners import addresses, open_listeners
from lunanexa_adapters.http_server.serve import serve_http
from lunanexa_adapters.http_server.tls_listener import TlsListener
from lunanexa_adapters.postgres.address import parse_address
from lunanexa_adapters.postgres.journal import PostgresJournal, open_postgres_journal
from lunanexa_adapters.prometheus.metrics import PrometheusMetrics
from lunanexa_adapters.sqlite.answers import open_sqlite_answers
from lunanexa_adapters.sqlite.journal import SqliteJournal, open_sqlite_journal
from lunanexa_adapters.system.clock import SystemClock
from lunanexa_adapters.system.ids import SystemIds
from lunanexa_adapters.system.workers import SystemWorkers
from lunanexa_adapters.websocket.application import WebSocketPlane
from lunanexa_adapters.websocket.report import HELP as WEBSOCKET_HELP
from lunanexa_apps.controller.arguments import ControllerArguments, parse_arguments
from lunanexa_apps.controller.drain import drain
from lunanexa_apps.controller.gateway.report import HELP
from lunanexa_apps.controller.gateway.service import Gateway
from lunanexa_apps.controller.gateway.settings import GatewaySettings
from lunanexa_apps.controller.nodes import HELP as NODES_HELP
from lunanexa_apps.controller.ready_file import ControllerFacts, ControllerReadyFile
from lunanexa_apps.controller.secrets import first_command
from lunanexa_apps.controller.service import Controller, ControllerPorts, run_controller
from lunanexa_apps.daemon import MISCONFIGURED, follow_supervisor, leaves, refuse_held, start_logging
from lunanexa_apps.installation import (
    CONTROLLER_ADOPTED_KEYS,
    CONTROLLER_LOCK,
    LISTEN,
    ControllerSecrets,
    keep_holder,
    keep_secrets,
    read_adopted_keys,
    write_address,
)
from lunanexa_apps.setting_kinds import HostPort
from lunanexa_core.events import UnknownEvent
from lunanexa_core.ids import ClusterId, HolderId, SessionId
from lunanexa_core.leadership import Seat
from lunanexa_core.workload import Dialect
from lunanexa_ports.answers import Answers
from lunanexa_ports.errors import PortError, PortUnavailable
from lunanexa_ports.private_files import LockHeld

_log = structlog.get_logger()
_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_TRY_AGAIN, _UNAVAILABLE = 1, 69
_COLLECT_AFTER = (20_000, 20, 20)
"""Of the cycle collector. By Python's own figures it passes over everything every few seconds where a thousand
nodes are connected, and holds the loop for 0.2 to 0.3 s each time (docs/performance.md)."""


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse_arguments(list(sys.argv[1:] if arguments is None else arguments), os.environ)
    start_logging(options.log_format, verbose=options.verbose)
    gc.set_threshold(*_COLLECT_AFTER)
    clock, again = SystemClock(), False
    holder = describe_holder("lunanexa-controller", clock.now().wall_ms)
    try:
        lock = LocalPrivateFiles(options.data_dir).lock(CONTROLLER_LOCK, holder)
        if isinstance(lock, LockHeld):
            return refuse_held(lock)
        with lock:
            return trio.run(_Process(options, clock).run)
    except* (PortError, UnknownEvent) as group:
        for error in leaves(group):
            _log.error("controller_stopped", reason=str(error))
            # A supervisor may start it again: what was unavailable may be back.
            again = again or isinstance(error, PortUnavailable)
    return _TRY_AGAIN if again else MISCONFIGURED


class _Process:
    """One run of the controller process."""

    def __init__(self, options: ControllerArguments, clock: SystemClock) -> None:
        self._options = options
        self._clock = clock
        self._ids = SystemIds(clock)
        self._folder = options.data_dir / "controller"
        self._files = LocalPrivateFiles(options.data_dir)
        self._ready = _ready_file(options.ready_file)
        self._metrics = PrometheusMetrics({**HELP, **NODES_HELP, **WEBSOCKET_HELP})
        self._fleet_keys = LocalFleetKeys(self._folder / "secrets", clock)
        self._server, self._gateway = TlsCredentials(None), TlsCredentials(None)
        self._status = 0

    async def run(self) -> int:
        options = self._options
        self._ready.remove()
        secrets = keep_secrets(self._files, self._ids)
        adopted_keys = read_adopted_keys(self._files, CONTROLLER_ADOPTED_KEYS)
        listeners = await _listen("--listen", (options.host, options.port))
        node_listeners = [] if options.node_listen is None else await _listen("--node-listen", options.node_listen)
        if listeners is None or node_listeners is None:
            return _UNAVAILABLE
        doors = _Doors(listeners, node_listeners)
        cluster = ClusterId(self._ids.new("cluster"))
        begin = first_command(secrets, self._fleet_keys, cluster, version("lunanexa"), options.node_url)
        with trio.open_signal_receiver(*_SIGNALS) as signals:
            async with (
                self._open_journal() as journal,
                open_sqlite_answers(self._folder / "answers.sqlite3", options.retain_bytes_max) as answers,
                trio.open_nursery() as nursery,
            ):
                ports = ControllerPorts(
                    journal=journal,
                    leadership=journal,
                    clock=self._clock,
                    ids=self._ids,
                    fleet_keys=self._fleet_keys,
                    server=self._server,
                    gateway=self._gateway,
                    verifier=Ed25519Verifier(),
                    metrics=self._metrics,
                    files=self._files,
                    snapshots=LocalSnapshots(self._folder / "snapshots"),
                    replays=self._replays(),
                    upkeep=journal,
                    archive=LocalLedgerArchive(self._folder / "archive") if options.ledger_archive else None,
                    workers=SystemWorkers(),
                )
                shutdown, stopping = trio.Event(), trio.Event()
                nursery.start_soon(self._obey_signals, signals, stopping, nursery)
                nursery.start_soon(follow_supervisor, partial(wait_supervisor_gone, os.environ), nursery.cancel_scope)
                serve = partial(self._serve, doors, secrets, answers, stopping, shutdown)
                await run_controller(
                    ports,
                    options.policy,
                    begin,
                    secrets.engine_secret,
                    serve,
                    seat=self._seat(),
                    adopted_keys=adopted_keys,
                    node_url=options.node_url or doors.node_url,
                )
                nursery.cancel_scope.cancel("the controller has stopped")
        _log.info("stopped", status=self._status)
        return self._status

    def _replays(self) -> ChildReplays:
        options, inside = self._options, self._folder / "store.sqlite3"
        store = {"sqlite": str(inside)} if options.store is None else {"postgresql": options.store.value}
        order = {**store, "snapshots": str(self._folder / "snapshots"), "log_format": options.log_format}
        return ChildReplays((sys.executable, "-m", "lunanexa_apps.replayer.main"), order, os.environ)

    def _seat(self) -> Seat:
        """The host's name is part of it: a copied data directory is another holder."""
        name = os.uname().nodename
        return Seat(HolderId(f"{keep_holder(self._files, self._ids)}@{name}"), f"{name}:{self._options.port}")

    def _open_journal(self) -> "AbstractAsyncContextManager[PostgresJournal | SqliteJournal]":
        inside = self._folder / "store.sqlite3"
        if self._options.store is None:
            return open_sqlite_journal(inside)
        if inside.exists():
            _log.warning("store_unused", path=str(inside), fix="start without --store to go on with what it holds")
        address = parse_address(self._options.store.value)
        _log.info("store_outside", address=address.shown)
        return open_postgres_journal(
            address, lease_ms=self._options.policy.lease_ms, accept_lost_tail=self._options.accept_lost_tail
        )

    async def _serve(
        self,
        doors: "_Doors",
        secrets: ControllerSecrets,
        answers: Answers,
        stopping: trio.Event,
        shutdown: trio.Event,
        controller: Controller,
    ) -> None:
        metrics = self._metrics
        client = H11HttpClient(credentials=self._gateway)
        session = SessionId(self._ids.new("session"))
        gateway = Gateway(
            dispatch=controller.dispatch,
            client=client,
            clock=self._clock,
            ids=self._ids,
            metrics=metrics,
            workers=SystemWorkers(),
            session=session,
            answers=answers,
            settings=GatewaySettings(deadline_ms=self._options.deadline_ms),
        )
        stream = WebSocketPlane(
            gateway=gateway,
            workloads=controller.workloads,
            ids=self._ids,
            clock=self._clock,
            metrics=metrics,
            session=session,
        )
        serve, serve_nodes = (
            partial(
                serve,
                render_error=render_error,
                on_fault=_tell_fault,
                limits=ServerLimits(grace_ms=1_000),
                shutdown=shutdown,
            )
            for serve in (serve_http, serve_lean)  # nodes have no WebSocket, and report all the time
        )
        nodes = NodeRoot(nodes=NodePlaneApp(controller.nodes, self._ids), ids=self._ids)
        secured = [TlsListener(one, self._server, demand=False, on_fault=_tell_fault) for one in doors.for_nodes]
        async with trio.open_nursery() as around:
            await around.start(gateway.run)
            async with trio.open_nursery() as outlasting:
                await outlasting.start(stream.run)
                outlasting.start_soon(_follow_drain, controller, stream)
                async with trio.open_nursery() as serving:
                    await serving.start(serve, self._root(controller, gateway, stream, metrics), doors.for_all)
                    await serving.start(serve_nodes, nodes, secured)
                    self._announce(doors, secrets, controller)
                    await stopping.wait()
                    await drain(controller.kernel, self._options.drain_ms)
                    stream.close()
                    shutdown.set()
                outlasting.cancel_scope.cancel("no connection is left")
            around.cancel_scope.cancel("no request is left")
        await client.aclose()
        self._files.remove(LISTEN)
        self._ready.remove()

    def _root(
        self, controller: Controller, gateway: Gateway, stream: WebSocketPlane, metrics: PrometheusMetrics
    ) -> Root:
        data_plane = DataPlane(
            gateway=gateway,
            workloads=controller.workloads,
            health=controller.operator,
            metrics=metrics,
            ids=self._ids,
            clock=self._clock,
            settings=self._edge_settings(),
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
            ids=self._ids,
        )
        return Root(data_plane=data_plane, control=control, stream=stream, ids=self._ids)

    def _edge_settings(self) -> DataPlaneSettings:
        limit = self._options.body_limit_bytes
        if limit is None:
            return DataPlaneSettings(version=version("lunanexa"))
        return DataPlaneSettings(
            version=version("lunanexa"), body_limits=dict.fromkeys(Dialect, limit), envelope_bytes_max=limit
        )

    def _announce(self, doors: "_Doors", secrets: ControllerSecrets, controller: Controller) -> None:
        base_url, trust = write_address(self._files, doors.address), controller.kernel.state.trust
        fingerprint = None if trust is None else trust.issuing.fingerprint
        self._ready.write(
            ControllerFacts(
                base_url=base_url,
                node_url=doors.node_url,
                ca_fingerprint=fingerprint,
                operator_token=secrets.operator_token,
                api_key=secrets.api_key,
                pid=os.getpid(),
            )
        )
        _log.info("serving", base_url=base_url, node_url=doors.node_url, ca_fingerprint=fingerprint, pid=os.getpid())

    async def _obey_signals(self, signals: AsyncIterator[int], stopping: trio.Event, nursery: trio.Nursery) -> None:
        async for number in signals:
            if stopping.is_set():
                self._status = 128 + number
                nursery.cancel_scope.cancel("a second signal")
                return
            stopping.set()


@attrs.frozen
class _Doors:
    """What the process listens on. ``for_nodes`` may be none."""

    for_all: list[trio.SocketListener]
    for_nodes: list[trio.SocketListener]

    @property
    def address(self) -> HostPort:
        return HostPort(*addresses(self.for_all)[0])

    @property
    def node_url(self) -> str | None:
        return f"https://{HostPort(*addresses(self.for_nodes)[0])}" if self.for_nodes else None


def _ready_file(path: Path | None) -> ControllerReadyFile:
    if path is None:
        return ControllerReadyFile(None)
    return ControllerReadyFile(LocalPrivateFiles(path.absolute().parent), path.name)


async def _listen(option: str, address: tuple[str, int]) -> list[trio.SocketListener] | None:
    """``None``: it is told why that is not possible."""
    try:
        return await open_listeners(*address)
    except OSError as error:
        _log.error(
            "cannot_listen",
            address=str(HostPort(*address)),
            reason=error.strerror or str(error),
            fix=f"stop what listens there, or choose another {option} HOST:PORT",
        )
        return None


async def _follow_drain(controller: Controller, stream: WebSocketPlane) -> None:
    """A signal begins a drain, or an operator: those on a WebSocket are told either way."""
    await controller.dispatch.draining.wait()
    stream.begin_drain()


def _tell_fault(error: BaseException) -> None:
    # The kind only: an error's text can hold what a client sent.
    _log.warning("connection_fault", kind=type(error).__name__)


if __name__ == "__main__":
    sys.exit(main())
