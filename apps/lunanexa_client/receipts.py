"""What a server says of a workload's receipt, beside an error."""

from collections.abc import Mapping
from typing import Any

import attrs


@attrs.frozen(kw_only=True)
class Receipt:
    """``None`` where the server did not say. ``sequence`` and hashes are its place in the ledger."""

    workload_id: str | None = None
    state: str | None = None
    """How the workload ended."""
    sequence: int | None = None
    hash: str | None = None
    previous_hash: str | None = None
    address: str | None = None
    """Where it can be read, below the service's address; told in place of all others."""
    document: Mapping[str, Any] = attrs.field(factory=dict, repr=False)
    """All that was said, usage and timing among it."""


def receipt_of(found: object) -> Receipt | None:
    """An address, a place in the ledger, or a workload's document, which has its place as a member."""
    if isinstance(found, str):
        return Receipt(address=found, workload_id=found.rpartition("/")[2] or None)
    if not isinstance(found, dict):
        return None
    inner = found.get("receipt")
    place = inner if isinstance(inner, dict) else found
    sequence = place.get("sequence")
    return Receipt(
        workload_id=_text(found.get("workload_id")),
        state=_text(found.get("state")),
        sequence=sequence if isinstance(sequence, int) and not isinstance(sequence, bool) else None,
        hash=_text(place.get("hash")),
        previous_hash=_text(place.get("previous_hash")),
        document=found,
    )


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None
