"""Composition root of ``lunanexa-node``: adapters, the agent service, signals.

The first SIGTERM or SIGINT stops the engines and then ends the process; a second one leaves out drain and
grace. When its supervisor ends, the agent ends at once and leaves the engines running: the next agent
finds them by their recorded identity.
"""

import os
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Final

import attrs
import click
import structlog
import trio

from lunanexa_adapters.children.supervisor import wait_supervisor_gone
from lunanexa_adapters.crypto.credentials import TlsCredentials
from lunanexa_adapters.crypto.signing import Ed25519Signer, Ed25519Verifier
from lunanexa_adapters.data_door.serve import serve_data_door
from lunanexa_adapters.files.atomic import make_directory
from lunanexa_adapters.files.bundle_files import describe_blob, read_file, read_whole_bundle, write_bundle
from lunanexa_adapters.files.counter import GenerationCounter
from lunanexa_adapters.files.data_directory import free_mib, open_to_others
from lunanexa_adapters.files.inbox import DirectoryInbox, read_reports
from lunanexa_adapters.files.lock import LockOutcome, describe_holder, holder_of
from lunanexa_adapters.files.media import look_at_inbox, look_at_outbox
from lunanexa_adapters.files.owned_file import read_owned_file, word_of
from lunanexa_adapters.files.presence import is_there
from lunanexa_adapters.files.private_files import LocalPrivateFiles
from lunanexa_adapters.http_client.http_client import H11HttpClient
from lunanexa_adapters.http_server.listeners import open_listeners
from lunanexa_adapters.machine.addresses import address_towards, why_not_listen
from lunanexa_adapters.machine.devices import find_devices
from lunanexa_adapters.processes.processes import LinuxProcesses
from lunanexa_adapters.sqlite.node_store import open_sqlite_node_store, read_sqlite_node_store
from lunanexa_adapters.system.clock import SystemClock
from lunanexa_adapters.system.ids import SystemIds
from lunanexa_adapters.system.memory import SystemMemory
from lunanexa_apps.cli.tools import fail_unwritten, forgive_output
from lunanexa_apps.daemon import MISCONFIGURED, follow_supervisor, leaves, refuse_held, start_logging
from lunanexa_apps.installation import NODE_ADOPTED_KEYS, NODE_LOCK, UP_LOCK, read_adopted_keys
from lunanexa_apps.node.air_gap.identity import read_air_gapped, refuse_air_gapped, refuse_enrolled
from lunanexa_apps.node.air_gap.places import PlaceTools
from lunanexa_apps.node.air_gap.service import run_air_gapped_agent
from lunanexa_apps.node.cli.air_gap import init_command, make_bundle_command, read_outbox_command
from lunanexa_apps.node.cli.checks import check_config_command, doctor_command
from lunanexa_apps.node.cli.enroll import command as enroll_command
from lunanexa_apps.node.cli.run import command as run_command
from lunanexa_apps.node.cli.tools import AirGapPlaces, MediaTools, NodeTools, RunOrder, admission_of
from lunanexa_apps.node.doctor import Instruments
from lunanexa_apps.node.folder import NodeFolder, Way
from lunanexa_apps.node.identity import read_identity
from lunanexa_apps.node.plan import AgentPlan, Misfit, plan_agent
from lunanexa_apps.node.policy_file import DEFAULT_PLACE, OwnersPolicy, parse_policy
from lunanexa_apps.node.service import NodeAgent, run_node_agent
from lunanexa_apps.node.settings import LocalPorts, NodePorts, NodeSettings, Shutdown
from lunanexa_apps.node.started import note_start
from lunanexa_apps.node.token_file import TokenFile
from lunanexa_apps.setting_kinds import HostPort
from lunanexa_core.drivers.specification import EngineAddress
from lunanexa_core.ids import NodeId
from lunanexa_ports.errors import PortError, PortFault, PortUnavailable
from lunanexa_ports.private_files import LockHeld

_log = structlog.get_logger()
_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
_TRY_AGAIN: Final = 1
_STORE: Final = "node.sqlite3"
_CLOSE_S: Final = 5.0


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="lunanexa", prog_name="lunanexa-node", message="%(prog)s %(version)s")
def program() -> None:
    """The node agent of one GPU machine.

    `enroll` makes the machine a node of a cluster, `run` follows its controller.
    """


for one in (
    *(enroll_command, run_command, check_config_command, doctor_command),
    *(init_command, make_bundle_command, read_outbox_command),
):
    program.add_command(one)


def main(arguments: Sequence[str] | None = None) -> int:
    tools = NodeTools(
        run=trio.run,
        version=version("lunanexa"),
        serve=_serve,
        lock=_lock,
        open_ports=_open_ports,
        open_local=_open_local,
        look=_look,
        token_file=_token_file,
        read_policy=_read_policy,
        address_towards=_address_towards,
        why_not_listen=_why_not_listen,
        media=_media(),
        places=_places(),
        start_logging=lambda log_format, verbose: start_logging(log_format, verbose=verbose),
    )
    forgive_output()
    try:
        program.main(arguments if arguments is None else list(arguments), "lunanexa-node", obj=tools)
    except OSError as error:
        fail_unwritten(error)
    raise AssertionError("a click program ends itself")


# --- the agent ---


def _serve(order: RunOrder) -> int:
    start_logging(order.log_format, verbose=order.verbose)
    status = MISCONFIGURED
    try:
        lock = _lock(order.data_dir)
        if isinstance(lock, LockHeld):
            return refuse_held(lock)
        with lock:
            return trio.run(_run, order)
    except* PortError as group:
        faults = leaves(group)
        for error in faults:
            _log.error("agent_failed", reason=str(error))
        # A supervisor restarts what may work the next time, and nothing else.
        status = MISCONFIGURED if any(isinstance(error, PortFault) for error in faults) else _TRY_AGAIN
    return status


async def _run(order: RunOrder) -> int:
    shutdown = Shutdown()
    with trio.open_signal_receiver(*_SIGNALS) as signals:
        async with _open_world(order.data_dir) as world, AsyncExitStack() as way, trio.open_nursery() as nursery:
            nursery.start_soon(_obey_signals, signals, shutdown)
            nursery.start_soon(follow_supervisor, partial(wait_supervisor_gone, os.environ), nursery.cancel_scope)
            nursery.start_soon(world.processes.logs.keep_capped)
            if order.air_gap is None:
                await _follow_controllers(order, world, way, shutdown, nursery)
            else:
                await _follow_bundles(order, order.air_gap, world, shutdown, nursery)
    return 0


async def _follow_controllers(
    order: RunOrder, world: "_World", way: AsyncExitStack, shutdown: Shutdown, nursery: trio.Nursery
) -> None:
    await refuse_air_gapped(world.ports.store)
    ports, credentials = await way.enter_async_context(_open_way(world))
    plan = plan_agent(order.told, await read_identity(world.ports.store), _address_towards)
    if isinstance(plan, Misfit):
        raise PortFault(f"{plan.field}: {plan.problem}; {plan.fix}")
    settings = _settings(order, world, plan.node, plan.controllers)
    admission = admission_of(order.told, order.token_file, plan.data_address)

    async def live(*, task_status: trio.TaskStatus[NodeAgent]) -> None:
        await run_node_agent(ports, settings, shutdown, admission=admission, task_status=task_status)
        nursery.cancel_scope.cancel("the agent has stopped")

    # Before the agent: one that can't be reached where it should be must not say that it serves.
    listeners = await _open_door(plan)
    await note_start(world.ports.store, holder_of(Path(order.data_dir) / NODE_LOCK), plan)
    agent = await nursery.start(live)
    if listeners:
        nursery.start_soon(serve_data_door, listeners, agent.door, credentials)


async def _follow_bundles(
    order: RunOrder, places: AirGapPlaces, world: "_World", shutdown: Shutdown, nursery: trio.Nursery
) -> None:
    authority = order.policy.authority
    assert authority is not None
    await refuse_enrolled(world.ports.store)
    known = await read_air_gapped(world.ports.store)
    if known is None:
        raise PortFault(f"{order.data_dir} is no air-gapped node's: lunanexa-node init --air-gapped makes it one")
    inbox = DirectoryInbox(
        inbox=Path(places.inbox),
        outbox=Path(places.outbox),
        blobs=world.folder / "blobs",
        counter=Path(places.counter),
    )
    settings = _settings(order, world, known.node, ())
    await run_air_gapped_agent(world.ports, settings, inbox, authority, shutdown)
    nursery.cancel_scope.cancel("the agent has stopped")


def _settings(order: RunOrder, world: "_World", node: NodeId, controllers: tuple[EngineAddress, ...]) -> NodeSettings:
    return NodeSettings(
        node=node,
        version=version("lunanexa"),
        controllers=controllers,
        adopted_keys=read_adopted_keys(LocalPrivateFiles(Path(order.data_dir)), NODE_ADOPTED_KEYS),
        working_directory=str(world.folder),
        policy=order.policy,
        heartbeat_ms=order.heartbeat_ms,
    )


async def _open_door(plan: AgentPlan) -> Sequence[trio.SocketListener]:
    if plan.data_listen is None:
        return ()
    _log.info("data_listener", listen=str(plan.data_listen), address=str(plan.data_address))
    try:
        return await open_listeners(plan.data_listen.host, plan.data_listen.port)
    except OSError as error:
        raise PortUnavailable(f"--data-listen: {plan.data_listen} can't be had: {error.strerror or error}") from error


async def _obey_signals(signals: AsyncIterator[int], shutdown: Shutdown) -> None:
    async for number in signals:
        _log.info("stopping", signal=signal.Signals(number).name, again=shutdown.asked.is_set())
        shutdown.ask()


# --- adapters ---


@attrs.frozen(kw_only=True)
class _World:
    ports: LocalPorts
    processes: LinuxProcesses
    folder: Path


@asynccontextmanager
async def _open_world(data_dir: str) -> AsyncIterator[_World]:
    """As far as it needs no network."""
    folder, clock = Path(data_dir) / "node", SystemClock()
    for name in ("secrets", "intents", "logs"):
        make_directory(folder / name)
    async with open_sqlite_node_store(folder / _STORE) as store:
        http, processes = H11HttpClient(), LinuxProcesses(intents=folder / "intents", logs=folder / "logs")
        ports = LocalPorts(
            http=http,
            clock=clock,
            ids=SystemIds(clock),
            store=store,
            processes=processes,
            memory=SystemMemory(),
            signer=Ed25519Signer.load_or_create(folder / "secrets" / "node.key"),
            verifier=Ed25519Verifier(),
        )
        try:
            yield _World(ports=ports, processes=processes, folder=folder)
        finally:
            with trio.move_on_after(_CLOSE_S, shield=True):
                await http.aclose()


@asynccontextmanager
async def _open_way(world: _World) -> AsyncIterator[tuple[NodePorts, TlsCredentials]]:
    """To controllers, with this node's own identity towards them."""
    make_directory(world.folder / "identity")
    credentials = TlsCredentials(world.folder / "identity")
    control = H11HttpClient(credentials=credentials)
    local = attrs.asdict(world.ports, recurse=False)
    try:
        yield NodePorts(**local, control=control, credentials=credentials), credentials
    finally:
        with trio.move_on_after(_CLOSE_S, shield=True):
            await control.aclose()


@asynccontextmanager
async def _open_ports(data_dir: str) -> AsyncIterator[NodePorts]:
    async with _open_world(data_dir) as world, _open_way(world) as (ports, _):
        yield ports


@asynccontextmanager
async def _open_local(data_dir: str) -> AsyncIterator[LocalPorts]:
    async with _open_world(data_dir) as world:
        yield world.ports


@asynccontextmanager
async def _look(data_dir: str) -> AsyncIterator[tuple[NodeFolder, Instruments]]:
    place = _place(data_dir)
    folder, clock = place / "node", SystemClock()
    key = folder / "secrets" / "node.key"
    async with AsyncExitStack() as stack:

        def way() -> Way:
            credentials = TlsCredentials(folder / "identity")
            control = H11HttpClient(credentials=credentials)
            stack.push_async_callback(control.aclose)
            return Way(credentials, control)

        kept, signs, holder = is_there(folder / _STORE), is_there(key), holder_of(place / NODE_LOCK)
        # Beside nobody it is read as what does not change, so that not even SQLite's own files are made.
        reader = read_sqlite_node_store(folder / _STORE, live=holder is not None)
        seen = NodeFolder(
            place=str(place),
            store=await stack.enter_async_context(reader) if kept else None,
            way=way,
            holder=holder,
            of_up=is_there(place / UP_LOCK),
            open_to_others=open_to_others(folder / "secrets", folder / "identity"),
            free_mib=free_mib(place),
        )
        instruments = Instruments(
            clock=clock,
            memory=SystemMemory(),
            signer=Ed25519Signer.load_or_create(key) if signs else None,
            find_devices=find_devices,
            address_towards=_address_towards,
            why_not_listen=_why_not_listen,
        )
        yield seen, instruments


def _lock(data_dir: str) -> LockOutcome:
    holder = describe_holder("lunanexa-node", SystemClock().now().wall_ms)
    return LocalPrivateFiles(_place(data_dir)).lock(NODE_LOCK, holder)


def _place(data_dir: str) -> Path:
    """Where a node's state lies, or may come to lie. Raises ``PortFault`` for what can't be that."""
    place = Path(data_dir)
    if is_there(place) and not place.is_dir():
        raise PortFault(f"{place} is no directory: name the one where the node's state lies, --data-dir DIR")
    if is_there(place / _STORE):
        above = place.absolute().parent
        raise PortFault(f"{place} is the node's folder in its data directory: name that one, --data-dir {above}")
    return place


def _token_file(path: str) -> TokenFile:
    absolute = Path(path).absolute()
    return TokenFile(LocalPrivateFiles(absolute.parent), absolute.name)


def _read_policy(path: str | None) -> OwnersPolicy:
    place = Path(path or DEFAULT_PLACE).absolute()
    data = read_owned_file(place, word_of(os.geteuid()))
    if data is None and path is not None:
        raise PortFault(f"there is no file {place}: write one, or leave the option out")
    return OwnersPolicy(str(place), None if data is None else parse_policy(str(place), data))


def _address_towards(controller: EngineAddress) -> str | None:
    return address_towards(controller.host, controller.port)


def _why_not_listen(place: HostPort) -> str | None:
    return why_not_listen(place.host, place.port)


def _media() -> MediaTools:
    return MediaTools(
        verifier=Ed25519Verifier(),
        read_key=_read_key,
        read_file=lambda path: read_file(Path(path)),
        read_bundle=lambda folder: read_whole_bundle(Path(folder)),
        describe_blob=lambda path: describe_blob(Path(path)),
        write_bundle=lambda folder, document, blobs: write_bundle(
            Path(folder), document, [(Path(path), blob) for path, blob in blobs]
        ),
        read_reports=lambda folder: read_reports(Path(folder)),
    )


def _places() -> PlaceTools:
    return PlaceTools(
        inbox=lambda place: look_at_inbox(Path(place)),
        outbox=lambda place: look_at_outbox(Path(place)),
        counter=lambda place: GenerationCounter(Path(place)).look(),
    )


def _read_key(path: str, make: bool) -> Ed25519Signer:
    if not make and not is_there(Path(path)):
        raise PortFault(f"there is no key {path}: name the authority's, or have one made there with --new-key")
    return Ed25519Signer.load_or_create(Path(path))


if __name__ == "__main__":
    sys.exit(main())
