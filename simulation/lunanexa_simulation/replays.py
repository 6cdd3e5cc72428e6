"""Replays in the simulation: at once, by the same rules as in a process of its own."""

from lunanexa_apps.replayer.work import make_carry, make_snapshot
from lunanexa_core.events import UnknownEvent
from lunanexa_ports.errors import PortFault
from lunanexa_ports.replays import Replays
from lunanexa_simulation.disk import Mount
from lunanexa_simulation.journal import SimulatedJournal
from lunanexa_simulation.snapshots import SimulatedSnapshots


class SimulatedReplays(Replays):
    """Of the journal on one mount, with snapshots on another (the same, for a store that is one machine's)."""

    def __init__(self, store: Mount, own: Mount) -> None:
        self._journal = SimulatedJournal(store)
        self._snapshots = SimulatedSnapshots(own)

    async def snapshot(self, until: int, digest: str) -> bool:
        try:
            return await make_snapshot(self._journal, self._snapshots, until, digest)
        except UnknownEvent as error:
            raise PortFault(str(error)) from None

    async def carry(self, until: int) -> bytes:
        try:
            return await make_carry(self._journal, self._snapshots, until)
        except UnknownEvent as error:
            raise PortFault(str(error)) from None
