"""How far a node's wall clock is from its controller's: for people, who compare logs and certificates' times.

No rule goes by it. It is estimated as NTP (RFC 5905) does, from one heartbeat and its answer: the controller's clock
was read somewhere between sending and receiving, so that the middle is wrong by half of that time at most.
"""

from typing import Final

import attrs

from lunanexa_core.time import Instant

SKEW_WARN_MS: Final = 5_000
"""A clock that is further off should be set."""


@attrs.frozen
class Skew:
    """Positive where the controller's clock is ahead; right to ``error_ms`` either way."""

    ms: int
    error_ms: int


def measured_skew(sent: Instant, received: Instant, controller_wall_ms: int) -> Skew:
    """From the node's own readings at both ends. A clock that was set between them adds by how far to the error."""
    passed_ms = received.mono_ms - sent.mono_ms
    set_by_ms = received.wall_ms - sent.wall_ms - passed_ms
    middle_ms = (sent.wall_ms + received.wall_ms) // 2
    return Skew(ms=controller_wall_ms - middle_ms, error_ms=-(-(passed_ms + abs(set_by_ms)) // 2))


def is_far_off(skew_ms: int | None, error_ms: int | None) -> bool:
    """Whether the clock is off by more than :data:`SKEW_WARN_MS` for certain."""
    return skew_ms is not None and abs(skew_ms) - (error_ms or 0) > SKEW_WARN_MS
