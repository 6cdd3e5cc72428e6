"""What metering and honesty read of an engine's answer: usage, finish reasons, errors.

Every function first looks for a few bytes, because nearly every event of a stream holds nothing of interest
and parsing it would cost more than passing it on. Inside a JSON string a quote is escaped, so ``"usage":``
with bare quotes is always a member's name, whatever a model writes. What is not JSON holds nothing.
Source: https://platform.openai.com/docs/api-reference/chat/streaming and the recorded answers of engines.
"""

import json
import re
from collections.abc import Iterable, Mapping
from math import ceil
from typing import Any, Final

from lunanexa_core.canonical import MAX_INTEGER
from lunanexa_core.openai.growing import GrowingText
from lunanexa_core.openai.head import RequestHead, estimate_tokens, input_estimate
from lunanexa_core.openai.request_rules import AUDIO_TOKENS_A_SECOND
from lunanexa_core.workload import Usage

_USAGE: Final = re.compile(rb'"usage"\s*:\s*\{')
_FINISH: Final = re.compile(rb'"finish_reason"\s*:\s*"')
_ERROR: Final = re.compile(rb'"error"\s*:\s*[{"]')
_WHOLE_BYTES: Final = 256 * 1024
"""Answers beyond this are embeddings: their usage is looked up without parsing a million floats."""


def usage_of(payload: bytes) -> Usage | None:
    """The engine's own count, if the payload (a whole answer, or one event's data) bears one."""
    if len(payload) > _WHOLE_BYTES:
        return _last_usage(payload)
    if b'"usage"' in payload and _USAGE.search(payload) is not None:
        return usage_from((document(payload) or {}).get("usage"))
    # Cohere's and Jina's rerank.
    if b'"meta"' in payload and isinstance(meta := (document(payload) or {}).get("meta"), dict):
        return usage_from(meta.get("tokens"))
    return None


def is_usage_only_event(payload: bytes) -> bool:
    """Whether an event's data bears usage and no choice: the event that ``include_usage`` adds."""
    if _USAGE.search(payload) is None:
        return False
    found = document(payload)
    return found is not None and isinstance(found.get("usage"), dict) and not found.get("choices")


def finished_choices(payload: bytes) -> frozenset[int]:
    """Indices of the choices that end in this payload."""
    if _FINISH.search(payload) is None:
        return frozenset()
    return frozenset(
        choice["index"] if isinstance(choice.get("index"), int) else 0
        for choice in _choices(document(payload))
        if choice.get("finish_reason") is not None
    )


def error_object(payload: bytes) -> dict[str, Any] | None:
    """The error that an engine tells inside a 200; a bare string counts as its message."""
    if _ERROR.search(payload) is None:
        return None
    match (document(payload) or {}).get("error"):
        case dict() as error:
            return error
        case str() as message:
            return {"message": message}
        case _:
            return None


def estimated_usage(head: RequestHead, output_tokens: int) -> Usage:
    """What is booked where the engine did not count."""
    return Usage(input_tokens=input_estimate(head), output_tokens=output_tokens, estimated=True)


def output_estimate(payload: bytes) -> int:
    """Output tokens of a whole answer without usage, by the length of its texts; 0 where it has none."""
    texts: list[Any] = []
    for choice in _choices(document(payload)):
        message = choice.get("message")
        texts.append(choice.get("text"))
        if isinstance(message, dict):
            texts += [message.get("content"), message.get("reasoning_content")]
            if message.get("tool_calls"):
                texts.append(json_text(message["tool_calls"]))
    return texts_estimate(texts)


def texts_estimate(texts: Iterable[Any]) -> int:
    """Tokens that the strings among ``texts`` may be."""
    return estimate_tokens(sum(len(text.encode(errors="replace")) for text in texts if isinstance(text, str)))


def document(payload: bytes) -> dict[str, Any] | None:
    """The JSON object that the payload is, or ``None``."""
    try:
        found = json.loads(payload)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def json_text(value: Any) -> str:
    """JSON to be measured: empty where it is nested too deeply to be written."""
    try:
        return json.dumps(value)
    except RecursionError:
        return ""


def written(answer: Mapping[str, Any]) -> bytes | None:
    """An answer as JSON, its growing texts whole; ``None`` where it is nested too deeply to be written."""
    try:
        text = json.dumps(answer, separators=(",", ":"), ensure_ascii=False, default=GrowingText.whole)
        return text.encode(errors="backslashreplace")
    except RecursionError:
        return None


def _choices(found: dict[str, Any] | None) -> list[dict[str, Any]]:
    choices = (found or {}).get("choices")
    return [choice for choice in choices if isinstance(choice, dict)] if isinstance(choices, list) else []


def usage_from(found: Any) -> Usage | None:
    """A usage object of any dialect. Anthropic's input leaves the cached tokens out; a duration of sound is turned
    into tokens, as an estimate."""
    if not isinstance(found, dict):
        return None
    given = _first(found, "prompt_tokens", "input_tokens")
    made = _first(found, "completion_tokens", "output_tokens")
    details = found.get("prompt_tokens_details", found.get("input_tokens_details"))
    cached = _count(details.get("cached_tokens")) if isinstance(details, dict) else None
    if given is None and made is None:
        total, seconds = _count(found.get("total_tokens")), found.get("seconds")
        if total is not None:
            return Usage(input_tokens=total)
        if isinstance(seconds, int | float) and 0 <= seconds <= MAX_INTEGER // AUDIO_TOKENS_A_SECOND:
            return Usage(input_tokens=ceil(seconds * AUDIO_TOKENS_A_SECOND), estimated=True)
        return None
    read, kept = (_count(found.get(f"cache_{how}_input_tokens")) or 0 for how in ("read", "creation"))
    given = min((given or 0) + read + kept, MAX_INTEGER)
    return Usage(input_tokens=given, output_tokens=made or 0, cached_tokens=cached or read)


def _first(found: dict[str, Any], *names: str) -> int | None:
    return next((count for name in names if (count := _count(found.get(name))) is not None), None)


def _count(value: Any) -> int | None:
    counted = isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_INTEGER
    return value if counted else None


def _last_usage(payload: bytes) -> Usage | None:
    """Looked for from the end, where engines write it."""
    at = payload.rfind(b'"usage"')
    while at >= 0 and (found := _USAGE.match(payload, at)) is None:
        at = payload.rfind(b'"usage"', 0, at)
    if at < 0 or found is None:
        return None
    try:
        value, _ = json.JSONDecoder().raw_decode(payload[found.end() - 1 :].decode())
    except (ValueError, RecursionError):
        return None
    return usage_from(value)
