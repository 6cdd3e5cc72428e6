"""Composition root of ``lunanexa-node``: adapters, the agent service, signals.

The first SIGTERM or SIGINT stops the engines and then ends the process; a second one leaves out drain and
grace. When its supervisor ends, the agent ends at once and leaves the engines running: the next agent
finds them by their recorded identity.
"""

import argparse
import os
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path

import attrs
import structlog
import trio

from lunanexa_adapters.children.supervisor import wait_supervisor_gone
from lunanexa_adapters.crypto.signing import Ed25519Signer, Ed25519Verifier
from lunanexa_adapters.files.atomic import make_directory
from lunanexa_adapters.files.lock import describe_holder
from lunanexa_adapters.files.private_files import LocalPrivateFiles
from lunanexa_adapters.http_client.http_client import H11HttpClient
from lunanexa_adapters.processes.processes import LinuxProcesses
from lunanexa_adapters.sqlite.node_store import open_sqlite_node_store
from lunanexa_adapters.system.clock import SystemClock
from lunanexa_adapters.system.ids import SystemIds
from lunanexa_adapters.system.memory import SystemMemory
from lunanexa_apps.daemon import MISCONFIGURED, follow_supervisor, leaves, refuse_held, start_logging
from lunanexa_apps.installation import NODE_ADOPTED_KEYS, NODE_LOCK, read_adopted_keys, read_controller_key
from lunanexa_apps.node.service import run_node_agent
from lunanexa_apps.node.settings import HEARTBEAT_MS, NodePorts, NodeSettings, Shutdown
from lunanexa_core.drivers.specification import EngineAddress, parse_engine_url
from lunanexa_core.ids import NodeId, is_identifier
from lunanexa_ports.errors import PortError, PortFault
from lunanexa_ports.private_files import LockHeld

_log = structlog.get_logger()
_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_TRY_AGAIN = 1


@attrs.frozen(kw_only=True)
class _Options:
    data_dir: Path
    controllers: tuple[EngineAddress, ...]
    node: NodeId
    heartbeat_ms: int
    log_format: str
    verbose: bool

    @property
    def folder(self) -> Path:
        return self.data_dir / "node"


def main(arguments: Sequence[str] | None = None) -> int:
    options = _read_options(sys.argv[1:] if arguments is None else arguments)
    start_logging(options.log_format, verbose=options.verbose)
    holder = describe_holder("lunanexa-node", f"at {SystemClock().now().wall_ms // 1000}")
    status = MISCONFIGURED
    try:
        lock = LocalPrivateFiles(options.data_dir).lock(NODE_LOCK, holder)
        if isinstance(lock, LockHeld):
            return refuse_held(lock)
        with lock:
            return trio.run(_run, options)
    except* PortError as group:
        faults = leaves(group)
        for error in faults:
            _log.error("agent_failed", reason=str(error))
        # A supervisor restarts what may work the next time, and nothing else.
        status = MISCONFIGURED if any(isinstance(error, PortFault) for error in faults) else _TRY_AGAIN
    return status


async def _run(options: _Options) -> int:
    folder, clock = options.folder, SystemClock()
    for name in ("secrets", "intents", "logs"):
        make_directory(folder / name)
    files = LocalPrivateFiles(options.data_dir)
    bearer, adopted_keys = read_controller_key(files), read_adopted_keys(files, NODE_ADOPTED_KEYS)
    shutdown = Shutdown()
    with trio.open_signal_receiver(*_SIGNALS) as signals:
        async with open_sqlite_node_store(folder / "node.sqlite3") as store, trio.open_nursery() as nursery:
            http = H11HttpClient()
            processes = LinuxProcesses(intents=folder / "intents", logs=folder / "logs")
            ports = NodePorts(
                http=http,
                clock=clock,
                ids=SystemIds(clock),
                store=store,
                processes=processes,
                memory=SystemMemory(),
                signer=Ed25519Signer.load_or_create(folder / "secrets" / "node.key"),
                verifier=Ed25519Verifier(),
            )
            settings = NodeSettings(
                node=options.node,
                version=version("lunanexa"),
                controllers=options.controllers,
                bearer=bearer,
                adopted_keys=adopted_keys,
                working_directory=str(folder),
                heartbeat_ms=options.heartbeat_ms,
            )
            nursery.start_soon(_obey_signals, signals, shutdown)
            nursery.start_soon(follow_supervisor, partial(wait_supervisor_gone, os.environ), nursery.cancel_scope)
            nursery.start_soon(processes.logs.keep_capped)
            await run_node_agent(ports, settings, shutdown)
            await http.aclose()
            nursery.cancel_scope.cancel("the agent has stopped")
    return 0


async def _obey_signals(signals: AsyncIterator[int], shutdown: Shutdown) -> None:
    async for number in signals:
        _log.info("stopping", signal=signal.Signals(number).name, again=shutdown.asked.is_set())
        shutdown.ask()


def _read_options(arguments: Sequence[str]) -> _Options:
    parser = argparse.ArgumentParser("lunanexa-node", description="The node agent of one GPU machine.")
    run = parser.add_subparsers(dest="command", required=True).add_parser("run", help="follow a controller")
    run.add_argument("--data-dir", type=Path, required=True, metavar="DIR", help="where its state lies")
    run.add_argument(
        "--controller",
        action="append",
        required=True,
        metavar="URL",
        help="http://HOST:PORT; again for others of the same service: the one that leads is found",
    )
    run.add_argument("--node", required=True, metavar="NAME", help="this node's id")
    run.add_argument("--heartbeat-ms", type=int, default=HEARTBEAT_MS, metavar="MS", help=f"default {HEARTBEAT_MS}")
    run.add_argument("--log-format", choices=("auto", "json", "human"), default="auto")
    run.add_argument("-v", "--verbose", action="store_true", help="log debug messages too")
    found = parser.parse_args(arguments)
    controllers = []
    for url in found.controller:
        controller = parse_engine_url(url)
        if controller is None:
            run.error(f"--controller: {url!r} is not http://HOST:PORT")
        if controller not in controllers:
            controllers.append(controller)
    if not is_identifier(found.node):
        run.error("--node: a node id has ASCII letters, digits and -_.: only, 256 at most")
    if not 100 <= found.heartbeat_ms <= 60_000:
        run.error("--heartbeat-ms: must be 100 to 60000")
    return _Options(
        data_dir=found.data_dir,
        controllers=tuple(controllers),
        node=NodeId(found.node),
        heartbeat_ms=found.heartbeat_ms,
        log_format=found.log_format,
        verbose=found.verbose,
    )


if __name__ == "__main__":
    sys.exit(main())
