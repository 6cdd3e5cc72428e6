"""The gateway's numbers. One value, read once at start."""

import attrs


@attrs.frozen(kw_only=True)
class GatewaySettings:
    """Times in milliseconds, sizes in bytes."""

    deadline_ms: int = 600_000
    """Budget of a request that names none: queue and run together."""
    deadline_max_ms: int = 86_400_000
    keepalive_ms: int = 15_000
    """Proxies on the way cut connections that are silent for a minute, some for half of it."""
    receipt_ms: int = 2_000
    """How long the last bytes wait for the durable receipt."""
    cleanup_ms: int = 2_000
    """Bound of the shielded settlement of a request that was cancelled."""
    tail_ms: int = 2_000
    """How long a finished stream may take to bring its usage event and its end."""
    connect_ms: int = 5_000
    default_output_tokens: int = 1_024
    """Reserved for a request that names no limit."""
    answer_bytes_max: int = 64 * 1024 * 1024
    event_bytes_max: int = 4 * 1024 * 1024
    offload_bytes: int = 64 * 1024
    """Larger bodies are read and hashed in a worker."""
    offload_events: int = 200
    """Longer streams are assembled in a worker."""
