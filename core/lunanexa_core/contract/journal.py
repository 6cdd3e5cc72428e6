"""What operators see of the journal."""

import attrs

from lunanexa_core.journal import Chain


@attrs.frozen(kw_only=True)
class RowDocument:
    """One row of journal or ledger. ``record`` is the text that was hashed, to the byte: canonical JSON with
    sequence, chain, epoch, wall_ms, actor, action, version, target and body."""

    sequence: int
    chain: Chain
    epoch: int
    wall_ms: int
    action: str
    target: str
    record: str
    previous: str
    hash: str


@attrs.frozen(kw_only=True)
class RowPage:
    """``next_cursor`` goes on where this page ends, which may be short or empty; ``None``: there is no more.
    ``head`` is the last sequence at that time."""

    data: tuple[RowDocument, ...]
    next_cursor: str | None
    head: int


@attrs.frozen(kw_only=True)
class PrunedDocument:
    """What has left the ledger: rows up to sequence ``until``, ``rows`` of them with ``receipts`` receipts since its
    beginning; ``ledger`` is the hash of the last of them."""

    until: int
    rows: int
    receipts: int
    ledger: str


@attrs.frozen(kw_only=True)
class HeadDocument:
    """Where both chains stand: the last sequence, the epoch that wrote it, the last hash of each chain; and where the
    ledger begins (``null``: with its first row)."""

    sequence: int
    epoch: int
    journal: str
    ledger: str
    pruned: PrunedDocument | None = None


@attrs.frozen(kw_only=True)
class StateDocument:
    """The live state after ``sequence``: its digest, and the entries of each table. Digests of one version of the
    program can be compared."""

    sequence: int
    digest: str
    tables: dict[str, int]
    version: str
