"""The dialect ``messages``, Anthropic's: its stream, and the whole answer put together from it.

Source: https://docs.anthropic.com/en/api/messages-streaming and https://docs.anthropic.com/en/api/errors
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

import attrs

from lunanexa_core.openai.growing import GrowingText
from lunanexa_core.openai.response import document, json_text, texts_estimate, usage_from, written
from lunanexa_core.openai.stream import EventKind
from lunanexa_core.openai.typed import TypedReader, named_frame
from lunanexa_core.workload import Usage

_STOP: Final = named_frame("message_stop", {})
_ERROR_TYPES: Final = {"server_error": "api_error", "insufficient_quota": "rate_limit_error"}
"""Names of ours that are others there."""


class MessagesReader(TypedReader):
    """Ends with a ``message_delta`` that has the reason, and ``message_stop``."""

    def __init__(self, choices: int) -> None:
        super().__init__(choices)
        self._begun: Usage | None = None
        """Of the input, told with the first event."""
        self._stopped = False

    def take(self, name: str, data: bytes) -> EventKind:
        match name:
            case "ping":
                return EventKind.SILENT
            case "message_start":
                message = (document(data) or {}).get("message")
                self._begun = usage_from(message.get("usage")) if isinstance(message, dict) else None
            case "content_block_delta":
                self.outputs += 1
            case "message_delta":
                found = document(data) or {}
                self._count(found.get("usage"))
                delta = found.get("delta")
                if isinstance(delta, dict) and delta.get("stop_reason") is not None:
                    return EventKind.FINISH
            case "message_stop":
                self._stopped = True
                return EventKind.DONE if self._finished else EventKind.FINISH
            case _:
                pass
        return EventKind.OUTPUT

    def _count(self, found: Any) -> None:
        """Counts are totals; what a later event does not tell again stays."""
        usage, known = usage_from(found), self.usage or self._begun
        if usage is not None and known is not None and not usage.input_tokens:
            usage = attrs.evolve(usage, input_tokens=known.input_tokens, cached_tokens=known.cached_tokens)
        self.usage = usage or self.usage

    def used(self, input_tokens: int) -> Usage:
        if self.usage is None and self._begun is not None:
            return attrs.evolve(self._begun, output_tokens=self.outputs, estimated=True)
        return super().used(input_tokens)

    def closing(self) -> bytes:
        return b"" if self._stopped else _STOP

    def error_frame(self, error: Mapping[str, Any]) -> bytes:
        kind = error.get("type")
        told = {**error, "type": _ERROR_TYPES.get(str(kind), kind)}
        request = told.pop("request_id", None)
        return named_frame("error", {"error": told, **({} if request is None else {"request_id": request})})


def assemble_message(payloads: Iterable[bytes]) -> bytes | None:
    """The whole answer: the message of the first event, with the blocks and the end that the others tell.
    ``None`` without a first event."""
    answer: dict[str, Any] | None = None
    blocks: dict[int, dict[str, Any]] = {}
    inputs: dict[int, list[str]] = {}
    for payload in payloads:
        found = document(payload) or {}
        index = found.get("index")
        index = index if isinstance(index, int) else 0
        match found.get("type"), found:
            case "message_start", {"message": dict(message)}:
                answer = {**message}
            case "content_block_start", {"content_block": dict(block)}:
                blocks[index] = {**block}
            case "content_block_delta", {"delta": {"type": "input_json_delta", "partial_json": str(part)}}:
                inputs.setdefault(index, []).append(part)
            case "content_block_delta", {"delta": dict(delta)}:
                _grow(blocks.setdefault(index, {"type": "text"}), delta)
            case "message_delta", {"delta": dict(delta)} if answer is not None:
                usages = [usage for usage in (answer.get("usage"), found.get("usage")) if isinstance(usage, dict)]
                answer |= {**delta, "usage": {name: count for usage in usages for name, count in usage.items()}}
            case _:
                pass
    if answer is None:
        return None
    for index, parts in inputs.items():
        blocks.setdefault(index, {"type": "tool_use"})["input"] = _input("".join(parts))
    return written({**answer, "content": [blocks[index] for index in sorted(blocks)]})


def _grow(block: dict[str, Any], delta: dict[str, Any]) -> None:
    for name, value in delta.items():
        match block.get(name), value:
            case _ if name == "type":
                pass
            case _ if name == "citation":
                known = block.get("citations")
                block["citations"] = [*(known if isinstance(known, list) else ()), value]
            case GrowingText(parts=parts), str():
                parts.append(value)
            case str(before), str():
                block[name] = GrowingText([before, value])
            case _:
                block[name] = value


def _input(text: str) -> Any:
    """A tool's input, which is told as pieces of JSON; as text where they make none."""
    try:
        return json.loads(text) if text.strip() else {}
    except (ValueError, RecursionError):
        return text


def message_estimate(body: bytes) -> int:
    """Output tokens of a whole answer without usage, by the length of its blocks."""
    content = (document(body) or {}).get("content")
    blocks = [block for block in content if isinstance(block, dict)] if isinstance(content, list) else []
    texts: list[Any] = [block.get(name) for block in blocks for name in ("text", "thinking")]
    return texts_estimate([*texts, *(json_text(block["input"]) for block in blocks if block.get("input"))])
