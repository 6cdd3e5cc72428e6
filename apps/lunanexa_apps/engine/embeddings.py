"""Text as a vector without a model: hashed word and word-pair counts, normalised to length one.

Texts that share words come out near each other, which is all that a test of a pipeline needs.
Feature hashing with signs: Weinberger and others, 2009. CRC-32 spread by Fibonacci hashing is stable
across processes, unlike ``hash``.
"""

import base64
import struct
import zlib
from collections.abc import Sequence
from itertools import pairwise
from math import sqrt

_MASK = (1 << 64) - 1
_PAIR_WEIGHT = 0.5


def embed(tokens: Sequence[str], dimensions: int) -> tuple[float, ...]:
    """A unit vector of values that 32-bit floats hold exactly; never the zero vector, whatever the text."""
    words = [word for token in tokens if (word := token.strip().lower())]
    vector = [0.0] * dimensions
    for word in words:
        _add(vector, word, 1.0)
    for first, second in pairwise(words):
        _add(vector, f"{first} {second}", _PAIR_WEIGHT)
    length = sqrt(sum(value * value for value in vector))
    if length == 0.0:
        vector[0], length = 1.0, 1.0
    return struct.unpack(f"<{dimensions}f", _pack([value / length for value in vector]))


def _add(vector: list[float], feature: str, weight: float) -> None:
    spread = (zlib.crc32(feature.encode("utf-8")) * 0x9E3779B97F4A7C15 + 0xD1B54A32D192ED03) & _MASK
    vector[(spread >> 16) % len(vector)] += weight if spread >> 63 else -weight


def as_base64(vector: Sequence[float]) -> str:
    """Little-endian 32-bit floats, as OpenAI's ``encoding_format: base64``."""
    return base64.b64encode(_pack(vector)).decode("ascii")


def _pack(vector: Sequence[float]) -> bytes:
    return struct.pack(f"<{len(vector)}f", *vector)
