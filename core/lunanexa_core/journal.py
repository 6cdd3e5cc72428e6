"""Rows of the journal and the ledger, and the rule that chains them.

Both chains share one sequence and one transaction. A row stores its canonical bytes once, and its
hash is over those bytes, so that what was hashed can always be shown. The head fields repeat what
stands in the bytes, for queries; :func:`read_row` holds the two together.
"""

import enum
import hashlib
from collections.abc import Sequence
from typing import Any, Final

import attrs

from lunanexa_core.canonical import JsonValue, NotCanonical, canonical_json, read_canonical

GENESIS: Final = "0" * 64
"""The previous hash of a chain's first row."""


class Chain(enum.Enum):
    """``journal``: what operators and nodes changed, kept for ever. ``ledger``: admitted workloads and
    their receipts, prunable by prefix."""

    JOURNAL = "journal"
    LEDGER = "ledger"


@attrs.frozen(kw_only=True)
class Row:
    """One record of a chain. Hashes are SHA-256, hex."""

    sequence: int
    chain: Chain
    epoch: int
    wall_ms: int
    action: str
    target: str
    record: bytes
    previous: str
    hash: str


@attrs.frozen(kw_only=True)
class Head:
    """Where both chains stand: the last sequence, the epoch that wrote last, and each chain's last hash."""

    sequence: int = 0
    epoch: int = 0
    journal: str = GENESIS
    ledger: str = GENESIS

    def last(self, chain: Chain) -> str:
        return self.journal if chain is Chain.JOURNAL else self.ledger

    def after(self, row: Row) -> "Head":
        """The head once ``row`` is written."""
        return Head(
            sequence=row.sequence,
            epoch=row.epoch,
            journal=row.hash if row.chain is Chain.JOURNAL else self.journal,
            ledger=row.hash if row.chain is Chain.LEDGER else self.ledger,
        )


@attrs.frozen(kw_only=True)
class Pruned:
    """What has left the ledger, or may leave it now, by its last pruning. Counts are since the ledger's beginning."""

    after: int
    """The prune point before; nothing is left of the ledger up to there."""
    until: int
    """The sequence of the prune point."""
    rows: int
    receipts: int
    ledger: str
    """The hash of the ledger's last row up to there."""


@attrs.frozen(kw_only=True)
class PrunePoint:
    """Up to where the ledger may be missing (``until``) and the last hash of what may (``ledger``), as the journal's
    row of ``sequence`` and ``hash`` says, which comes later and is held to it."""

    until: int
    ledger: str
    sequence: int
    hash: str

    def skips(self, row: Row) -> bool:
        """Whether ``row`` is one that may be missing as well."""
        return row.chain is Chain.LEDGER and row.sequence <= self.until

    def is_told_by(self, row: Row, body: object) -> bool:
        """Whether ``row`` of this ``body`` is the one that says so."""
        told = {"until": self.until, "ledger": self.ledger}
        return (
            row.hash == self.hash
            and row.sequence > self.until
            and isinstance(body, dict)
            and all(type(body.get(name)) is type(value) and body[name] == value for name, value in told.items())
        )

    def passed_by(self, head: Head, row: Row) -> bool:
        """Whether ``row`` is the first after the prune point."""
        return head.sequence <= self.until < row.sequence


def chain_hash(previous: str, record: bytes) -> str:
    """SHA-256 over the previous hash (32 raw bytes) and the record's canonical bytes, hex."""
    return hashlib.sha256(bytes.fromhex(previous) + record).hexdigest()


def is_hashed(row: Row) -> bool:
    """Whether the hash is that of the record, wherever the row stands."""
    try:
        return row.hash == chain_hash(row.previous, row.record)
    except ValueError:
        return False


def make_row(
    head: Head,
    *,
    chain: Chain,
    epoch: int,
    wall_ms: int,
    actor: str,
    action: str,
    version: int,
    target: str,
    body: JsonValue,
) -> Row:
    """The next row of ``chain`` after ``head``."""
    sequence = head.sequence + 1
    record = canonical_json(
        {
            "sequence": sequence,
            "chain": chain.value,
            "epoch": epoch,
            "wall_ms": wall_ms,
            "actor": actor,
            "action": action,
            "version": version,
            "target": target,
            "body": body,
        }
    )
    previous = head.last(chain)
    return Row(
        sequence=sequence,
        chain=chain,
        epoch=epoch,
        wall_ms=wall_ms,
        action=action,
        target=target,
        record=record,
        previous=previous,
        hash=chain_hash(previous, record),
    )


def head_after(head: Head, epoch: int, rows: Sequence[Row]) -> Head:
    """The head once ``rows`` are written by the holder of ``epoch``. Rows that do not stand one after the
    other on ``head`` are a bug of the writer. Hashes are not computed again: :func:`check_row` does that."""
    assert rows, "no rows to append"
    for row in rows:
        assert row.sequence == head.sequence + 1, (row.sequence, head.sequence)
        assert row.epoch == epoch, (row.epoch, epoch)
        assert row.previous == head.last(row.chain), row.sequence
        head = head.after(row)
    return head


class ChainFault(enum.Enum):
    """What is wrong with a row in its place."""

    SEQUENCE = "sequence does not follow"
    EPOCH = "epoch is lower than the one before"
    PREVIOUS = "previous hash is not that of the row before"
    HASH = "hash is not that of the record"
    RECORD = "record is not canonical or contradicts its head fields"
    PRUNED = "what is left of the ledger before its prune point does not end there"
    PRUNING = "it is not the pruning that the rows before it were read by"


def check_row(head: Head, row: Row, point: PrunePoint | None = None) -> ChainFault | None:
    """What is wrong with ``row`` after ``head``; ``None``: nothing."""
    record = read_row(head, row, point)
    return record if isinstance(record, ChainFault) else None


def read_row(head: Head, row: Row, point: PrunePoint | None = None) -> dict[str, Any] | ChainFault:
    """The record of ``row``, which may stand after ``head``, or what is wrong with it. Up to ``point`` sequences may
    have gaps where rows of the ledger were dropped, the oldest first; that none of the journal's is missing, its own
    chain says."""
    dropped = 0 if point is None else point.until
    if row.sequence != head.sequence + 1 and not head.sequence < row.sequence <= dropped + 1:
        return ChainFault.SEQUENCE
    if row.epoch < head.epoch:
        return ChainFault.EPOCH
    if point is not None and point.passed_by(head, row):
        if head.ledger not in (GENESIS, point.ledger):
            return ChainFault.PRUNED
        head = attrs.evolve(head, ledger=point.ledger)
    first_left = row.chain is Chain.LEDGER and row.sequence <= dropped and head.ledger == GENESIS
    if row.previous != head.last(row.chain) and not first_left:
        return ChainFault.PREVIOUS
    record = _read(row)
    if isinstance(record, ChainFault) or point is None or row.sequence != point.sequence:
        return record
    return record if point.is_told_by(row, record.get("body")) else ChainFault.PRUNING


def read_ledger_row(head: Head, row: Row) -> dict[str, Any] | ChainFault:
    """As :func:`read_row`, where rows of the ledger stand alone."""
    if row.chain is not Chain.LEDGER or row.sequence <= head.sequence:
        return ChainFault.SEQUENCE
    if row.epoch < head.epoch:
        return ChainFault.EPOCH
    return ChainFault.PREVIOUS if row.previous != head.ledger else _read(row)


def _read(row: Row) -> dict[str, Any] | ChainFault:
    try:
        if row.hash != chain_hash(row.previous, row.record):
            return ChainFault.HASH
    except ValueError:  # What comes before the first row that is left is not known.
        return ChainFault.PREVIOUS
    heads = {
        "sequence": row.sequence,
        "chain": row.chain.value,
        "epoch": row.epoch,
        "wall_ms": row.wall_ms,
        "action": row.action,
        "target": row.target,
    }
    try:
        record = read_canonical(row.record)
    except NotCanonical:
        return ChainFault.RECORD
    if not isinstance(record, dict):
        return ChainFault.RECORD
    for name, value in heads.items():
        # The type counts too: True == 1 in Python, and not in a record.
        if type(record.get(name)) is not type(value) or record[name] != value:
            return ChainFault.RECORD
    return record


def head_with(head: Head, row: Row, point: PrunePoint | None = None) -> Head:
    """The head once ``row``, which :func:`read_row` has found good, stands after ``head``."""
    if point is not None and point.passed_by(head, row):
        head = attrs.evolve(head, ledger=point.ledger)
    return head.after(row)
