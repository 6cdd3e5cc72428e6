"""What operators see of a recovery, and how they say go."""

import attrs

from lunanexa_core.ids import NodeId
from lunanexa_core.recovery_plan import RecoveryStep
from lunanexa_core.recovery_reasons import RecoveryReason


@attrs.frozen(kw_only=True)
class PlanDocument:
    """What the go leads to, as of now. ``steps`` are the first ones; ``counts`` tells of all, by kind. ``waiting``:
    enrolled nodes that may yet be heard. ``digest`` names the plan."""

    steps: tuple[RecoveryStep, ...]
    counts: dict[str, int]
    waiting: tuple[NodeId, ...]
    digest: str


@attrs.frozen(kw_only=True)
class RecoveryDocument:
    """``plan`` is ``None`` where nothing is being recovered. ``rebased``: up to which epoch the last go covered what
    the store does not hold; 0: there was none."""

    recovering: bool
    reasons: tuple[RecoveryReason, ...]
    plan: PlanDocument | None
    sequence: int
    epoch: int
    rebased: int


@attrs.frozen
class RecoveryGo:
    """``plan`` is the digest of the plan that the operator saw."""

    plan: str


@attrs.frozen(kw_only=True)
class RecoveryEnded:
    """The store counts from here on."""

    rebased: int
    epoch: int
    sequence: int
