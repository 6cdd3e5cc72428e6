"""Rows of the journal and the ledger, and the rule that chains them.

Both chains share one sequence and one transaction. A row stores its canonical bytes once, and its
hash is over those bytes, so that what was hashed can always be shown. The head fields repeat what
stands in the bytes, for queries; :func:`check_row` holds the two together.
"""

import enum
import hashlib
from collections.abc import Sequence
from typing import Final

import attrs

from lunanexa_core.canonical import JsonValue, NotCanonical, canonical_json, strict_json

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


def chain_hash(previous: str, record: bytes) -> str:
    """SHA-256 over the previous hash (32 raw bytes) and the record's canonical bytes, hex."""
    return hashlib.sha256(bytes.fromhex(previous) + record).hexdigest()


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


def check_row(head: Head, row: Row) -> ChainFault | None:
    """Whether ``row`` may stand after ``head``."""
    if row.sequence != head.sequence + 1:
        return ChainFault.SEQUENCE
    if row.epoch < head.epoch:
        return ChainFault.EPOCH
    if row.previous != head.last(row.chain):
        return ChainFault.PREVIOUS
    if row.hash != chain_hash(row.previous, row.record):
        return ChainFault.HASH
    heads = {
        "sequence": row.sequence,
        "chain": row.chain.value,
        "epoch": row.epoch,
        "wall_ms": row.wall_ms,
        "action": row.action,
        "target": row.target,
    }
    try:
        record = strict_json(row.record)
        if not isinstance(record, dict) or canonical_json(record) != row.record:
            return ChainFault.RECORD
    except NotCanonical:
        return ChainFault.RECORD
    for name, value in heads.items():
        # The type counts too: True == 1 in Python, and not in a record.
        if type(record.get(name)) is not type(value) or record[name] != value:
            return ChainFault.RECORD
    return None
