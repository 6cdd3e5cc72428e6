"""What can be seen of a node's data directory without changing anything in it."""

from collections.abc import Callable, Sequence

import attrs

from lunanexa_apps.node.findings import Finding, note, problem
from lunanexa_ports.credentials import Credentials
from lunanexa_ports.http_client import HttpClient
from lunanexa_ports.node_store import NodeStore


@attrs.frozen
class Way:
    """A node's way to controllers: what it shows them, and the client that does so."""

    credentials: Credentials
    control: HttpClient


@attrs.frozen(kw_only=True)
class NodeFolder:
    """Of an agent that may run meanwhile."""

    place: str
    store: NodeStore | None
    """``None``: there is none yet."""
    way: Callable[[], Way]
    """By what lies there; an air-gapped node has none. Raises as credentials do."""
    holder: str | None
    """What the agent that runs on it says of itself."""
    of_up: bool = False
    """Whether ``lunanexa up`` runs, or has run, controller and agent of this directory."""
    open_to_others: Sequence[str] = ()
    """Files and folders of secrets that others than their owner may read."""
    free_mib: int | None = None
    """On its disk."""

    @property
    def runs(self) -> bool:
        return self.holder is not None

    def describe(self) -> Finding:
        """The directory as a step of its own."""
        if self.open_to_others:
            names = " ".join(self.open_to_others)
            return problem("data directory", f"others may read {names}", f"run `chmod -R go= {self.place}`")
        if self.store is None:
            return note("data directory", f"{self.place}: nothing of a node is there yet")
        holder = "no agent runs on it" if self.holder is None else f"{self.holder} runs on it"
        return Finding(step="data directory", found=f"{self.place}: {holder}")
