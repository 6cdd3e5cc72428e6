"""Options that several commands have."""

from collections.abc import Callable
from typing import Any, TypeVar

import click

from lunanexa_apps.cli.tools import EXIT_CONFIG, fail
from lunanexa_apps.node.cli.tools import NodeTools
from lunanexa_apps.node.plan import DATA_PORT, Told
from lunanexa_apps.node.policy_file import DEFAULT_PLACE, OwnersPolicy
from lunanexa_apps.node.token_file import TokenFile
from lunanexa_apps.setting_kinds import Address, HostPort, NotOfThisKind
from lunanexa_core.drivers.specification import EngineAddress
from lunanexa_core.identity.token import EnrolmentToken
from lunanexa_core.southbound.controllers import parse_controller_url
from lunanexa_ports.errors import PortError, PortFault

F = TypeVar("F", bound=Callable[..., Any])
NO_LISTENER = "none"
EXIT_TRY_AGAIN = 1


class _ControllerUrl(click.ParamType[EngineAddress]):
    name = "url"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> EngineAddress:
        found = value if isinstance(value, EngineAddress) else parse_controller_url(str(value))
        if found is None:
            self.fail(f"{value!r} is not https://HOST:PORT, as the controller's --node-listen says", param, ctx)
        return found


class _HostPort(click.ParamType[HostPort | str]):
    name = "address"

    def __init__(self, *, or_none: bool = False) -> None:
        self._or_none = or_none

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> HostPort | str:
        if isinstance(value, HostPort):
            return value
        if self._or_none and value == NO_LISTENER:
            return NO_LISTENER
        try:
            found = Address().from_text(str(value), "")
        except NotOfThisKind:
            self.fail(f"{value!r} is not HOST:PORT" + (" nor none" if self._or_none else ""), param, ctx)
        if found.port == 0:
            self.fail("port 0 can't be told to others: name one", param, ctx)
        return found


def _named(_: click.Context, __: click.Parameter, place: str) -> str:
    """An unset variable of a script must not mean the directory where it happens to run."""
    if not place:
        raise click.BadParameter("it is empty: name the directory")
    return place


def data_dir_option(function: F) -> F:
    text = "Where the node's state lies."
    return click.option("--data-dir", required=True, metavar="DIR", callback=_named, help=text)(function)


def controller_option(*, required: bool) -> Callable[[F], F]:
    known = "" if required else " By default those of the enrolment."
    return click.option(
        "--controller",
        "controllers",
        type=_ControllerUrl(),
        multiple=True,
        required=required,
        metavar="URL",
        help="Node listener of a controller, https://HOST:PORT; again for others of the same service: the one that"
        f" leads is found.{known}",
    )


def token_file_option(*, required: bool) -> Callable[[F], F]:
    text = "Enrolment token, from `lunanexa node token`. The file is removed once the node is enrolled."
    return click.option("--token-file", required=required, metavar="FILE", help=text)


def policy_option(function: F) -> F:
    text = f"What this machine's owner lets be run here (TOML). By default {DEFAULT_PLACE}, where there is one."
    return click.option("--policy", "policy_file", metavar="FILE", help=text)(function)


def media_options(function: F) -> F:
    inbox = click.option("--inbox", metavar="DIR", help="Of an air-gapped node: where bundles are brought.")
    outbox = click.option("--outbox", metavar="DIR", help="Of an air-gapped node: where reports are fetched.")
    return inbox(outbox(function))


def air_gapped_option(function: F) -> F:
    text = "Follow the bundles in --inbox and no controller; see `init`."
    return click.option("--air-gapped", is_flag=True, help=text)(function)


def data_address_option(function: F) -> F:
    text = (
        "Where gateways shall reach this node's data listener, or none: engines are then reached by a controller on"
        " this machine only. By default this machine's address towards the controller and port"
        f" {DATA_PORT}; none for a controller on loopback. It counts at enrolment."
    )
    return click.option("--data-address", type=_HostPort(or_none=True), metavar="HOST:PORT", help=text)(function)


def data_listen_option(function: F) -> F:
    text = "Where the data listener listens. By default as its address says."
    return click.option("--data-listen", type=_HostPort(or_none=True), metavar="HOST:PORT", help=text)(function)


def logging_options(function: F) -> F:
    form = click.option(
        "--log-format", type=click.Choice(["auto", "json", "human"]), default="auto", help="Of the log."
    )
    verbose = click.option("-v", "--verbose", is_flag=True, help="Log debug messages too.")
    return form(verbose(function))


def told_by(
    controllers: tuple[EngineAddress, ...],
    token: EnrolmentToken | None,
    data_address: HostPort | str | None,
    data_listen: HostPort | str | None,
) -> Told:
    """What the options say together."""
    distinct = tuple(dict.fromkeys(controllers))
    return Told(
        controllers=distinct,
        token=token,
        data_address=data_address if isinstance(data_address, HostPort) else None,
        no_data_address=data_address == NO_LISTENER,
        data_listen=data_listen if isinstance(data_listen, HostPort) else None,
        no_data_listener=data_listen == NO_LISTENER,
    )


def read_token(tools: NodeTools, path: str | None, *, required: bool) -> tuple[TokenFile | None, EnrolmentToken | None]:
    """The file and what it holds; ends the program for one that is no token."""
    if path is None:
        return None, None
    file = tools.token_file(path)
    try:
        token = file.read()
    except PortError as error:
        fail(f"--token-file: {error}", exit_code=EXIT_CONFIG)
    if token is None and required:
        hint = "have one minted where the controller is: lunanexa node token NAME --out FILE"
        fail(f"--token-file: there is no file {file.place}", hint=hint, exit_code=EXIT_CONFIG)
    return file, token


def read_policy(tools: NodeTools, path: str | None) -> OwnersPolicy:
    """The owner's rules; ends the program for a file that can't be gone by."""
    try:
        return tools.read_policy(path)
    except PortError as error:
        fail(f"--policy: {error}", exit_code=EXIT_CONFIG)


def status_of(error: PortError) -> int:
    """A supervisor restarts what may work the next time, and nothing else."""
    return EXIT_CONFIG if isinstance(error, PortFault) else EXIT_TRY_AGAIN
