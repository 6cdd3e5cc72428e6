"""The settings of the command line: what ``lunanexa up`` serves and how, and where the other commands look."""

import enum
import os
from collections.abc import Mapping
from typing import Final

import attrs

from lunanexa_apps.setting_kinds import (
    Address,
    Choice,
    HostPort,
    HttpUrl,
    Integer,
    NodeUrl,
    Path,
    Secret,
    SecretText,
    ServerToAdopt,
    Several,
    StoreAddress,
    StoreUrl,
    Text,
)
from lunanexa_apps.settings import ConfigFile, Flag, Loaded, load, read_config, setting
from lunanexa_core.drivers.catalog import DRIVERS
from lunanexa_core.policy import RETAIN_BYTES_MAX, Policy
from lunanexa_ports.children import SUPERVISOR_FD

CONFIG_VARIABLE: Final = "LUNANEXA_CONFIG"
FOREIGN_VARIABLES: Final = frozenset({CONFIG_VARIABLE, SUPERVISOR_FD, "LUNANEXA_ENGINE_API_KEY"})
"""Variables of ours that configure something else than these settings."""


class LogLevel(enum.Enum):
    """How much is logged."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class Switch(enum.Enum):
    """Whether something is done."""

    ON = "on"
    OFF = "off"


class LogFormat(enum.Enum):
    """What a log line looks like; ``auto``: for people when standard error is a terminal, else JSON."""

    AUTO = "auto"
    HUMAN = "human"
    JSON = "json"


def default_data_dir(environment: Mapping[str, str]) -> str:
    """``$XDG_DATA_HOME/lunanexa``, after the XDG Base Directory Specification."""
    base = environment.get("XDG_DATA_HOME") or os.path.join(_home(environment), ".local", "share")
    return os.path.join(base, "lunanexa")


def default_config_path(environment: Mapping[str, str]) -> str:
    """``$XDG_CONFIG_HOME/lunanexa/config.toml``."""
    base = environment.get("XDG_CONFIG_HOME") or os.path.join(_home(environment), ".config")
    return os.path.join(base, "lunanexa", "config.toml")


def _home(environment: Mapping[str, str]) -> str:
    return environment.get("HOME") or os.path.expanduser("~")


@attrs.frozen(kw_only=True)
class CommandSettings:
    """Everything that the ``lunanexa`` program can be told. One file serves all its commands."""

    data_dir: str = attrs.field(
        default="", metadata=setting(Path(), "where everything of this installation lies", computed=default_data_dir)
    )
    listen: HostPort = attrs.field(
        default=HostPort("127.0.0.1", 8400), metadata=setting(Address(), "address that clients call")
    )
    node_listen: HostPort = attrs.field(
        default=HostPort("127.0.0.1", 0),
        metadata=setting(Address(), "address that nodes call, over mutual TLS; 0.0.0.0:8401 lets other machines join"),
    )
    store: StoreUrl | None = attrs.field(
        default=None,
        metadata=setting(StoreAddress(), "PostgreSQL database that holds the journal; unset: a file in data_dir"),
    )
    standby: tuple[str, ...] = attrs.field(
        default=(),
        metadata=setting(
            Several(NodeUrl()),
            "node address of another controller of the same store, to be obeyed when it leads; again for more",
        ),
    )
    model: str | None = attrs.field(default=None, metadata=setting(Path(), "model file (GGUF) to serve"))
    engine: str | None = attrs.field(default=None, metadata=setting(Text(), "engine driver: " + ", ".join(DRIVERS)))
    engine_binary: str | None = attrs.field(
        default=None, metadata=setting(Path(), "engine program, where it is not on PATH")
    )
    engine_argument: tuple[str, ...] = attrs.field(
        default=(),
        metadata=setting(Several(Text()), "argument for the engine that is started, after our own; again for more"),
    )
    adopt: tuple[str, ...] = attrs.field(
        default=(),
        metadata=setting(
            Several(ServerToAdopt()),
            "serve all models of a server that runs already, or of the local ones; again for more",
        ),
    )
    adopt_key: Secret | None = attrs.field(
        default=None, metadata=setting(SecretText(), "key of the adopted server, or a line URL KEY for each")
    )
    alias: str | None = attrs.field(
        default=None, metadata=setting(Text(), "name under which clients ask for the model")
    )
    slots: int | None = attrs.field(
        default=None, metadata=setting(Integer(1, 4096), "requests that the engine works on at once, by model")
    )
    context_tokens: int | None = attrs.field(
        default=None, metadata=setting(Integer(16, 10_000_000), "context of one request, in tokens")
    )
    queue_requests_max: int = attrs.field(
        default=Policy().queue_requests_max,
        metadata=setting(Integer(0, 1_000_000), "requests that may wait for a slot"),
    )
    queue_wait_ms: int = attrs.field(
        default=Policy().queue_wait_ms, metadata=setting(Integer(1, 86_400_000), "longest wait in the queue")
    )
    default_deadline_ms: int = attrs.field(
        default=600_000, metadata=setting(Integer(1, 86_400_000), "time for a whole request that names no deadline")
    )
    body_limit_bytes: int | None = attrs.field(
        default=None, metadata=setting(Integer(1_024, 1 << 30), "largest request body; unset: by endpoint")
    )
    retain_ms_max: int = attrs.field(
        default=Policy().retain_ms_max,
        metadata=setting(Integer(0, 30 * 86_400_000), "longest that an answer is kept to be given again; 0: none"),
    )
    retain_bytes_max: int = attrs.field(
        default=RETAIN_BYTES_MAX, metadata=setting(Integer(0, 1 << 40), "room for all kept answers together")
    )
    ledger_keep_receipts: int = attrs.field(
        default=Policy().ledger_keep_receipts,
        metadata=setting(Integer(0, 10**12), "receipts that stay in the ledger; 0: any number"),
    )
    ledger_keep_days: int = attrs.field(
        default=Policy().ledger_keep_ms // 86_400_000,
        metadata=setting(Integer(0, 36_500), "days that receipts stay in the ledger; 0: for any time"),
    )
    ledger_archive: Switch = attrs.field(
        default=Switch.ON,
        metadata=setting(Choice(Switch), "whether what leaves the ledger is kept in files: on or off"),
    )
    log_level: LogLevel | None = attrs.field(
        default=None,
        metadata=setting(Choice(LogLevel), "debug, info, warning or error; unset: info, on a terminal warning"),
    )
    log_format: LogFormat = attrs.field(
        default=LogFormat.AUTO, metadata=setting(Choice(LogFormat), "what a log line looks like: auto, human or json")
    )
    url: str | None = attrs.field(
        default=None, metadata=setting(HttpUrl(), "controller that all commands but up talk to")
    )
    token: Secret | None = attrs.field(
        default=None, metadata=setting(SecretText(), "API key or operator token for that controller")
    )


def find_config(path: str | None, environment: Mapping[str, str]) -> ConfigFile | None:
    """The configuration file: the one named, else the default one if it exists. Raises ``SettingsError``."""
    named = path or environment.get(CONFIG_VARIABLE)
    if named:
        return read_config(named)
    usual = default_config_path(environment)
    return read_config(usual) if os.path.exists(usual) else None


def load_command_settings(
    flags: Mapping[str, Flag], environment: Mapping[str, str], *, config_path: str | None = None
) -> Loaded[CommandSettings]:
    """Settings of this process. Raises ``SettingsError``."""
    config = find_config(config_path, environment)
    return load(CommandSettings, flags=flags, environment=environment, config=config, foreign=FOREIGN_VARIABLES)
