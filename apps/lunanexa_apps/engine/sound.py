"""Text as sound and back, without a model: a modem, sixteen tones for half a byte each.

So speech is real sound that grows with its text, and its transcript is the text again. Any other WAV is only
measured. WAV: http://soundfile.sapp.org/doc/WaveFormat/
"""

import struct
from math import cos, pi
from typing import Final

import attrs

RATE_HZ: Final = 8_000
WIDTH_BYTES: Final = 2
_SAMPLES: Final = 32
"""Of one tone: 4 ms, so that a text sounds for 8 ms a byte."""
_PLAIN: Final = (1, 0xFFFE)
"""Samples that are numbers; the second has more to say of them."""
_LOUDNESS: Final = 12_000
_HEADER_BYTES: Final = 44
_TONES: Final = tuple(
    struct.pack(
        f"<{_SAMPLES}h",
        *(round(_LOUDNESS * cos(2 * pi * cycles * sample / _SAMPLES)) for sample in range(_SAMPLES)),
    )
    for cycles in range(1, 17)
)
_HALF_BYTES: Final = {tone: number for number, tone in enumerate(_TONES)}
_TONE_BYTES: Final = _SAMPLES * WIDTH_BYTES


@attrs.frozen(kw_only=True)
class Sound:
    """What a WAV holds. ``samples``: as they are in the file."""

    samples: bytes
    seconds: float
    ours: bool
    """It has our rate, width and one channel."""


def sound_of(text: str) -> bytes:
    """The samples of a text: 16 bits, one channel, ``RATE_HZ``."""
    return b"".join(_TONES[byte >> 4] + _TONES[byte & 15] for byte in text.encode("utf-8", "replace"))


def sound_bytes(text: str) -> int:
    """How many bytes that is."""
    return 2 * _TONE_BYTES * len(text.encode("utf-8", "replace"))


def wav_header(size_bytes: int) -> bytes:
    """What stands before so many bytes of samples in a WAV of ours."""
    rate = RATE_HZ * WIDTH_BYTES
    form = struct.pack("<4sIHHIIHH", b"fmt ", 16, 1, 1, RATE_HZ, rate, WIDTH_BYTES, 8 * WIDTH_BYTES)
    return (
        struct.pack("<4sI4s", b"RIFF", size_bytes + _HEADER_BYTES - 8, b"WAVE")
        + form
        + (struct.pack("<4sI", b"data", size_bytes))
    )


def read_wav(data: bytes) -> Sound | None:
    """The sound in a WAV of plain samples; ``None`` where it is none. A size beyond the end, as in a WAV that was
    written while it was recorded, means all that is there."""
    if data[:4] != b"RIFF" or data[8:12] != b"WAVE":
        return None
    at, form = 12, (0, 0, 0)
    while at + 8 <= len(data):
        name, size_bytes = struct.unpack_from("<4sI", data, at)
        at += 8
        if name == b"fmt " and at + 16 <= len(data):
            kind, channels, rate_hz, _, _, bits = struct.unpack_from("<HHIIHH", data, at)
            form = (rate_hz, bits // 8, channels) if kind in _PLAIN else (0, 0, 0)
        elif name == b"data":
            a_second = form[0] * form[1] * form[2]
            samples = data[at : at + size_bytes]
            ours = form == (RATE_HZ, WIDTH_BYTES, 1)
            return Sound(samples=samples, seconds=len(samples) / a_second, ours=ours) if a_second else None
        at += size_bytes + size_bytes % 2
    return None


def text_of(sound: Sound) -> str | None:
    """The text that the sound was made of; ``None`` for any other sound."""
    if not sound.ours or not sound.samples or len(sound.samples) % (2 * _TONE_BYTES):
        return None
    halves: list[int] = []
    for at in range(0, len(sound.samples), _TONE_BYTES):
        number = _HALF_BYTES.get(sound.samples[at : at + _TONE_BYTES])
        if number is None:
            return None
        halves.append(number)
    told = bytes(high << 4 | low for high, low in zip(halves[::2], halves[1::2], strict=True))
    try:
        return told.decode()
    except UnicodeDecodeError:
        return None
