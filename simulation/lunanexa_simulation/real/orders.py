"""The command lines of a fleet on loopback."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import attrs

from lunanexa_apps.setting_kinds import HostPort
from lunanexa_apps.settings import PREFIX
from lunanexa_apps.up.port_check import CanNotListen, check_listen
from lunanexa_apps.up.surroundings import REFERENCE_PROGRAM
from lunanexa_ports.children import ChildOrder
from lunanexa_ports.errors import PortFault
from lunanexa_simulation.rng import Stream

LOOPBACK: Final = "127.0.0.1"
HEARTBEAT_MS: Final = 500
DRAIN_MS: Final = 2_000
_PORTS: Final = (10_000, 30_000)
"""Below those that systems give to clients (ip_local_port_range): they stay ours while nobody listens."""
_TRIES: Final = 1_000


@attrs.frozen(kw_only=True)
class Places:
    """Where everything of a run lies and listens. Nodes count from 1."""

    folder: Path
    front: HostPort
    node_plane: HostPort
    doors: tuple[HostPort, ...]

    @property
    def nodes(self) -> range:
        return range(1, len(self.doors) + 1)

    @property
    def controller(self) -> Path:
        """The controller's data directory."""
        return self.folder / "controller"

    @property
    def ready_file(self) -> Path:
        return self.folder / "ready.json"

    def log(self, name: str) -> Path:
        return self.folder / f"{name.replace(' ', '-')}.log"

    def node(self, number: int) -> Path:
        """An agent's data directory."""
        return self.folder / node_name(number)

    def engine_logs(self, number: int) -> list[Path]:
        """Of a node's engines, the newest last."""
        return sorted((self.node(number) / "node" / "logs").glob("*"), key=lambda file: file.stat().st_mtime_ns)

    def token_file(self, number: int) -> Path:
        return self.folder / f"{node_name(number)}.token"


def node_name(number: int) -> str:
    """A node's identifier."""
    return f"loop-{number}"


def engine_binary() -> str:
    """The reference engine that is installed with this interpreter. Raises ``PortFault`` where there is none."""
    path = os.path.join(os.path.dirname(os.path.abspath(sys.executable)), REFERENCE_PROGRAM)
    if not os.access(path, os.X_OK):
        raise PortFault(f"there is no program {path}: install LunaNexa into this environment (make setup)")
    return path


async def choose_places(folder: Path, nodes: int, draw: Stream) -> Places:
    """Free ports. Raises ``PortFault`` where there are none."""
    found: list[HostPort] = []
    for _ in range(_TRIES):
        place = HostPort(LOOPBACK, draw.randint(*_PORTS))
        if place not in found and not isinstance(await check_listen(place), CanNotListen):
            found.append(place)
        if len(found) == nodes + 2:
            return Places(folder=folder, front=found[0], node_plane=found[1], doors=tuple(found[2:]))
    raise PortFault(f"no {nodes + 2} free ports from {_PORTS[0]} to {_PORTS[1]}: end what listens there")


def controller_order(places: Places, environment: Mapping[str, str]) -> ChildOrder:
    """The controller, on its data directory."""
    argv = (
        *(sys.executable, "-m", "lunanexa_apps.controller.main", "--data-dir", str(places.controller)),
        *("--listen", str(places.front), "--node-listen", str(places.node_plane)),
        *("--ready-file", str(places.ready_file), "--drain-ms", str(DRAIN_MS), "--log-format", "json"),
    )
    return ChildOrder(name="controller", argv=argv, environment=_inherited(environment))


def agent_order(places: Places, number: int, environment: Mapping[str, str]) -> ChildOrder:
    """The agent of a node, which enrols by its token where it has not."""
    argv = (
        *(sys.executable, "-m", "lunanexa_apps.node.main", "run", "--data-dir", str(places.node(number))),
        *("--controller", f"https://{places.node_plane}", "--token-file", str(places.token_file(number))),
        *("--data-address", str(places.doors[number - 1])),
        *("--heartbeat-ms", str(HEARTBEAT_MS), "--log-format", "json"),
    )
    return ChildOrder(name=f"agent {number}", argv=argv, environment=_inherited(environment))


def _inherited(environment: Mapping[str, str]) -> dict[str, str]:
    """Without settings of this user's own LunaNexa."""
    return {name: value for name, value in environment.items() if not name.startswith(PREFIX)}
