"""Events to journal rows and back."""

from collections.abc import Mapping
from typing import Any, Final

import attrs

from lunanexa_apps.codec import CodecError, structure, unstructure
from lunanexa_core.canonical import NotCanonical, strict_json
from lunanexa_core.events import KIND_OF_TYPE, Event, LedgerPruned, UnknownEvent, WorkloadSettled, kind_for
from lunanexa_core.journal import Chain, Head, PrunePoint, Row, make_row
from lunanexa_core.workload import LedgerPlace
from lunanexa_ports.errors import PortFault

PRUNED_ACTION: Final = KIND_OF_TYPE[LedgerPruned].action
SETTLED_ACTION: Final = KIND_OF_TYPE[WorkloadSettled].action


@attrs.frozen
class Pruning:
    """What a row of the journal says of a pruning."""

    point: PrunePoint
    carry: str


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
    """The event that a row records. Raises as :func:`from_record` does."""
    return from_record(strict_json(row.record))


def from_record(record: Mapping[str, Any]) -> Event:
    """The event of a record. Raises :class:`~lunanexa_core.events.UnknownEvent` for one that a newer version wrote,
    :class:`~lunanexa_apps.codec.CodecError` for a body that does not fit its kind."""
    event: Event = structure(kind_for(record["action"], record["version"]).type, record["body"])
    return event


def pruning_of(row: Row) -> Pruning:
    """The pruning that ``row`` records; the row itself is not verified. Raises :class:`PortFault` for one that can't be
    read."""
    try:
        event = from_row(row)
    except (NotCanonical, CodecError, UnknownEvent, KeyError, TypeError) as error:
        raise PortFault(f"the journal can't be read at sequence {row.sequence}: {error}") from None
    if not isinstance(event, LedgerPruned):
        raise PortFault(f"the journal is damaged at sequence {row.sequence}: no pruning; restore a backup")
    point = PrunePoint(until=event.until, ledger=event.ledger, sequence=row.sequence, hash=row.hash)
    return Pruning(point, event.carry)
