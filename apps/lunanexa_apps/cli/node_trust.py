"""``lunanexa node token|revoke|address``: who may be a node of the fleet, and where its engines are reached."""

import os
import shlex
from typing import Any, Final
from urllib.parse import urlsplit

import click

from lunanexa_apps.cli.asking import ask_operator, print_json
from lunanexa_apps.cli.cells import duration, word
from lunanexa_apps.cli.node_options import known_name, new_name, why
from lunanexa_apps.cli.options import JSON, operator_options
from lunanexa_apps.cli.target import command_of
from lunanexa_apps.cli.tools import Tools, confirm, fail, write_note
from lunanexa_client import Document
from lunanexa_ports.errors import PortError

_LIST: Final = "node list"
_NODE_DIR: Final = "/var/lib/lunanexa"
_EVERYWHERE: Final = frozenset(("0.0.0.0", "::"))
_SOMEWHERE: Final = "https://CONTROLLER:PORT"
_NO_ADDRESS: Final = "none"


@click.command("token")
@new_name
@click.option("--again", is_flag=True, help="Also for a node that is enrolled; its certificates are void then.")
@click.option(
    "--loopback",
    is_flag=True,
    help="For a node of the controller's own machine: its engines are reached on loopback, without a data listener.",
)
@click.option(
    "--out", type=click.Path(dir_okay=False), metavar="FILE", help="Write it to a file that only you can read."
)
@operator_options
def token(
    tools: Tools,
    /,
    name: str,
    again: bool,
    loopback: bool,
    out: str | None,
    config: str | None,
    output: str,
    **flags: str | None,
) -> None:
    """Mint the token with which one machine may enrol as NAME: good once, for 15 minutes."""
    made, _ = ask_operator(
        tools,
        flags,
        config,
        lambda operator: operator.mint_token(name, again=again, loopback=loopback),
        listed_by=_LIST,
    )
    if out is not None:
        _keep(tools, out, made)
    if output == JSON:
        shown = {key: value for key, value in made.items() if key != "line" or out is None}
        print_json(shown if out is None else {**shown, "file": out})
        return
    click.echo(f"the token for {name} is in {out}" if out is not None else word(made.get("line")))
    write_note(f"it is good once, for {duration(made.get('expires_in_ms'))}. Bring it to {name}, and run there:")
    file = "FILE" if out is None else os.path.basename(out)
    command = (
        f"lunanexa-node enroll --controller {_controller(made)} --token-file {shlex.quote(file)} --data-dir {_NODE_DIR}"
    )
    click.echo(f"       {command}", err=True)


@click.command("revoke")
@known_name
@why
@click.option("--yes", is_flag=True, help="Don't ask.")
@operator_options
def revoke(
    tools: Tools, /, name: str, reason: str | None, yes: bool, config: str | None, output: str, **flags: str | None
) -> None:
    """Shut a node out, at once: its certificates and its key are void, and what it had is placed elsewhere."""
    if not yes:
        if output == JSON:
            fail("a node that is revoked must be enrolled anew", hint="repeat it with --yes")
        question = f"Revoke {name}? It gets no request any more, at once, and comes back with a new token only."
        confirm(question)
    found, target = ask_operator(
        tools, flags, config, lambda operator: operator.revoke_node(name, reason=reason), listed_by=_LIST
    )
    if output == JSON:
        print_json(found)
        return
    click.echo(f"{name} is revoked")
    write_note(f"to let it in again: {command_of(target, f'node token {name} --again')}")


@click.command("address")
@known_name
@click.argument("data_address", metavar="HOST:PORT")
@operator_options
def address(
    tools: Tools, /, name: str, data_address: str, config: str | None, output: str, **flags: str | None
) -> None:
    """Say where gateways reach a node's data listener from now on; `none`: it has none."""
    told = None if data_address == _NO_ADDRESS else data_address
    found, _ = ask_operator(tools, flags, config, lambda operator: operator.set_address(name, told), listed_by=_LIST)
    if output == JSON:
        print_json(found)
    elif told is None:
        click.echo(f"{name} has no data listener: only engines on the controller's own machine are reached")
    else:
        click.echo(f"{name} is reached at {told}")


def _keep(tools: Tools, out: str, made: Document) -> None:
    folder, file = os.path.split(os.path.abspath(out))
    try:
        tools.make_files(folder).replace(file, f"{made['line']}\n".encode())
    except PortError as error:
        fail(f"the token could not be kept: {error}", hint="mint another one, into another file")


def _controller(made: Document) -> str:
    """Where the node enrols. A listener on every address has none that another machine could use."""
    url: Any = made.get("node_url")
    if not isinstance(url, str):
        return _SOMEWHERE
    parts = urlsplit(url)
    return f"https://CONTROLLER:{parts.port}" if parts.hostname in _EVERYWHERE else url
