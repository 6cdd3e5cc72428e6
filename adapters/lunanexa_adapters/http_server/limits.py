"""Bounds of a server: nothing that a client does, or leaves undone, may hold memory or a task for ever."""

import attrs


@attrs.frozen(kw_only=True)
class ServerLimits:
    head_max_bytes: int = 32 * 1024
    """A longer request head is answered 431."""
    head_timeout_ms: int = 10_000
    """From the first byte of a head to its end, else 408; also how long a new connection may stay silent."""
    idle_timeout_ms: int = 75_000
    """How long a kept-alive connection may wait for its next request; then it is closed without a word."""
    body_timeout_ms: int = 30_000
    """Time that we spend waiting for a body's bytes, else 408. Time in which the application does not read
    (backpressure) is not counted, and every ``body_bytes_per_s`` received add a second."""
    body_bytes_per_s: int = 16 * 1024
    body_max_bytes: int | None = None
    """A backstop behind the application's own limit; a longer body is answered 413."""
    write_timeout_ms: int = 30_000
    """One send that is not taken by the client within this time ends the connection (a stuck reader)."""
    linger_ms: int = 2_000
    """How long the rest of a body is read and thrown away after an early answer, so that the answer is not
    destroyed by the reset that closing an unread socket causes."""
    grace_ms: int = 10_000
    """After the shutdown, requests in flight may go on for this long; then their handlers are cancelled."""
    max_connections: int = 8_192
    """A connection over it is answered 503 and closed."""
    websocket_message_max_bytes: int = 1024 * 1024
    """Of a message's UTF-8, fragments together. A longer one ends the connection with 1009 as it comes in; it is
    never held whole."""
    websocket_ping_ms: int = 20_000
    websocket_pong_timeout_ms: int = 20_000
    """A WebSocket peer that says nothing at all for ping + pong time is gone."""
    tls_handshake_timeout_ms: int = 5_000
    """A client that has not finished its TLS handshake by then is cut."""
    tls_handshakes_max: int = 1_024
    """Handshakes in progress; over it the one that has waited longest is cut."""
    tls_connections_each: int = 16
    """By one certificate; over it the one that has stood longest is cut."""
    tls_strangers_max: int = 256
    """Connections of all who show no certificate; over it the one that has stood longest is cut."""
    lifespan_timeout_ms: int = 30_000
