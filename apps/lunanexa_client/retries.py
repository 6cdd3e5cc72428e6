"""Whether a failed attempt is made again, and when."""

from collections.abc import Callable
from typing import Final

from lunanexa_client.errors import LunaNexaError
from lunanexa_client.settings import Retries

JITTER_PARTS: Final = 4
"""A wait is lengthened by up to a quarter, so that callers who were refused together don't come back together."""


def wait_ms(
    retries: Retries, *, done: int, error: LunaNexaError, remaining_ms: int, below: Callable[[int], int]
) -> int | None:
    """How long to wait before retry number ``done`` + 1; ``None``: give up. ``below(n)`` draws from 0 to n - 1.

    A server's ``Retry-After`` is never shortened: whoever comes early is only refused again."""
    if done >= retries.max_retries or not error.retryable:
        return None
    asked_ms = error.facts.retry_after_ms
    base_ms = min(retries.first_ms << min(done, 20), retries.cap_ms) if asked_ms is None else asked_ms
    wait = base_ms + below(base_ms // JITTER_PARTS + 1)
    return wait if wait < remaining_ms else None
