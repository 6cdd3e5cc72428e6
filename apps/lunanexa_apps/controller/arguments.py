"""The command line of ``lunanexa-controller``."""

import argparse
import ipaddress
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import attrs

from lunanexa_apps.setting_kinds import NotOfThisKind, StoreAddress, StoreUrl
from lunanexa_apps.settings import variable_of
from lunanexa_core.drivers.specification import EngineAddress
from lunanexa_core.policy import RETAIN_BYTES_MAX, Policy
from lunanexa_core.southbound.controllers import controller_url, parse_controller_url

LEASE_LEAST_MS: Final = 1_000
STORE_VARIABLE: Final = variable_of("store")
NO_URL: Final = "none"


@attrs.frozen(kw_only=True)
class ControllerArguments:
    """What the controller is told at start."""

    data_dir: Path
    store: StoreUrl | None
    """``None``: the file in the data directory."""
    accept_lost_tail: bool
    """Of a database whose replica may be promoted without the newest rows."""
    host: str
    port: int
    node_listen: tuple[str, int] | None
    """For nodes; ``None``: no node can report."""
    node_url: str | None
    """Where nodes are told that they reach that; ``None``: they are not told."""
    ready_file: Path | None
    policy: Policy
    deadline_ms: int
    body_limit_bytes: int | None
    """One limit for all dialects; ``None``: the edge's own, by dialect."""
    retain_bytes_max: int
    ledger_archive: bool
    """Whether rows that leave the ledger are kept in files."""
    drain_ms: int
    log_format: str
    verbose: bool


def parse_arguments(arguments: list[str], environment: Mapping[str, str]) -> ControllerArguments:
    """Reads the options, and the store's URL from its variable too; ends the process with usage on bad ones."""
    parser = _parser()
    found = parser.parse_args(arguments)
    host, port = found.listen
    try:
        named = environment.get(STORE_VARIABLE)
        store = found.store or (StoreAddress().from_text(named, "") if named else None)
    except NotOfThisKind as error:
        parser.error(f"{STORE_VARIABLE}: expected {error}")
    if found.node_url is not None and found.node_listen is None:
        parser.error("--node-url: there is no listener for nodes; add --node-listen HOST:PORT")
    return ControllerArguments(
        data_dir=found.data_dir,
        store=store,
        accept_lost_tail=found.accept_lost_tail,
        host=host,
        port=port,
        node_listen=found.node_listen,
        node_url=_node_url(found.node_url, found.node_listen),
        ready_file=found.ready_file,
        policy=Policy(
            lease_ms=found.lease_ms,
            queue_requests_max=found.queue_requests_max,
            queue_wait_ms=found.queue_wait_ms,
            retain_ms_max=found.retain_ms_max,
            ledger_keep_receipts=found.ledger_keep_receipts,
            ledger_keep_ms=found.ledger_keep_days * 86_400_000,
        ),
        ledger_archive=found.ledger_archive == "on",
        retain_bytes_max=found.retain_bytes_max,
        deadline_ms=found.default_deadline_ms,
        body_limit_bytes=found.body_limit_bytes,
        drain_ms=found.drain_ms,
        log_format=found.log_format,
        verbose=found.verbose,
    )


def _parser() -> argparse.ArgumentParser:
    defaults = Policy()
    parser = argparse.ArgumentParser(
        "lunanexa-controller", description="The LunaNexa controller on one data directory."
    )
    parser.add_argument("--data-dir", type=_folder, required=True, metavar="DIR", help="where its state lies")
    parser.add_argument(
        "--store",
        type=_store,
        metavar="URL",
        help=f"PostgreSQL database for the journal: postgresql://USER@HOST/DATABASE; also {STORE_VARIABLE}",
    )
    parser.add_argument(
        "--accept-lost-tail",
        action="store_true",
        help="use a database with asynchronous replicas: what was acknowledged last may be lost with its server",
    )
    parser.add_argument(
        "--lease-ms",
        type=_at_least(LEASE_LEAST_MS),
        default=defaults.lease_ms,
        metavar="MS",
        help="a leader that the database was not told of for so long is succeeded; the same for all controllers",
    )
    _add_address_options(parser)
    parser.add_argument(
        "--queue-requests-max",
        type=_at_least(0),
        default=defaults.queue_requests_max,
        metavar="N",
        help="waiting requests of one service beyond its slots",
    )
    parser.add_argument(
        "--queue-wait-ms",
        type=_at_least(1),
        default=defaults.queue_wait_ms,
        metavar="MS",
        help="how long a request may wait for a slot",
    )
    parser.add_argument(
        "--default-deadline-ms",
        type=_at_least(1),
        default=600_000,
        metavar="MS",
        help="deadline of a request that names none",
    )
    parser.add_argument("--body-limit-bytes", type=_at_least(1), metavar="N", help="largest request body")
    parser.add_argument(
        "--retain-ms-max",
        type=_at_least(0),
        default=defaults.retain_ms_max,
        metavar="MS",
        help="longest that an answer is kept for its idempotency key; 0: none is",
    )
    parser.add_argument(
        "--retain-bytes-max",
        type=_at_least(0),
        default=RETAIN_BYTES_MAX,
        metavar="N",
        help="room for all kept answers together",
    )
    _add_ledger_options(parser, defaults)
    parser.add_argument(
        "--drain-ms", type=_at_least(0), default=30_000, metavar="MS", help="how long a stop waits for requests"
    )
    parser.add_argument("--log-format", choices=("auto", "json", "human"), default="auto")
    parser.add_argument("-v", "--verbose", action="store_true", help="log debug messages too")
    return parser


def _add_address_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--listen", type=_address, default=("127.0.0.1", 8400), metavar="HOST:PORT", help="default 127.0.0.1:8400"
    )
    parser.add_argument(
        "--node-listen",
        type=_address,
        metavar="HOST:PORT",
        help="where nodes enrol and report, over mutual TLS; without it none can",
    )
    parser.add_argument(
        "--node-url",
        type=_url_or_none,
        metavar="URL",
        help="where nodes reach that, https://HOST:PORT, which all nodes are told once this controller leads; none:"
        " they are not; default: HOST:PORT of --node-listen, unless that is every address or a free port",
    )
    parser.add_argument(
        "--ready-file",
        type=Path,
        metavar="FILE",
        help="written with addresses and secrets, readable by you alone, once it serves; removed at the end",
    )


def _add_ledger_options(parser: argparse.ArgumentParser, defaults: Policy) -> None:
    parser.add_argument(
        "--ledger-keep-receipts",
        type=_at_least(0),
        default=defaults.ledger_keep_receipts,
        metavar="N",
        help="receipts that stay in the ledger; 0: any number",
    )
    parser.add_argument(
        "--ledger-keep-days",
        type=_at_least(0),
        default=defaults.ledger_keep_ms // 86_400_000,
        metavar="N",
        help="days that they stay there; 0: for any time",
    )
    parser.add_argument(
        "--ledger-archive",
        choices=("on", "off"),
        default="on",
        help="whether what leaves the ledger is kept in files of the data directory",
    )


def _folder(text: str) -> Path:
    """An unset variable of a script must not mean the directory where it happens to run."""
    if not text:
        raise argparse.ArgumentTypeError("it is empty: name the directory")
    return Path(text)


def _store(text: str) -> StoreUrl:
    try:
        # As strictly as in a file: a command line is read by others too.
        return StoreAddress().from_toml(text, "")
    except NotOfThisKind as error:
        raise argparse.ArgumentTypeError(f"expected {error}") from None


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65_535:
        raise argparse.ArgumentTypeError(f"{text!r} is not HOST:PORT (write an IPv6 host in brackets)")
    return host.removeprefix("[").removesuffix("]"), int(port)


def _url_or_none(text: str) -> str:
    address = parse_controller_url(text)
    if address is None and text != NO_URL:
        raise argparse.ArgumentTypeError(f"{text!r} is neither https://HOST:PORT nor {NO_URL}")
    return NO_URL if address is None else controller_url(address)


def _node_url(told: str | None, listen: tuple[str, int] | None) -> str | None:
    if told is not None:
        return None if told == NO_URL else told
    if listen is None or listen[1] == 0 or _is_every_address(listen[0]):
        return None
    return controller_url(EngineAddress(*listen))


def _is_every_address(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


class _at_least:
    """An argparse type: an integer of at least ``low``."""

    def __init__(self, low: int) -> None:
        self._low = low

    def __call__(self, text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None
        if value < self._low:
            raise argparse.ArgumentTypeError(f"must be at least {self._low}")
        return value
