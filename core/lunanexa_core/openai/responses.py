"""The dialect ``responses``: its stream, and the whole answer that its last event bears.

Source: https://platform.openai.com/docs/api-reference/responses-streaming
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from lunanexa_core.openai.response import document, texts_estimate, usage_from, written
from lunanexa_core.openai.stream import EventKind
from lunanexa_core.openai.typed import TypedReader, named_frame

_ENDS: Final = ("response.completed", "response.incomplete")
"""An answer that its limit cut is an answer, as with ``finish_reason: length``."""
_FAILURES: Final = ("response.failed", "response.cancelled")
_SEQUENCE: Final = re.compile(rb'"sequence_number"\s*:\s*([0-9]{1,15})')


class ResponsesReader(TypedReader):
    """Ends with ``response.completed`` or ``response.incomplete``, and nothing after it."""

    def __init__(self, choices: int) -> None:
        super().__init__(choices)
        self._last = b""

    def take(self, name: str, data: bytes) -> EventKind:
        self._last = data
        if name in _FAILURES:
            return EventKind.ERROR
        if name not in _ENDS:
            self.outputs += name.endswith(".delta")
            return EventKind.OUTPUT
        answer = (document(data) or {}).get("response")
        self.usage = usage_from(answer.get("usage")) if isinstance(answer, dict) else None
        return EventKind.FINISH

    def error_frame(self, error: Mapping[str, Any]) -> bytes:
        """Numbered after the last event; those that the relay holds back are the ones that it replaces."""
        last = _SEQUENCE.search(self._last)
        number = 0 if last is None else int(last[1]) + 1
        told = {"code": error.get("code"), "message": error.get("message"), "param": error.get("param")}
        return named_frame("error", {**told, **_ours(error), "sequence_number": number})


def assemble_response(payloads: Iterable[bytes]) -> bytes | None:
    """The whole answer: the ``response`` of the last event."""
    for payload in reversed(list(payloads)):
        answer = (document(payload) or {}).get("response")
        if isinstance(answer, dict) and isinstance(answer.get("output"), list):
            return written(answer)
    return None


def response_estimate(body: bytes) -> int:
    """Output tokens of a whole answer without usage, by the length of its texts."""
    texts: list[Any] = []
    for item in _dicts((document(body) or {}).get("output")):
        texts.append(item.get("arguments"))
        texts += [part.get("text") for part in _dicts(item.get("content"))]
    return texts_estimate(texts)


def _dicts(value: Any) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _ours(error: Mapping[str, Any]) -> dict[str, Any]:
    """What our errors say more."""
    return {name: error[name] for name in ("retryable", "request_id") if name in error}
