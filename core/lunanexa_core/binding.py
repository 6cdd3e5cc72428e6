"""Idempotency keys: what one is bound to, and for how long. The caller's own key is in none of this."""

import hashlib
from typing import Final

import attrs

from lunanexa_core.ids import TenantId, WorkloadId
from lunanexa_core.workload import Settlement

BUSY: Final = frozenset((408, 429))
"""Statuses by which an engine asks its caller to come again."""


@attrs.frozen(kw_only=True)
class Binding:
    """The workload that an idempotency key of a tenant stands for. ``since_wall_ms`` is its end, its admission while
    it is open."""

    tenant: TenantId
    workload: WorkloadId
    body: str
    """SHA-256 (hex) of route, content type, data class and raw body."""
    since_wall_ms: int
    retain_ms: int = 0
    kept: bool = False
    """Whether its answer was put aside."""

    def expired(self, wall_ms: int, idempotency_ms: int) -> bool:
        """Whether the key is free again, once the workload has ended."""
        return wall_ms - self.since_wall_ms >= max(idempotency_ms, self.retain_ms)

    def answer_kept(self, wall_ms: int) -> bool:
        """Whether the answer may still be given."""
        return self.kept and wall_ms - self.since_wall_ms < self.retain_ms


@attrs.frozen(kw_only=True)
class Ended:
    """The workload that an idempotency key stands for has ended; ``kept``: its answer may be given again."""

    workload: WorkloadId
    kept: bool


def bound_key(tenant: TenantId, key_digest: str) -> str:
    """What stands for a caller's key within its tenant: SHA-256, hex. ``key_digest`` is that of the key itself."""
    return hashlib.sha256(f"{tenant}\0{key_digest}".encode()).hexdigest()


def frees_key(settlement: Settlement) -> bool:
    """Whether the same request may be made again under its key: the end was one that a retry may mend."""
    if settlement.outcome is not None:
        return settlement.outcome.row.retry
    return bool(settlement.attempts) and settlement.attempts[-1].status in BUSY
