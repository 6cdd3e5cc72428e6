"""Randomness of the simulated world: named streams, each derived from the one seed.

A new draw in one stream changes nothing in another, so that a fault added to one link leaves the rest
of a run as it was. A stream is seeded by a hash of its name, never by ``hash()``, which differs from
process to process.
"""

import hashlib
import random
from typing import TypeAlias

Stream: TypeAlias = random.Random
"""What the rest of the simulation calls a source of randomness."""


class Streams:
    """All streams of one seed."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._streams: dict[str, Stream] = {}

    def stream(self, name: str) -> Stream:
        """The stream of this name: the same object each time, since two of the same seed would repeat
        each other's draws."""
        if name not in self._streams:
            digest = hashlib.sha256(f"{self._seed}/{name}".encode()).digest()
            self._streams[name] = random.Random(int.from_bytes(digest, "big"))
        return self._streams[name]
