"""The two processes that ``lunanexa up`` supervises, as orders to start them."""

import os
import sys
from collections.abc import Mapping
from typing import Final

from lunanexa_apps.controller.arguments import NO_URL
from lunanexa_apps.installation import NODE_TOKEN
from lunanexa_apps.logging import LEVEL_VARIABLE
from lunanexa_apps.setting_kinds import HostPort
from lunanexa_apps.settings import PREFIX, variable_of
from lunanexa_apps.up.configuration import CommandSettings
from lunanexa_ports.children import ChildOrder

CONTROLLER: Final = "controller"
NODE: Final = "node"


def child_orders(
    settings: CommandSettings, listen: HostPort, node_listen: HostPort, environment: Mapping[str, str], log_level: str
) -> tuple[ChildOrder, ChildOrder]:
    """Controller and node agent. Settings reach them as arguments, so none of our variables is passed on
    but those of logging and, to the controller, that of its store, whose URL may hold a password; other secrets
    they read from the data directory."""
    inherited = {name: value for name, value in environment.items() if not name.startswith(PREFIX)}
    child_environment = inherited | {LEVEL_VARIABLE: log_level}
    data_dir = ("--data-dir", settings.data_dir)
    logging = ("--log-format", settings.log_format.value, *(("-v",) if log_level == "debug" else ()))
    controller = (
        *(sys.executable, "-m", "lunanexa_apps.controller.main"),
        *data_dir,
        *("--listen", str(listen), "--node-listen", str(node_listen)),
        # A port that happened to be free is another one next time.
        *(("--node-url", NO_URL) if settings.node_listen.port == 0 else ()),
        *("--queue-requests-max", str(settings.queue_requests_max)),
        *("--queue-wait-ms", str(settings.queue_wait_ms)),
        *("--default-deadline-ms", str(settings.default_deadline_ms)),
        *("--retain-ms-max", str(settings.retain_ms_max)),
        *("--retain-bytes-max", str(settings.retain_bytes_max)),
        *("--ledger-keep-receipts", str(settings.ledger_keep_receipts)),
        *("--ledger-keep-days", str(settings.ledger_keep_days)),
        *("--ledger-archive", settings.ledger_archive.value),
        *(() if settings.body_limit_bytes is None else ("--body-limit-bytes", str(settings.body_limit_bytes))),
        *logging,
    )
    node = (
        *(sys.executable, "-m", "lunanexa_apps.node.main", "run"),
        *data_dir,
        *("--controller", f"https://{reachable(node_listen)}"),
        *(word for url in settings.standby for word in ("--controller", url)),
        *("--token-file", os.path.join(settings.data_dir, NODE_TOKEN)),
        *logging,
    )
    store = {} if settings.store is None else {variable_of("store"): settings.store.value}
    return (
        ChildOrder(name=CONTROLLER, argv=controller, environment=child_environment | store),
        ChildOrder(name=NODE, argv=node, environment=child_environment),
    )


def reachable(listen: HostPort) -> HostPort:
    """The address under which this machine's programs reach a listener."""
    match listen.host:
        case "0.0.0.0":  # read, not bound
            return HostPort("127.0.0.1", listen.port)
        case "::":
            return HostPort("::1", listen.port)
        case _:
            return listen
