"""Which controller a command talks to, and with which token: the one named, else this machine's own."""

import math
import shlex
from typing import Final, NoReturn

import attrs

from lunanexa_apps.call_errors import exit_code_of, unanswered, words_of
from lunanexa_apps.cli.tools import EXIT_CONFIG, EXIT_UNAVAILABLE, Tools, fail
from lunanexa_apps.installation import NODE_IDENTITY, read_address, read_installation
from lunanexa_apps.setting_kinds import HostPort
from lunanexa_apps.settings import Loaded, SourceKind, variable_of
from lunanexa_apps.up.configuration import CommandSettings
from lunanexa_client import ClientSettings, LunaNexaError, ProtocolError, Retries
from lunanexa_client.address import Address
from lunanexa_core.drivers.specification import parse_engine_url
from lunanexa_core.outcomes import Outcome
from lunanexa_ports.errors import PortError
from lunanexa_ports.http_client import HttpBroken, HttpUnreachable

OPERATOR_DEADLINE_MS: Final = 15_000
EXIT_USAGE: Final = 2
"""Click's own, for a command line that can't be used."""
_URL: Final = variable_of("url")
_TOKEN: Final = variable_of("token")


@attrs.frozen(kw_only=True)
class Target:
    """A controller's address. ``api_key`` and ``operator_token`` are what was found for each plane. ``url_from`` and
    ``token_from`` say what named them, where they were named."""

    host: str
    port: int
    api_key: str | None = attrs.field(repr=False)
    operator_token: str | None = attrs.field(repr=False)
    data_dir: str | None
    url_from: str = _URL
    token_from: str = _TOKEN

    @property
    def url(self) -> str:
        return f"http://{HostPort(self.host, self.port)}"

    def client_settings(self) -> ClientSettings:
        """With the API key. Ends the program when it can't be one."""
        return self._settings(self.api_key)

    def operator_settings(self) -> ClientSettings:
        """With the operator token, for answers that nothing delays. Ends the program when it can't be one."""
        return attrs.evolve(self._settings(self.operator_token), deadline_ms=OPERATOR_DEADLINE_MS, grace_ms=0)

    def _settings(self, token: str | None) -> ClientSettings:
        address = Address(host=self.host, port=self.port, tls=False)
        try:
            # A person waits: what is refused now is told now.
            return ClientSettings(address=address, api_key=token, retries=Retries(max_retries=0))
        except ValueError as error:
            fail(str(error), hint=f"check {self.token_from}", exit_code=EXIT_CONFIG)


def find_target(tools: Tools, loaded: Loaded[CommandSettings]) -> Target:
    """A ``--data-dir`` that was given counts most, then the URL, then the default data directory. Ends the
    program when there is none of them, or two were named side by side."""
    settings, by_place = loaded.settings, loaded.sources["data_dir"].kind is SourceKind.FLAG
    if by_place and loaded.sources["url"].kind is SourceKind.FLAG:
        fail("--data-dir and --url each name a controller", hint="leave one of them out", exit_code=EXIT_USAGE)
    if settings.url is None or by_place:
        return _own(tools, settings)
    address = parse_engine_url(settings.url)
    if address is None:
        fail(f"url (from {loaded.sources['url']}): not http://host:port", exit_code=EXIT_CONFIG)
    token = None if settings.token is None else settings.token.value
    url_from, token_from = loaded.sources["url"], loaded.sources["token"]
    return Target(
        host=address.host,
        port=address.port,
        api_key=token,
        operator_token=token,
        data_dir=None,
        url_from=url_from.name,
        token_from=_TOKEN if token is None else token_from.name,
    )


def _own(tools: Tools, settings: CommandSettings) -> Target:
    files = tools.make_files(settings.data_dir)
    try:
        installation, address = read_installation(files), read_address(files) or settings.listen
        of_node = files.read(NODE_IDENTITY) is not None
    except PortError as error:
        fail(str(error), hint="mend that, or name another place: --data-dir DIR", exit_code=EXIT_CONFIG)
    if installation is None:
        begin = f"ask that node: lunanexa-node doctor --data-dir {shlex.quote(settings.data_dir)}"
        fail(
            f"no installation in {settings.data_dir}{', only a node' if of_node else ''}",
            hint=f"{begin if of_node else 'start one: lunanexa up'}; or name another: --data-dir DIR, or {_URL} and"
            f" {_TOKEN}",
            exit_code=EXIT_UNAVAILABLE,
        )
    return Target(
        host=address.host,
        port=address.port,
        api_key=installation.api_key,
        operator_token=installation.operator_token,
        data_dir=settings.data_dir,
    )


def fail_with(
    target: Target,
    error: LunaNexaError,
    *,
    token_name: str,
    listed_by: str | None = None,
    written_as: str | None = None,
) -> NoReturn:
    """Ends the program with the controller's own message and what helps. ``listed_by`` is the command that shows the
    things of which this one is not there, ``written_as`` says where a document that is refused is mended."""
    # A controller gives each of its answers an identifier.
    if unanswered(error) or (error.status is not None and error.request_id is None):
        fail_unanswered(target, error)
    advice = _advice(target, error.code, token_name)
    if error.outcome is Outcome.NOT_FOUND and listed_by is not None:
        advice = f"see what there is: {command_of(target, listed_by)}"
    if error.outcome is Outcome.INVALID_REQUEST and written_as is not None:
        advice = written_as
    if advice is None and error.retry_after_s is not None:
        advice = f"try again in {math.ceil(error.retry_after_s)} s"
    fail(words_of(error), hint=advice, exit_code=exit_code_of(error))


def fail_unanswered(target: Target, error: Exception) -> NoReturn:
    """Ends the program: nothing usable answers."""
    start = f"start it: {command_of(target, 'up')}; in a fleet: lunanexa-controller{_where(target)}"
    hint = f"check {target.url_from}" if target.data_dir is None else start
    message = f"{target.url}: {error}"
    if isinstance(error, ProtocolError) or (isinstance(error, LunaNexaError) and error.status is not None):
        message = f"{target.url}: what answers is not a controller's ({error})"
    elif isinstance(error.__cause__, HttpUnreachable):
        message = f"no controller answers at {target.url}"
    elif isinstance(error.__cause__, HttpBroken) and not error.__cause__.head_seen:
        message = f"{target.url}: what listens there gave no HTTP answer; nodes' listeners are for nodes alone"
    fail(message, hint=hint, exit_code=EXIT_UNAVAILABLE)


def _advice(target: Target, code: str, token_name: str) -> str | None:
    match code:
        case Outcome.INVALID_API_KEY.value | Outcome.PERMISSION_DENIED.value:
            if target.data_dir is None:
                named = target.token_from
                return f"set {named} to {token_name}" if named == _TOKEN else f"put {token_name} there: {named}"
            return "another installation answers at that address; see lunanexa up's output for its data directory"
        case Outcome.MODEL_NOT_FOUND.value:
            return f"see what is served: {command_of(target, 'models')}"
        case Outcome.STORE_UNAVAILABLE.value:
            return "see that its disk has room and can be written; its log says more"
        case Outcome.NOT_LEADER.value:
            return f"see which one leads: {command_of(target, 'status')}"
        case Outcome.DRAINING.value:
            return "it is stopping; start it again: lunanexa up"
        case Outcome.STARTING.value | Outcome.NO_CAPACITY.value | Outcome.NO_PLACEMENT.value:
            return f"see what is not ready: {command_of(target, 'status')}"
        case _:
            return None


def command_of(target: Target, name: str) -> str:
    """To be pasted; a controller that was found by its URL is found again the same way."""
    return f"lunanexa {name}{_where(target)}"


def _where(target: Target) -> str:
    return "" if target.data_dir is None else f" --data-dir {shlex.quote(target.data_dir)}"
