"""Rows of the journal as records of a table: what the stores in SQL have in common."""

from collections.abc import Sequence
from typing import Any, Final

from lunanexa_core.journal import Chain, Row

COLUMNS: Final = "sequence, chain, epoch, wall_ms, action, target, record, previous, hash"
_CHAINS: Final = {chain.value: chain for chain in Chain}


def row_from(columns: Sequence[Any]) -> Row | None:
    """The row of a record of :data:`COLUMNS`, of their types; ``None``: there is no such chain."""
    sequence, chain, epoch, wall_ms, action, target, record, previous, hash_ = columns
    if chain not in _CHAINS:
        return None
    return Row(
        sequence=sequence,
        chain=_CHAINS[chain],
        epoch=epoch,
        wall_ms=wall_ms,
        action=action,
        target=target,
        record=record,
        previous=previous,
        hash=hash_,
    )
