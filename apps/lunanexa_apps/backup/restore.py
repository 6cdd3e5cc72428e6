"""Fills an empty store from a backup that was verified."""

from collections.abc import AsyncGenerator
from typing import IO

from lunanexa_apps.backup.bundle import Bundle, BundleDamaged, RowLines
from lunanexa_apps.backup.create import PROGRESS_ROWS, Progress
from lunanexa_apps.backup.manifest import Manifest
from lunanexa_apps.controller.rows import to_row
from lunanexa_core.events import RecoveryBegan
from lunanexa_core.journal import ChainFault, Head, Row, head_with, read_row
from lunanexa_core.recovery_reasons import RecoveryCause, RecoveryReason
from lunanexa_ports.journal_upkeep import JournalUpkeep


def why_not_until(manifest: Manifest, until: int) -> str | None:
    """Why the state after row ``until`` can't be had from this backup; ``None``: it can."""
    pruned = manifest.pruned
    if until > manifest.head.sequence:
        return f"the backup ends at row {manifest.head.sequence}, before {until}"
    if pruned is not None and until < pruned.sequence:
        return (
            f"the ledger is pruned up to row {pruned.until} by row {pruned.sequence}: what was before that row can't be"
            f" restored; the lowest is --until {pruned.sequence}"
        )
    return None


async def restore_backup(
    file: IO[bytes],
    manifest: Manifest,
    store: JournalUpkeep,
    *,
    until: int,
    wall_ms: int,
    progress: Progress,
) -> Head | None:
    """Writes the rows up to ``until`` into ``store``, and after them one that says so, all or none: whoever leads the
    store then recovers. ``None``: the store is not empty, and nothing was changed. Raises as the port does, and
    ``BundleDamaged`` when the file is another by now than the one that was verified."""
    reason = RecoveryReason(cause=RecoveryCause.RESTORED, sequence=until, epoch=manifest.head.epoch)
    with Bundle(file).rows() as lines:
        return await store.fill(_restored(lines, until, RecoveryBegan((reason,)), wall_ms, progress))


async def _restored(
    lines: RowLines, until: int, last: RecoveryBegan, wall_ms: int, progress: Progress
) -> AsyncGenerator[Row, None]:
    head = Head()
    for number, row in enumerate(lines, 1):
        if row.sequence > until:
            break
        fault = read_row(head, row, lines.point)
        if isinstance(fault, ChainFault):
            raise BundleDamaged(f"row {row.sequence}: {fault.value}; the file was changed while it was read")
        head = head_with(head, row, lines.point)
        wall_ms = max(wall_ms, row.wall_ms)
        if number % PROGRESS_ROWS == 0:
            progress(row.sequence, until)
        yield row
    yield to_row(head, last, epoch=head.epoch, wall_ms=wall_ms, actor="restore")
