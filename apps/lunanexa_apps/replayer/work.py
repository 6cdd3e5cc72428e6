"""What a replayer does, over ports: in a process of its own, or in the simulation inside it."""

from lunanexa_apps.codec import encode
from lunanexa_apps.controller.kept_snapshots import keep_snapshot
from lunanexa_apps.controller.replay import Replay, rebuild
from lunanexa_apps.controller.snapshot import Snapshot
from lunanexa_core.ledger_carry import carry_of
from lunanexa_core.state_digest import state_digest
from lunanexa_ports.errors import PortUnavailable
from lunanexa_ports.journal import JournalReader
from lunanexa_ports.snapshots import Snapshots


async def make_snapshot(journal: JournalReader, snapshots: Snapshots, until: int, digest: str) -> bool:
    """See :meth:`lunanexa_ports.replays.Replays.snapshot`."""
    rebuilt = await _replayed(journal, snapshots, until)
    if state_digest(rebuilt.state) != digest:
        return False
    keep_snapshot(snapshots, Snapshot(head=rebuilt.head, wall_ms=rebuilt.wall_ms, state=rebuilt.state))
    return True


async def make_carry(journal: JournalReader, snapshots: Snapshots, until: int) -> bytes:
    """See :meth:`lunanexa_ports.replays.Replays.carry`."""
    rebuilt = await _replayed(journal, snapshots, until)
    return encode(carry_of(rebuilt.state))


async def _replayed(journal: JournalReader, snapshots: Snapshots, until: int) -> Replay:
    rebuilt = await rebuild(journal, snapshots, until=until)
    if rebuilt.head.sequence != until:
        raise PortUnavailable(f"the store has no row {until}: its rows end at {rebuilt.head.sequence}")
    return rebuilt
