"""Which controller a command talks to, and with which token: the one named, else this machine's own."""

import shlex
from typing import NoReturn

import attrs

from lunanexa_apps.cli.tools import EXIT_CONFIG, EXIT_UNAVAILABLE, Tools, fail
from lunanexa_apps.installation import read_address, read_installation
from lunanexa_apps.setting_kinds import HostPort
from lunanexa_apps.settings import Loaded, SourceKind
from lunanexa_apps.up.configuration import CommandSettings
from lunanexa_apps.up.plane import Plane, PlaneRefusal
from lunanexa_client import ClientSettings, ConnectionFailed, LunaNexaError, ProtocolError, Retries
from lunanexa_client.address import Address
from lunanexa_core.drivers.specification import parse_engine_url
from lunanexa_core.outcomes import Outcome
from lunanexa_ports.errors import PortError
from lunanexa_ports.http_client import HttpClient, HttpUnreachable


@attrs.frozen(kw_only=True)
class Target:
    """A controller's address. ``api_key`` and ``operator_token`` are what was found for each plane."""

    host: str
    port: int
    api_key: str | None = attrs.field(repr=False)
    operator_token: str | None = attrs.field(repr=False)
    data_dir: str | None

    @property
    def url(self) -> str:
        return f"http://{HostPort(self.host, self.port)}"

    def operator_plane(self, http: HttpClient) -> Plane:
        return Plane(http=http, host=self.host, port=self.port, token=self.operator_token)

    def client_settings(self) -> ClientSettings:
        """A person waits: what is refused now is told now. Ends the program when the key is none."""
        address = Address(host=self.host, port=self.port, tls=False)
        try:
            return ClientSettings(address=address, api_key=self.api_key, retries=Retries(max_retries=0))
        except ValueError as error:
            fail(str(error), hint="check LUNANEXA_TOKEN", exit_code=EXIT_CONFIG)


def find_target(tools: Tools, loaded: Loaded[CommandSettings]) -> Target:
    """A ``--data-dir`` that was given counts most, then the URL, then the default data directory. Ends the
    program when there is none of them."""
    settings = loaded.settings
    if settings.url is None or loaded.sources["data_dir"].kind is SourceKind.FLAG:
        return _own(tools, settings)
    address = parse_engine_url(settings.url)
    if address is None:
        fail(f"url (from {loaded.sources['url']}): not http://host:port", exit_code=EXIT_CONFIG)
    token = None if settings.token is None else settings.token.value
    return Target(host=address.host, port=address.port, api_key=token, operator_token=token, data_dir=None)


def _own(tools: Tools, settings: CommandSettings) -> Target:
    files = tools.make_files(settings.data_dir)
    try:
        installation, address = read_installation(files), read_address(files) or settings.listen
    except PortError as error:
        fail(str(error), exit_code=EXIT_CONFIG)
    if installation is None:
        fail(
            f"no installation in {settings.data_dir}",
            hint="start one: lunanexa up; or name another: --data-dir DIR, or LUNANEXA_URL and LUNANEXA_TOKEN",
            exit_code=EXIT_UNAVAILABLE,
        )
    return Target(
        host=address.host,
        port=address.port,
        api_key=installation.api_key,
        operator_token=installation.operator_token,
        data_dir=settings.data_dir,
    )


def fail_unreachable(target: Target, error: Exception) -> NoReturn:
    """Ends the program: nothing usable answers."""
    hint = "check LUNANEXA_URL" if target.data_dir is None else f"start it: {_command(target, 'up')}"
    if isinstance(error, HttpUnreachable) or isinstance(error.__cause__, HttpUnreachable):
        fail(f"no controller answers at {target.url}", hint=hint, exit_code=EXIT_UNAVAILABLE)
    fail(f"{target.url}: {error}", hint=hint, exit_code=EXIT_UNAVAILABLE)


def fail_refused(target: Target, refusal: PlaneRefusal, *, token_name: str, listed_by: str | None = None) -> NoReturn:
    """Ends the program with the controller's own message and what helps. ``listed_by`` is the command that shows the
    things of which this one is not there."""
    advice = _advice(target, refusal.code, token_name)
    if refusal.code == Outcome.NOT_FOUND.value and listed_by is not None:
        advice = f"see what there is: {_command(target, listed_by)}"
    fail(refusal.text, hint=advice, exit_code=refusal.exit_code)


def fail_with(target: Target, error: LunaNexaError, *, token_name: str) -> NoReturn:
    """Ends the program as the error of a call wants it."""
    if isinstance(error, ConnectionFailed | ProtocolError):
        fail_unreachable(target, error)
    fail_refused(target, refusal_of_error(error), token_name=token_name)


def refusal_of_error(error: LunaNexaError) -> PlaneRefusal:
    """What it says, as the operator plane's refusals say it."""
    return PlaneRefusal(status=error.status or 0, code=error.code, message=error.message, param=error.param)


def _advice(target: Target, code: str, token_name: str) -> str | None:
    match code:
        case Outcome.INVALID_API_KEY.value | Outcome.PERMISSION_DENIED.value:
            if target.data_dir is None:
                return f"set LUNANEXA_TOKEN to {token_name}"
            return "another installation answers at that address; see lunanexa up's output for its data directory"
        case Outcome.MODEL_NOT_FOUND.value:
            return f"see what is served: {_command(target, 'models')}"
        case Outcome.STORE_UNAVAILABLE.value:
            return "see that its disk has room and can be written; its log says more"
        case Outcome.DRAINING.value:
            return "it is stopping; start it again: lunanexa up"
        case Outcome.STARTING.value | Outcome.NO_CAPACITY.value | Outcome.NO_PLACEMENT.value:
            return f"see what is not ready: {_command(target, 'status')}"
        case _:
            return None


def _command(target: Target, name: str) -> str:
    """To be pasted; a controller that was found by its URL is found again the same way."""
    where = "" if target.data_dir is None else f" --data-dir {shlex.quote(target.data_dir)}"
    return f"lunanexa {name}{where}"
