"""What an agent stands on and goes by."""

from collections.abc import Mapping, Sequence
from typing import Final

import attrs
import trio

from lunanexa_core.drivers.specification import EngineAddress
from lunanexa_core.ids import NodeId
from lunanexa_core.nodes.policy import NO_RULES, NodePolicy
from lunanexa_ports.clock import Clock
from lunanexa_ports.credentials import Credentials
from lunanexa_ports.http_client import HttpClient
from lunanexa_ports.ids import IdSource
from lunanexa_ports.memory import Memory
from lunanexa_ports.node_store import NodeStore
from lunanexa_ports.processes import Processes
from lunanexa_ports.signing import Signer, Verifier

HEARTBEAT_MS: Final = 2_000


@attrs.frozen(kw_only=True)
class LocalPorts:
    """The world of one agent, as far as it needs no network: all that an air-gapped node has."""

    http: HttpClient
    """Towards engines."""
    clock: Clock
    ids: IdSource
    store: NodeStore
    processes: Processes
    memory: Memory
    signer: Signer
    verifier: Verifier


@attrs.frozen(kw_only=True)
class NodePorts(LocalPorts):
    """The world of one agent that follows controllers."""

    control: HttpClient
    """Towards controllers, with these ``credentials``."""
    credentials: Credentials


@attrs.frozen(kw_only=True)
class NodeSettings:
    """Who the agent is, whom it obeys, and how often it looks."""

    node: NodeId
    version: str
    controllers: Sequence[EngineAddress]
    """Those of one service, of which one leads; the first is asked first. Documents tell of others."""
    adopted_keys: Mapping[str, str] = attrs.field(factory=dict, repr=False)
    """Of engines that somebody else runs, by URL."""
    working_directory: str
    policy: NodePolicy = NO_RULES
    """Of the machine's owner, who has the last word on what runs here."""
    heartbeat_ms: int = HEARTBEAT_MS
    desired_wait_ms: int = 20_000
    """How long the controller may hold back the answer when there is nothing new."""
    answer_ms: int = 10_000
    """How long any other answer of the controller may take; of one among several no longer than a heartbeat."""
    retry_base_ms: int = 250
    retry_cap_ms: int = 10_000
    probe_ms: int = 1_000
    probe_timeout_ms: int = 2_000
    spawn_timeout_ms: int = 30_000
    shutdown_drain_ms: int = 10_000
    """How long requests in flight may take once the agent shall stop its engines."""

    def try_ms(self, *, alone: bool) -> int:
        """How long one controller may leave a connection or a short question unanswered: where it is not ``alone``, the
        others must hear of the node before they take it for lost."""
        return self.answer_ms if alone else min(self.answer_ms, self.heartbeat_ms)

    def patience_ms(self, *, alone: bool) -> int:
        """The longest pause between two turns of asking every controller. Where there are several, one will lead soon,
        and serves only once it has heard of the node."""
        return self.retry_cap_ms if alone else min(self.retry_cap_ms, self.heartbeat_ms // 2)


class Shutdown:
    """Asks an agent to stop its engines and then to return. Asked twice, without drain or grace."""

    def __init__(self) -> None:
        self.asked = trio.Event()
        self.hurried = trio.Event()

    def ask(self) -> None:
        (self.hurried if self.asked.is_set() else self.asked).set()
