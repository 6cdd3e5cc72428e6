"""One chat completion, streamed: what to send, and what the stream says, event by event."""

import json
from collections.abc import Mapping
from typing import Any, Final

import attrs

from lunanexa_client import ProtocolError, StreamEvent

SHORTEST_STREAM_S: Final = 0.005
"""Below that the speed of an answer can't be told from that of this program's reading it."""


@attrs.frozen(kw_only=True)
class Question:
    """What ``lunanexa invoke`` asks."""

    model: str
    prompt: str
    system: str | None = None
    max_tokens: int | None = None
    temperature: float | None = None

    def document(self) -> dict[str, Any]:
        """The body of ``POST /v1/chat/completions``."""
        system = [] if self.system is None else [{"role": "system", "content": self.system}]
        options = {"max_tokens": self.max_tokens, "temperature": self.temperature}
        return {
            "model": self.model,
            "messages": [*system, {"role": "user", "content": self.prompt}],
            "stream": True,
            "stream_options": {"include_usage": True},
            **{name: value for name, value in options.items() if value is not None},
        }


class Transcript:
    """What has come so far."""

    def __init__(self) -> None:
        self.content = ""
        self.finish_reason: str | None = None
        self.usage: dict[str, Any] | None = None

    def take(self, event: StreamEvent) -> str:
        """The text that ``event`` adds; empty for anything else. Odd events are passed over, as clients do."""
        try:
            chunk = event.json()
        except ProtocolError:
            return ""
        if not isinstance(chunk, dict):
            return ""
        if isinstance(chunk.get("usage"), dict):
            self.usage = chunk["usage"]
        return self._take_choice(chunk)

    def _take_choice(self, chunk: dict[str, Any]) -> str:
        choices = chunk.get("choices")
        choice = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else {}
        reason = choice.get("finish_reason")
        if isinstance(reason, str):
            self.finish_reason = reason
        delta = choice.get("delta")
        text = delta.get("content") if isinstance(delta, dict) else None
        if not isinstance(text, str):
            return ""
        self.content += text
        return text


@attrs.frozen(kw_only=True)
class Measures:
    """How it went, measured here; ``None`` where it can't be told. Times are seconds of the caller's clock."""

    began: float
    first_text: float | None
    last_text: float | None
    ended: float
    queue_ms: int | None
    input_tokens: int | None
    output_tokens: int | None

    @property
    def ttft_ms(self) -> int | None:
        return None if self.first_text is None else round((self.first_text - self.began) * 1000)

    @property
    def total_ms(self) -> int:
        return round((self.ended - self.began) * 1000)

    @property
    def tokens_per_s(self) -> float | None:
        """After the first token: what came before it is in the time to it. Not told of an answer that came
        in one piece, as short ones do."""
        if self.first_text is None or self.last_text is None or self.output_tokens is None:
            return None
        passed = self.last_text - self.first_text
        return None if passed < SHORTEST_STREAM_S or self.output_tokens < 2 else (self.output_tokens - 1) / passed

    def line(self) -> str:
        """One line for people."""
        speed = None if self.tokens_per_s is None else f"{self.tokens_per_s:.1f} tokens/s"
        parts = (
            None if self.ttft_ms is None else f"first token {self.ttft_ms} ms",
            speed,
            None if self.queue_ms is None else f"queued {self.queue_ms} ms",
            None if self.input_tokens is None else f"{self.input_tokens} tokens in",
            None if self.output_tokens is None else f"{self.output_tokens} out",
            f"total {self.total_ms} ms",
        )
        return ", ".join(part for part in parts if part is not None)


def result_document(model: str, transcript: Transcript, measures: Measures, headers: Mapping[str, str]) -> str:
    """The whole answer as one JSON document."""
    speed = measures.tokens_per_s
    document = {
        "model": model,
        "content": transcript.content,
        "finish_reason": transcript.finish_reason,
        "usage": transcript.usage,
        "ttft_ms": measures.ttft_ms,
        "tokens_per_s": None if speed is None else round(speed, 2),
        "queue_ms": measures.queue_ms,
        "total_ms": measures.total_ms,
        "workload_id": headers.get("x-lunanexa-workload-id"),
        "request_id": headers.get("x-request-id"),
    }
    return json.dumps(document, indent=2, ensure_ascii=False)
