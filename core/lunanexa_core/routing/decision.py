"""A routing decision as a record: every candidate with every term, every refusal with its reason, the choice.

It is made at the grant, of what the grant was decided by, so that nobody has to guess afterwards.
"""

from typing import Final

import attrs

from lunanexa_core.ids import AssignmentId, DeploymentId, NodeId, StartId, WorkloadId

DECISIONS_KEPT: Final = 1_024
ALREADY_FAILED: Final = "it failed on this request before"
NO_FREE_SLOT: Final = "no free slot"


@attrs.frozen(kw_only=True)
class Candidate:
    """One replica as it was then. ``refused`` is ``None`` for one that could have been chosen; of those the highest
    ``free_share`` wins (per mille of its slots), then the highest ``tie_break``. ``running`` is what the engine said,
    ``reading_age_ms`` ago; ``None`` is unknown."""

    assignment: AssignmentId
    node: NodeId | None
    start: StartId
    refused: str | None
    slots: int
    slots_held: int
    free_slots: int
    free_share: int
    running: int | None
    reading_age_ms: int | None
    tie_break: int


@attrs.frozen(kw_only=True)
class RoutingDecision:
    """One grant. ``waiting``: how many waited for this service then, this one included."""

    workload: WorkloadId
    deployment: DeploymentId
    wall_ms: int
    queued_ms: int
    waiting: int
    band: int
    """Priority band at the grant; it rises with the time that was waited."""
    chosen: StartId
    candidates: tuple[Candidate, ...]
