"""``lunanexa up``: everything that is decided before the first process starts, and then the service."""

import os
import shlex
import signal
import sys
from functools import partial
from typing import Final

import click
import trio
from rich.console import Console

from lunanexa_apps.cli.options import (
    JSON,
    complete_place,
    config_option,
    output_option,
    setting_options,
    settings_or_exit,
)
from lunanexa_apps.cli.tools import EXIT_CONFIG, EXIT_HELD, EXIT_UNAVAILABLE, Tools, fail
from lunanexa_apps.cli.up_screen import Announcer, ForgivingScreen, PlainScreen, TerminalScreen
from lunanexa_apps.installation import UP_LOCK, prepare_installation, write_adopted_keys
from lunanexa_apps.logging import configure_logging
from lunanexa_apps.setting_kinds import LOCAL
from lunanexa_apps.settings import Flag
from lunanexa_apps.up.adoption import named
from lunanexa_apps.up.choice import AdoptedServer, ChoiceRefused, Chosen
from lunanexa_apps.up.configuration import CommandSettings, LogFormat
from lunanexa_apps.up.engine_choice import choose_engine
from lunanexa_apps.up.orders import child_orders
from lunanexa_apps.up.port_check import CanNotListen, check_listen
from lunanexa_apps.up.ready_file import ReadyFile
from lunanexa_apps.up.screen import Failure, Screen
from lunanexa_apps.up.service import UpPlan, run_up
from lunanexa_apps.up.surroundings import look_around, usual_servers
from lunanexa_apps.up.wish import read_wish
from lunanexa_core.drivers.catalog import DRIVERS
from lunanexa_ports.errors import PortError
from lunanexa_ports.http_client import HttpClient
from lunanexa_ports.private_files import LockHeld, PrivateFiles

EXIT_USAGE: Final = 64
_INTERRUPTS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""SIGHUP too: who closes the terminal wants the engine gone, and the default would leave it running."""
_LADDER: Final = ("warning", "info", "debug")
_METAVARS: Final = {
    "data_dir": "DIR",
    "listen": "HOST:PORT",
    "node_listen": "HOST:PORT",
    "store": "URL",
    "standby": "URL",
    "model": "FILE",
    "engine": "NAME",
    "engine_binary": "PATH",
    "engine_argument": "ARG",
    "adopt": "URL",
    "adopt_key_file": "FILE",
    "alias": "NAME",
    "slots": "N",
    "context_tokens": "N",
    "queue_requests_max": "N",
    "queue_wait_ms": "N",
    "default_deadline_ms": "N",
    "body_limit_bytes": "N",
    "retain_ms_max": "N",
    "retain_bytes_max": "N",
    "ledger_keep_receipts": "N",
    "ledger_keep_days": "N",
    "ledger_archive": "on|off",
    "log_level": "LEVEL",
    "log_format": "FORMAT",
}


@click.command("up", epilog="Engines: " + ", ".join(DRIVERS) + ".")
@setting_options(*_METAVARS, metavar=_METAVARS)
@click.option(
    "--ready-file",
    metavar="PATH",
    shell_complete=complete_place,
    help="JSON file, written when the first call would succeed.",
)
@click.option("-v", "--verbose", count=True, help="Log more; twice: everything.")
@config_option
@output_option
@click.pass_obj
def command(
    tools: Tools,
    /,
    ready_file: str | None,
    verbose: int,
    config: str | None,
    output: str,
    **flags: Flag,
) -> None:
    """Serve a model on this machine until Ctrl-C.

    A controller and a node agent are started and kept running, a model is deployed, and what a first call
    needs is printed. Without options the small reference engine serves; --model FILE.gguf takes llama.cpp's
    llama-server; --adopt URL takes every model of a server that runs already (Ollama, vLLM, llama-server or any
    OpenAI-compatible one), --adopt local those on the usual ports of this machine.

    Ctrl-C finishes what is in flight and stops the engine; a second Ctrl-C stops at once.
    """
    settings = settings_or_exit(flags, config).settings
    terminal = sys.stderr.isatty() and settings.log_format is not LogFormat.JSON
    level = _log_level(settings, verbose, terminal=terminal)
    configure_logging(level=level, human={"human": True, "json": False}.get(settings.log_format.value))
    announcer = Announcer(Console(highlight=False), as_json=output == JSON)
    # With more log lines than warnings, a line that moves would be torn apart by them.
    moving = terminal and level == _LADDER[0]
    screen: Screen = (
        TerminalScreen(Console(stderr=True, highlight=False), announcer) if moving else PlainScreen(announcer)
    )
    ready = None if ready_file is None else _ready_file(tools, ready_file)
    result = tools.run(partial(_up, tools, settings, ready, level, ForgivingScreen(screen)))
    if isinstance(result, Failure):
        fail(result.message, hint=result.hint, details=result.details, exit_code=result.exit_code)
    raise SystemExit(result)


def _log_level(settings: CommandSettings, verbose: int, *, terminal: bool) -> str:
    usual = 0 if terminal else 1
    if verbose == 0 and settings.log_level is not None:
        return settings.log_level.value
    return _LADDER[min(usual + verbose, len(_LADDER) - 1)]


def _ready_file(tools: Tools, path: str) -> ReadyFile:
    folder, name = os.path.split(os.path.abspath(path))
    if not path or not name:
        raise click.UsageError("--ready-file: name a file")
    return ReadyFile(tools.make_files(folder), name)


async def _up(
    tools: Tools, settings: CommandSettings, ready_file: ReadyFile | None, level: str, screen: Screen
) -> int | Failure:
    files = tools.make_files(settings.data_dir)
    try:
        lock = files.lock(UP_LOCK, f"process {os.getpid()}")
    except PortError as error:
        return Failure(message=str(error), hint="mend that, or choose another --data-dir", exit_code=EXIT_CONFIG)
    if isinstance(lock, LockHeld):
        return Failure(
            message=f"{settings.data_dir} is run by {lock.holder} already",
            hint=f"see it: lunanexa status --data-dir {shlex.quote(settings.data_dir)}; "
            "or take another --data-dir and --listen",
            exit_code=EXIT_HELD,
        )
    with lock:
        http = tools.make_http()
        try:
            return await _prepare_and_serve(tools, settings, files, ready_file, level, screen, http)
        finally:
            with trio.move_on_after(1, shield=True):
                await http.aclose()


async def _prepare_and_serve(
    tools: Tools,
    settings: CommandSettings,
    files: PrivateFiles,
    ready_file: ReadyFile | None,
    level: str,
    screen: Screen,
    http: HttpClient,
) -> int | Failure:
    listen = await check_listen(settings.listen)
    if isinstance(listen, CanNotListen):
        return Failure(message=listen.message, hint=listen.hint, exit_code=EXIT_UNAVAILABLE)
    node_listen = await check_listen(settings.node_listen, flag="--node-listen")
    if isinstance(node_listen, CanNotListen):
        return Failure(message=node_listen.message, hint=node_listen.hint, exit_code=EXIT_UNAVAILABLE)
    chosen = await _choose(settings, http, screen)
    if isinstance(chosen, ChoiceRefused):
        return Failure(message=chosen.message, hint=chosen.hint, exit_code=EXIT_USAGE)
    try:
        installation = prepare_installation(files, tools.make_ids())
        write_adopted_keys(files, chosen.adopt_keys)
    except PortError as error:
        return Failure(message=str(error), exit_code=EXIT_CONFIG)
    controller, node = child_orders(settings, listen, node_listen, os.environ, level)
    plan = UpPlan(
        data_dir=settings.data_dir,
        installation=installation,
        listen=listen,
        chosen=chosen,
        controller=controller,
        node=node,
    )
    with (
        trio.open_signal_receiver(*_INTERRUPTS) as interrupts,
        tools.make_children() as children,
    ):
        return await run_up(
            plan,
            files=files,
            children=children,
            http=http,
            interrupts=interrupts,
            screen=screen,
            ready_file=ready_file,
        )


async def _choose(settings: CommandSettings, http: HttpClient, screen: Screen) -> Chosen | ChoiceRefused:
    usual: tuple[AdoptedServer, ...] = ()
    nothing_said = not settings.adopt and settings.model is None and settings.engine is None
    if nothing_said or LOCAL in settings.adopt:
        usual = await usual_servers(http)
    if nothing_said:
        for server in usual:
            screen.note(f"found {named(server)}; serve its models with --adopt {server.url}")
    wish = read_wish(settings, tuple(server.url for server in usual))
    if isinstance(wish, ChoiceRefused):
        return wish
    chosen = choose_engine(wish, await look_around(wish, os.environ, http))
    if isinstance(chosen, Chosen):
        for note in chosen.notes:
            screen.note(note)
    return chosen
