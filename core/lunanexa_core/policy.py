"""The numbers that the kernel's rules go by. One value, read once at start."""

from typing import Final

import attrs

RETAIN_BYTES_MAX: Final = 256 * 1024 * 1024
"""Room for kept answers, where the operator does not say."""


@attrs.frozen(kw_only=True)
class Policy:
    """All in milliseconds or counts."""

    lease_ms: int = 3_000
    """A leader that the store was not told of for so long may be succeeded."""
    idempotency_ms: int = 86_400_000
    """An idempotency key stays bound for so long after its workload has ended."""
    bindings_max: int = 100_000
    """Idempotency keys of one tenant that may be bound at once."""
    retain_ms_max: int = 86_400_000
    """The longest that an answer may be kept for its idempotency key; 0: none is kept."""
    queue_requests_max: int = 256
    """Waiters of one service beyond its slots; one more is refused ``queue_full``."""
    queue_wait_ms: int = 60_000
    """How long a request may wait for a slot before it is refused."""
    band_age_ms: int = 10_000
    """A waiter's band rises by one for each of these that it has waited, so that none starves."""
    session_lease_ms: int = 10_000
    """A gateway's session lapses this long after its last renewal."""
    overdue_ms: int = 30_000
    """So long after its deadline a workload that its gateway has not settled is settled in its place: longer than
    a gateway takes to end a request and to hand its settlement over."""
    ledger_keep_receipts: int = 1_000_000
    """Receipts that stay in the ledger, though never fewer than are kept in memory; 0: any number."""
    ledger_keep_ms: int = 0
    """How long they stay there; 0: for any time."""
    snapshot_rows: int = 10_000
    """A snapshot is made when so many rows have come since the last: a start replays about as many."""
    node_suspect_ms: int = 6_000
    """Three heartbeats of two seconds missed."""
    node_lease_ms: int = 10_000
    """A node that was silent for this long is lost and is granted nothing."""
    node_rows_per_minute: int = 240
    """Rows of the journal that a node may cause by its reports: some six starts of an engine in each of eight places.
    Beyond it they wait, and the node is granted nothing."""
    node_rows_burst: int = 1_024
    """So many at once: four changes of each of the replicas that a heartbeat may tell of."""
    node_drain_ms: int = 600_000
    """How long a node that drains keeps a replica for which another is being started elsewhere, or that has requests
    in progress, where the operator does not say."""
    freeze_per_mille: int = 500
    """When more of the fleet's nodes are late at once, nothing is re-placed: that is our own fault until shown
    otherwise."""
    freeze_nodes_min: int = 3
    """So many must be late for that."""
    renew_expired_ms: int = 2_592_000_000
    """For so long after its certificate has expired a node may have another by answering a challenge; 0: never."""
    reading_fresh_ms: int = 10_000
    """What an engine said of itself longer ago is unknown."""
