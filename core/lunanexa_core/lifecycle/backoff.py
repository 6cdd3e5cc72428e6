"""How long to wait before the next try."""

from typing import Final

BASE_MS: Final = 500
CAP_MS: Final = 30_000


def backoff_ms(failures: int, jitter_per_mille: int, *, base_ms: int = BASE_MS, cap_ms: int = CAP_MS) -> int:
    """Delay after ``failures`` failures in a row: ``base_ms`` doubled each time up to ``cap_ms``, of which
    the second half is drawn (``jitter_per_mille`` of 0 to 999), so that many who failed together spread."""
    assert 0 <= jitter_per_mille < 1000, jitter_per_mille
    # The exponent is bounded: a counter that ran for years must not make an integer of a million bits.
    full_ms = min(cap_ms, base_ms << min(max(0, failures - 1), 24))
    half_ms = full_ms // 2
    return half_ms + (full_ms - half_ms) * jitter_per_mille // 1000
