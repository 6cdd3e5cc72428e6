"""Where controllers answer nodes: each says so as it begins to lead, and every node is told of all of them."""

from typing import Final

from lunanexa_core.drivers.specification import EngineAddress, parse_engine_url
from lunanexa_core.events import EpochBegan
from lunanexa_core.identity.record import tell_all
from lunanexa_core.ids import HolderId
from lunanexa_core.state import KnownController, State

CONTROLLERS_MAX: Final = 16
_SCHEME: Final = "https://"


def parse_controller_url(url: str) -> EngineAddress | None:
    """The address in ``https://HOST:PORT``; ``None`` for anything else, a URL without a port too."""
    if not url.startswith(_SCHEME):
        return None
    host, _, port = url.removeprefix(_SCHEME).removesuffix("/").rpartition(":")
    return parse_engine_url(f"http://{host}:{port}") if host and port.isdecimal() else None


def controller_url(address: EngineAddress) -> str:
    """The inverse."""
    host = f"[{address.host}]" if ":" in address.host else address.host
    return f"{_SCHEME}{host}:{address.port}"


def controller_urls(state: State) -> tuple[str, ...]:
    """In the order in which nodes shall try them: the one that began last is first."""
    return tuple(state.controllers[name].node_url for name in _newest_first(state))


def record_leader(state: State, began: EpochBegan, epoch: int, wall_ms: int) -> None:
    """Another epoch, and perhaps other controllers to tell of: then every node's document is another. Called by
    ``apply`` alone."""
    before = controller_urls(state)
    state.epoch, state.holder = epoch, began.holder or state.holder
    if began.holder is None:
        return  # Of an older version, which told of no controller.
    for name, known in list(state.controllers.items()):
        if name == began.holder or known.node_url == began.node_url:
            del state.controllers[name]
    if began.node_url is not None:
        state.controllers[began.holder] = KnownController(began.node_url, epoch)
    for name in _newest_first(state)[CONTROLLERS_MAX:]:
        del state.controllers[name]
    if controller_urls(state) != before:
        tell_all(state, wall_ms)


def _newest_first(state: State) -> list[HolderId]:
    return sorted(state.controllers, key=lambda name: (-state.controllers[name].epoch, name))
