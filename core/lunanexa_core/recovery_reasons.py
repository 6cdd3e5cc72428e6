"""Why a leader recovers: what it was told, or noticed, that the store does not hold."""

import enum

import attrs

from lunanexa_core.ids import NodeId


class RecoveryCause(enum.Enum):
    """How a store is known to have lost its newest rows."""

    RESTORED = "restored"
    """It was filled from a backup."""
    ROWS_MISSING = "rows_missing"
    """A row that this controller has seen is not in it."""
    NODE_AHEAD = "node_ahead"
    """A node follows a document that it can't have given."""


@attrs.frozen(kw_only=True)
class RecoveryReason:
    """``sequence`` is the last row of the backup, or the one that is missing. ``epoch`` was given already, by what is
    known; ``node`` and ``generation`` are those of the node's document."""

    cause: RecoveryCause
    sequence: int | None = None
    epoch: int = 0
    node: NodeId | None = None
    generation: int | None = None
