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
from importlib.metadata import version
from pathlib import Path

import attrs
import structlog
import trio

from lunanexa_adapters.children.supervisor import wait_supervisor_gone
from lunanexa_adapters.crypto.signing import Ed25519Signer, Ed25519Verifier
from lunanexa_adapters.files.atomic import make_directory
from lunanexa_adapters.files.lock import LockHeld, describe_holder, hold_lock
from lunanexa_adapters.http_client.http_client import H11HttpClient
from lunanexa_adapters.processes.processes import LinuxProcesses
from lunanexa_adapters.sqlite.node_store import open_sqlite_node_store
from lunanexa_adapters.system.clock import SystemClock
from lunanexa_adapters.system.ids import SystemIds
from lunanexa_adapters.system.memory import SystemMemory
from lunanexa_apps.logging import configure_logging
from lunanexa_apps.node.service import run_node_agent
from lunanexa_apps.node.settings import HEARTBEAT_MS, NodePorts, NodeSettings, Shutdown
from lunanexa_core.drivers.specification import EngineAddress, parse_engine_url
from lunanexa_core.ids import NodeId, is_identifier
from lunanexa_core.keys import weak_secret
from lunanexa_ports.errors import PortError, PortFault

_log = structlog.get_logger()
_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_TRY_AGAIN, _TEMPORARY, _MISCONFIGURED = 1, 75, 78


@attrs.frozen(kw_only=True)
class _Options:
    data_dir: Path
    controller: EngineAddress
    node: NodeId
    heartbeat_ms: int
    log_format: str
    verbose: bool

    @property
    def folder(self) -> Path:
        return self.data_dir / "node"


def main(arguments: Sequence[str] | None = None) -> int:
    options = _read_options(sys.argv[1:] if arguments is None else arguments)
    configure_logging(
        level="debug" if options.verbose else "info",
        human=None if options.log_format == "auto" else options.log_format == "human",
    )
    started = SystemClock().now().wall_ms // 1000
    status = _MISCONFIGURED
    try:
        lock = hold_lock(options.folder / "lock", describe_holder("lunanexa-node", f"at {started}"))
        if isinstance(lock, LockHeld):
            _log.error("data_dir_in_use", holder=lock.holder, fix="stop it, or choose another --data-dir")
            return _TEMPORARY
        with lock:
            return trio.run(_run, options)
    except* PortError as group:
        faults = _leaves(group)
        for error in faults:
            _log.error("agent_failed", reason=str(error))
        # A supervisor restarts what may work the next time, and nothing else.
        status = _MISCONFIGURED if any(isinstance(error, PortFault) for error in faults) else _TRY_AGAIN
    return status


async def _run(options: _Options) -> int:
    folder, clock = options.folder, SystemClock()
    for name in ("secrets", "intents", "logs"):
        make_directory(folder / name)
    bearer = _read_bearer(folder / "secrets" / "controller_key")
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
                controller_host=options.controller.host,
                controller_port=options.controller.port,
                bearer=bearer,
                working_directory=str(folder),
                heartbeat_ms=options.heartbeat_ms,
            )
            nursery.start_soon(_obey_signals, signals, shutdown)
            nursery.start_soon(_follow_supervisor, nursery)
            nursery.start_soon(processes.logs.keep_capped)
            await run_node_agent(ports, settings, shutdown)
            await http.aclose()
            nursery.cancel_scope.cancel("the agent has stopped")
    return 0


async def _obey_signals(signals: AsyncIterator[int], shutdown: Shutdown) -> None:
    async for number in signals:
        _log.info("stopping", signal=signal.Signals(number).name, again=shutdown.asked.is_set())
        shutdown.ask()


async def _follow_supervisor(nursery: trio.Nursery) -> None:
    await wait_supervisor_gone(os.environ)
    _log.info("supervisor_gone", engines="left running")
    nursery.cancel_scope.cancel("the supervisor is gone")


def _read_options(arguments: Sequence[str]) -> _Options:
    parser = argparse.ArgumentParser("lunanexa-node", description="The node agent of one GPU machine.")
    run = parser.add_subparsers(dest="command", required=True).add_parser("run", help="follow a controller")
    run.add_argument("--data-dir", type=Path, required=True, metavar="DIR", help="where its state lies")
    run.add_argument("--controller", required=True, metavar="URL", help="http://HOST:PORT")
    run.add_argument("--node", required=True, metavar="NAME", help="this node's id")
    run.add_argument("--heartbeat-ms", type=int, default=HEARTBEAT_MS, metavar="MS", help=f"default {HEARTBEAT_MS}")
    run.add_argument("--log-format", choices=("auto", "json", "human"), default="auto")
    run.add_argument("-v", "--verbose", action="store_true", help="log debug messages too")
    found = parser.parse_args(arguments)
    controller = parse_engine_url(found.controller)
    if controller is None:
        run.error(f"--controller: {found.controller!r} is not http://HOST:PORT")
    if not is_identifier(found.node):
        run.error("--node: a node id has ASCII letters, digits and -_.: only, 256 at most")
    if not 100 <= found.heartbeat_ms <= 60_000:
        run.error("--heartbeat-ms: must be 100 to 60000")
    return _Options(
        data_dir=found.data_dir,
        controller=controller,
        node=NodeId(found.node),
        heartbeat_ms=found.heartbeat_ms,
        log_format=found.log_format,
        verbose=found.verbose,
    )


def _read_bearer(path: Path) -> str:
    try:
        secret = path.read_text(encoding="ascii", errors="replace").strip()
    except OSError as error:
        raise PortFault(
            f"the node's key {path} can't be read ({error.strerror}): copy the controller's node_key there"
        ) from None
    weakness = weak_secret(secret)
    if weakness is not None:
        raise PortFault(f"the node's key {path} is {weakness.value}")
    return secret


def _leaves(group: BaseExceptionGroup[BaseException]) -> list[BaseException]:
    found: list[BaseException] = []
    for error in group.exceptions:
        found.extend(_leaves(error) if isinstance(error, BaseExceptionGroup) else [error])
    return found


if __name__ == "__main__":
    sys.exit(main())
