"""Makes a backup: all rows of a store up to where it stands now, verified and replayed as they are read."""

from collections import Counter
from collections.abc import Callable
from contextlib import aclosing
from typing import IO, Final

from lunanexa_apps.backup.bundle import end_bundle, write_member, write_rows
from lunanexa_apps.backup.manifest import (
    KEYS,
    MANIFEST,
    PRUNING,
    SIGNATURE,
    Manifest,
    Member,
    head_document,
    member_of,
    public_keys,
    sign_manifest,
)
from lunanexa_apps.codec import encode
from lunanexa_apps.controller.replay import PrunedBeyond, Replay, newest_pruning
from lunanexa_apps.controller.rows import Pruning
from lunanexa_apps.journal_lines import end_line, journal_line, row_line
from lunanexa_apps.journal_rows import row_document
from lunanexa_core.canonical import canonical_json
from lunanexa_core.journal import Chain, Head
from lunanexa_core.journal_query import RowQuery
from lunanexa_core.state_digest import state_digest
from lunanexa_ports.errors import PortFault, PortUnavailable
from lunanexa_ports.journal import JournalReader
from lunanexa_ports.signing import Signer

PROGRESS_ROWS: Final = 20_000
"""So often a word of progress: more than half a second's work."""

Progress = Callable[[int, int], None]
"""Told the last sequence that was dealt with, and where it ends."""


async def create_backup(
    journal: JournalReader, file: IO[bytes], signer: Signer, *, wall_ms: int, version: str, progress: Progress
) -> Manifest:
    """Writes the bundle of all that ``journal`` holds now to ``file``, which can be sought in; others may write to the
    store meanwhile. Raises as the journal does, ``PortFault`` where it is damaged, ``OSError`` as the file does."""
    pruning = await newest_pruning(journal)
    while True:
        # After the pruning was looked for: the row that tells of it is one of those that are copied.
        head = await journal.head()
        if head.sequence == 0:
            raise PortUnavailable("the store is empty: there is nothing to back up")
        try:
            return await _write(journal, file, signer, pruning, head, wall_ms, version, progress)
        except PrunedBeyond as error:
            fault = error
        before, pruning = pruning, await newest_pruning(journal)
        if pruning == before:
            raise fault


async def _write(
    journal: JournalReader,
    file: IO[bytes],
    signer: Signer,
    pruning: Pruning | None,
    head: Head,
    wall_ms: int,
    version: str,
    progress: Progress,
) -> Manifest:
    replay, counts = Replay(pruning=pruning), Counter[Chain]()
    point = None if pruning is None else pruning.point
    with write_rows(file, wall_ms) as (lines, members):
        lines.write(journal_line(point))
        async with aclosing(journal.read()) as rows:
            async for row in rows:
                if row.sequence > head.sequence:
                    break
                replay.feed(row)
                counts[row.chain] += 1
                lines.write(row_line(row))
                if sum(counts.values()) % PROGRESS_ROWS == 0:
                    progress(row.sequence, head.sequence)
        if (replay.head.sequence, replay.head.journal, replay.head.ledger) != (
            head.sequence,
            head.journal,
            head.ledger,
        ):
            raise PortFault(f"the journal's head is at {head.sequence} and its rows end at {replay.head.sequence}")
        lines.write(end_line(replay.head))
    assert replay.state.cluster is not None, "a journal begins with its cluster"
    small = {KEYS: encode(public_keys(replay.state, signer.key_id, signer.public_key))}
    if point is not None:
        small[PRUNING] = await _pruning_row(journal, point.sequence)
    manifest = Manifest(
        cluster=replay.state.cluster,
        made_wall_ms=wall_ms,
        version=version,
        head=head_document(replay.head),
        rows={chain.value: counts[chain] for chain in Chain},
        state_digest=state_digest(replay.state),
        pruned=point,
        members=(*members, *_members(small)),
    )
    data = encode(manifest)
    for name, content in (*small.items(), (MANIFEST, data), (SIGNATURE, sign_manifest(data, signer))):
        write_member(file, name, content, wall_ms)
    end_bundle(file)
    return manifest


def _members(small: dict[str, bytes]) -> tuple[Member, ...]:
    return tuple(member_of(name, data) for name, data in small.items())


async def _pruning_row(journal: JournalReader, sequence: int) -> bytes:
    rows = await journal.page(RowQuery(after=sequence - 1, before=sequence + 1, limit=1))
    return canonical_json(row_document(rows[0]))
