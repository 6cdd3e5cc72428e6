"""Bounds of the WebSocket face. Pings, the size of a message and the time of one write are the server's own."""

import attrs

from lunanexa_core.contract.frames import CREDITS, RESUME_WINDOW_MS


@attrs.frozen(kw_only=True)
class WebSocketSettings:
    """Times in milliseconds, sizes in bytes of JSON text."""

    connections_max: int = 1_024
    """A connection over it is refused with 503."""
    connections_of_key_max: int = 256
    """Of one key; one more is refused with 429."""
    workloads_max: int = 64
    """In progress on one connection; one more is refused with ``rate_limited``."""
    frames_per_s: int = 2_000
    """What one connection may say for long. A second's worth may come at once; then it is read no faster."""
    charged_bytes: int = 4_096
    """So many bytes of a message weigh as much as one frame more."""
    outbox_bytes: int = 256 * 1024
    """Events wait at their workloads while so much waits to be written."""
    outbox_answers_max: int = 256
    """Nothing more is read while so many frames wait to be written."""
    slow_ms: int = 20_000
    """How long a workload waits for credit, or for room; then its client is a slow consumer. Less than the time
    that the server gives one write, or nobody would be told why."""
    close_ms: int = 1_000
    """How long what is still to be said, and the close frame, may take."""
    retry_after_ms: int = 1_000
    """What ``goaway`` tells."""
    resume_ms: int = RESUME_WINDOW_MS
    """How long a resumable workload is kept without a connection, and after its end."""
    resumables_max: int = 2_048
    """In all; a workload over it is accepted without a token."""
    kept_events_max: int = 4 * CREDITS
    """Of one resumable workload. Half of it is for what was sent, half for what is said while nobody is there."""
    kept_bytes_max: int = 1024 * 1024
    """As ``kept_events_max``."""
    kept_total_bytes_max: int = 64 * 1024 * 1024
    """Of all resumable workloads together; who finds no room is kept no longer."""
