"""The numbers that the kernel's rules go by. One value, read once at start."""

import attrs


@attrs.frozen(kw_only=True)
class Policy:
    """All in milliseconds or counts."""

    queue_requests_max: int = 256
    """Waiters of one service beyond its slots; one more is refused ``queue_full``."""
    queue_wait_ms: int = 60_000
    """How long a request may wait for a slot before it is refused."""
    band_age_ms: int = 10_000
    """A waiter's band rises by one for each of these that it has waited, so that none starves."""
    session_lease_ms: int = 10_000
    """A gateway's session lapses this long after its last renewal."""
    node_suspect_ms: int = 6_000
    """Three heartbeats of two seconds missed."""
    node_lease_ms: int = 10_000
    """A node that was silent for this long is lost and is granted nothing."""
    reading_fresh_ms: int = 10_000
    """What an engine said of itself longer ago is unknown."""
