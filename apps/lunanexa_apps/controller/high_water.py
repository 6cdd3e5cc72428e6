"""The highest place at which this controller saw the store, kept in a file of its own: a store that does not hold that
row any more was set back (a restore, a replica that was behind, another database), and nothing else would tell."""

from collections.abc import Callable
from typing import Final

import structlog
import trio

from lunanexa_apps.codec import CodecError, decode, encode, unstructure
from lunanexa_apps.controller.lease import Fenced
from lunanexa_apps.controller.replay import newest_pruning
from lunanexa_apps.installation import KNOWN_HEAD
from lunanexa_core.contract.journal import HeadDocument
from lunanexa_core.journal import Head
from lunanexa_core.journal_query import RowQuery
from lunanexa_core.recovery import lost_rows
from lunanexa_core.recovery_reasons import RecoveryReason
from lunanexa_core.state import State
from lunanexa_ports.errors import PortFault, PortUnavailable
from lunanexa_ports.journal import JournalReader
from lunanexa_ports.private_files import PrivateFiles

WRITE_MS: Final = 5_000
"""The file is so much behind, at most: what is written blocks for as long as the disk takes."""
WATCH_MS: Final = 2_000
_log = structlog.get_logger()


class HighWater:
    """Of one controller's process. ``files``: where it outlives the process; ``None``: it does not."""

    def __init__(self, files: PrivateFiles | None = None) -> None:
        """Raises as ``files`` do, and ``PortFault`` for a file that can't be read."""
        self._files = files
        self._seen = Head() if files is None else read_known_head(files)
        self._kept = self._seen
        self._lost: list[Head] = []

    def saw(self, head: Head) -> None:
        """The store is known to hold ``head``."""
        self._seen = head

    async def check(self, journal: JournalReader) -> bool:
        """Whether the store still holds what was seen of it. If not, that is remembered as lost, and whoever replayed
        it begins anew. Raises as the journal does."""
        if await holds(journal, self._seen):
            return True
        _log.error("rows_missing", sequence=self._seen.sequence, epoch=self._seen.epoch)
        self.lost(self._seen)
        self._seen = Head()
        return False

    async def watch(self, journal: JournalReader, head: Callable[[], Head]) -> None:
        """For who leads: looks every few seconds whether the store holds ``head()``. Raises ``Fenced`` when it does
        not, which an append would show as well, and who has nothing to append would not see."""
        while True:
            await trio.sleep(WATCH_MS / 1_000)
            known = head()
            try:
                if not await holds(journal, known):
                    raise Fenced(f"the store does not hold row {known.sequence} any more, and did")
            except PortUnavailable:
                continue

    def lost(self, head: Head) -> None:
        """The store was at ``head`` once, and does not hold it."""
        self._lost.append(head)

    def reasons(self, state: State) -> tuple[RecoveryReason, ...]:
        """Why the leader of the store that ``state`` is made of must recover; nothing: it need not."""
        lost = max(self._lost, key=lambda head: (head.epoch, head.sequence), default=None)
        return () if lost is None else lost_rows(state, lost)

    def told(self, head: Head, state: State) -> None:
        """The reasons are durable in the store at ``head``, of which ``state`` is made: the files may forget them."""
        if state.recovery is not None:
            _log.error("recovering", reasons=unstructure(state.recovery), fix="look at it: lunanexa recovery plan")
        self._lost.clear()
        self._seen = head
        self.keep()

    def keep(self) -> None:
        """Writes the file, if there is anything new. That it can't be written is told, and is no fault."""
        if self._files is None or self._kept == self._seen or self._lost:
            return
        try:
            self._files.replace(KNOWN_HEAD, encode_known_head(self._seen))
        except PortUnavailable as error:
            _log.warning("known_head_not_kept", problem=str(error))
            return
        self._kept = self._seen


async def holds(journal: JournalReader, head: Head) -> bool:
    """Whether the store holds the row that ``head`` ends with, or has pruned it. Raises as the journal does."""
    if head.sequence == 0:
        return True
    rows = await journal.page(RowQuery(after=head.sequence - 1, before=head.sequence + 1, limit=1))
    if rows:
        return rows[0].hash == head.last(rows[0].chain)
    pruning = await newest_pruning(journal)
    return pruning is not None and head.sequence <= pruning.point.until


def encode_known_head(head: Head) -> bytes:
    """The file of ``head``."""
    document = HeadDocument(sequence=head.sequence, epoch=head.epoch, journal=head.journal, ledger=head.ledger)
    return encode(document) + b"\n"


def read_known_head(files: PrivateFiles) -> Head:
    """Where the store was when a controller here last kept it; the beginning where none has."""
    data = files.read(KNOWN_HEAD)
    if data is None:
        return Head()
    try:
        told = decode(HeadDocument, data)
    except CodecError as error:
        fix = "remove the file if the store is known to be whole"
        raise PortFault(f"{files.place(KNOWN_HEAD)}: {error}; {fix}") from None
    return Head(sequence=told.sequence, epoch=told.epoch, journal=told.journal, ledger=told.ledger)
