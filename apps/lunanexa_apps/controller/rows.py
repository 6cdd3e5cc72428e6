"""Events to journal rows and back."""

from lunanexa_apps.codec import structure, unstructure
from lunanexa_core.canonical import strict_json
from lunanexa_core.events import KIND_OF_TYPE, Event, kind_for
from lunanexa_core.journal import Chain, Head, Row, make_row
from lunanexa_core.workload import LedgerPlace


def to_row(head: Head, event: Event, *, epoch: int, wall_ms: int, actor: str) -> Row:
    """The row that records ``event`` after ``head``."""
    kind = KIND_OF_TYPE[type(event)]
    return make_row(
        head,
        chain=kind.chain,
        epoch=epoch,
        wall_ms=wall_ms,
        actor=actor,
        action=kind.action,
        version=kind.version,
        target=kind.target(event),
        body=unstructure(event),
    )


def place_of(row: Row) -> LedgerPlace | None:
    """Where a row stands in the ledger; ``None`` for one of the journal."""
    if row.chain is not Chain.LEDGER:
        return None
    return LedgerPlace(sequence=row.sequence, previous=row.previous, hash=row.hash)


def from_row(row: Row) -> Event:
    """The event that a row records. Raises :class:`~lunanexa_core.events.UnknownEvent` for one that a newer
    version wrote, :class:`~lunanexa_apps.codec.CodecError` for a body that does not fit its kind."""
    record = strict_json(row.record)
    event: Event = structure(kind_for(record["action"], record["version"]).type, record["body"])
    return event
