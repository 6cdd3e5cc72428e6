"""The dialects of sound: speech as bytes or events, transcripts as JSON, text or events.

Source: https://platform.openai.com/docs/api-reference/audio ; vLLM tells transcripts in chat's chunks.
"""

from typing import Final

from lunanexa_core.openai.request_rules import AUDIO_BYTES_A_TOKEN
from lunanexa_core.openai.response import document, finished_choices, is_usage_only_event, texts_estimate, usage_of
from lunanexa_core.openai.stream import DONE, EventKind
from lunanexa_core.openai.typed import TypedReader

_BASE64: Final = 4 / 3


class SpeechReader(TypedReader):
    """Ends with ``speech.audio.done``."""

    def take(self, name: str, data: bytes) -> EventKind:
        if name == "speech.audio.done":
            self.usage = usage_of(data)
            return EventKind.FINISH
        if name == "speech.audio.delta":
            self.outputs += sound_tokens(len(data) / _BASE64)
        return EventKind.OUTPUT


class TranscriptReader(TypedReader):
    """Ends with ``transcript.text.done``; in chat's chunks with a finish reason and ``[DONE]`` after it, because
    there each stretch of a long recording has a finish of its own."""

    def __init__(self, choices: int) -> None:
        super().__init__(choices)
        self._chunked = False
        self._stretch_finished = False

    @property
    def whole(self) -> bool:
        return super().whole or (not self.failed and self._stretch_finished and self.done)

    def take(self, name: str, data: bytes) -> EventKind:
        if name == "transcript.text.done":
            self.usage = usage_of(data)
            return EventKind.FINISH
        if b'"choices"' in data:
            self._chunked = True
            self.usage = usage_of(data) or self.usage
            self._stretch_finished = bool(finished_choices(data)) or (
                self._stretch_finished and is_usage_only_event(data)
            )
        self.outputs += 1
        return EventKind.OUTPUT

    def closing(self) -> bytes:
        return DONE if self._chunked and not self.done else b""


def sound_tokens(size_bytes: float) -> int:
    """Output tokens of so many bytes of sound."""
    return int(-(-size_bytes // AUDIO_BYTES_A_TOKEN))


def speech_estimate(body: bytes) -> int:
    """Output tokens of a whole sound."""
    return sound_tokens(len(body))


def transcript_estimate(body: bytes) -> int:
    """Output tokens of a transcript without usage: of its text, in JSON or bare."""
    found = document(body)
    if found is not None:
        return texts_estimate([found.get("text")])
    return texts_estimate([body.decode(errors="replace")])
