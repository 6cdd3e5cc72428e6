"""Delta debugging: the smallest list with which something still fails.

Source: Zeller and Hildebrandt, Simplifying and Isolating Failure-Inducing Input (IEEE TSE 28(2), 2002), ``ddmin``.
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


def smallest(items: Sequence[T], fails: Callable[[Sequence[T]], bool]) -> Sequence[T]:
    """A list with which it fails, and not with any one of it left out. ``items`` itself must fail."""
    kept, parts = list(items), 2
    if not kept or fails([]):
        return []
    while len(kept) > 1:
        size = -(-len(kept) // parts)
        chunks = [kept[start : start + size] for start in range(0, len(kept), size)]
        without = [[item for item in kept if item not in chunk] for chunk in chunks]
        # With two parts what is left out of one is the other.
        smaller = next((tried for tried in (*chunks, *(without if len(chunks) > 2 else ())) if fails(tried)), None)
        if smaller is not None:
            parts = 2 if smaller in chunks else max(len(chunks) - 1, 2)
            kept = smaller
        elif size == 1:
            return kept
        else:
            parts = min(2 * parts, len(kept))
    return kept
