"""Seeded choice: a generator of our own, so that one seed means one text in every process and version.

SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, 2014) passes the usual
statistical batteries and is four lines; the seed is a hash of everything that shall matter.
"""

import hashlib
from collections.abc import Sequence

import attrs

_MASK = (1 << 64) - 1


class Rng:
    def __init__(self, *parts: str | int) -> None:
        digest = hashlib.blake2b(digest_size=8)
        for part in parts:
            data = str(part).encode("utf-8")
            digest.update(len(data).to_bytes(8, "little") + data)
        self._state = int.from_bytes(digest.digest(), "little")

    def word(self) -> int:
        """The next 64 bits."""
        self._state = (self._state + 0x9E3779B97F4A7C15) & _MASK
        mixed = self._state
        mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
        return mixed ^ (mixed >> 31)

    def fraction(self) -> float:
        """Uniform in [0, 1)."""
        return (self.word() >> 11) / (1 << 53)

    def below(self, limit: int) -> int:
        """Uniform in [0, limit); the bias of the remainder is below 2**-50 for the small limits used here."""
        assert limit > 0
        return self.word() % limit


@attrs.frozen(kw_only=True)
class Sampling:
    temperature: float = 1.0
    top_p: float = 1.0


def choose(weights: Sequence[float], sampling: Sampling, rng: Rng) -> int:
    """An index into ``weights``, which are positive and stand in falling order."""
    assert weights
    if sampling.temperature < 0.01:
        return 0
    if sampling.temperature != 1.0:
        # Relative to the first weight: a power of a quotient of at most 1 can't overflow.
        power = 1.0 / sampling.temperature
        weights = [(weight / weights[0]) ** power for weight in weights]
    total = sum(weights)
    if sampling.top_p < 1.0:
        kept = 0.0
        for count, weight in enumerate(weights, start=1):
            kept += weight
            if kept >= sampling.top_p * total:
                weights, total = weights[:count], kept
                break
    mark = rng.fraction() * total
    for index, weight in enumerate(weights):
        mark -= weight
        if mark < 0:
            return index
    return len(weights) - 1
