"""What the node keeps of the blobs that bundles brought: those that are needed still."""

from lunanexa_apps.node.air_gap.bundles import Bundles
from lunanexa_apps.node.replicas import Replicas
from lunanexa_core.southbound.bundle import named_blobs
from lunanexa_ports.inbox import Inbox


class BlobKeeper:
    """Of one agent process. An engine of an earlier bundle keeps its blobs until it is gone: it may drain still, and
    where the owner's policy refuses what should take its place it goes on."""

    def __init__(self, inbox: Inbox, bundles: Bundles, replicas: Replicas) -> None:
        self._inbox = inbox
        self._bundles = bundles
        self._replicas = replicas
        self._kept: frozenset[str] | None = None

    async def sweep(self) -> None:
        """Removes what nothing names any more, if that may have changed: once at least in each agent's life, for an
        earlier one may have died before it did. Nothing is removed while no bundle is in force, as after the loss of a
        store: the next one may name what is there. Raises as the inbox does."""
        bundle = self._bundles.bundle
        if bundle is None:
            return
        wanted = named_blobs(bundle, [record.assignment.engine for record in self._replicas.records()])
        if wanted != self._kept:
            await self._inbox.keep_blobs(wanted)
            self._kept = wanted
