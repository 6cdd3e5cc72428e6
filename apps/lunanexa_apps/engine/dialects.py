"""The two forms in which an answer is told, chat and completion, streamed and whole.

Source: https://platform.openai.com/docs/api-reference/chat/streaming and recorded answers of real servers:
a role chunk, content chunks, a chunk with the finish reason, and on demand one with usage and no choices;
with ``include_usage`` the other chunks bear ``usage: null``.
"""

from collections.abc import Iterator
from typing import Any, Protocol, TypeAlias

import attrs

from lunanexa_apps.engine.generation import FinishReason
from lunanexa_apps.engine.settings import OWNER

Document: TypeAlias = dict[str, Any]


@attrs.frozen
class Usage:
    prompt_tokens: int
    completion_tokens: int

    def document(self) -> Document:
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
        }


@attrs.frozen(kw_only=True)
class Envelope:
    """What all documents of one answer share."""

    id: str
    created: int
    model: str
    include_usage: bool = False

    def wrap(self, kind: str, choices: list[Document]) -> Document:
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": OWNER,
            "choices": choices,
        }

    def chunk(self, kind: str, choices: list[Document], usage: Usage | None = None) -> Document:
        document = self.wrap(kind, choices)
        if self.include_usage:
            document["usage"] = None if usage is None else usage.document()
        return document


class Dialect(Protocol):
    """Inherited explicitly; one object an answer."""

    def opening(self) -> Iterator[Document]: ...
    def piece(self, text: str) -> Document: ...
    def closing(self, finish: FinishReason) -> Document: ...
    def usage(self, usage: Usage) -> Document: ...
    def whole(self, text: str, finish: FinishReason, usage: Usage) -> Document: ...


class ChatDialect(Dialect):
    _KIND = "chat.completion.chunk"

    def __init__(self, envelope: Envelope) -> None:
        self._envelope = envelope

    def opening(self) -> Iterator[Document]:
        yield self._delta({"role": "assistant", "content": ""})

    def piece(self, text: str) -> Document:
        return self._delta({"content": text})

    def closing(self, finish: FinishReason) -> Document:
        return self._delta({}, finish)

    def usage(self, usage: Usage) -> Document:
        return self._envelope.chunk(self._KIND, [], usage)

    def whole(self, text: str, finish: FinishReason, usage: Usage) -> Document:
        message = {"role": "assistant", "content": text, "refusal": None}
        return self._whole(message, finish, usage)

    def _whole(self, message: Document, finish: FinishReason, usage: Usage) -> Document:
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": finish}
        return {**self._envelope.wrap("chat.completion", [choice]), "usage": usage.document()}

    def _delta(self, delta: Document, finish: FinishReason | None = None) -> Document:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        return self._envelope.chunk(self._KIND, [choice])


class ToolCallDialect(ChatDialect):
    """A chat answer whose text is the arguments of one function call."""

    def __init__(self, envelope: Envelope, call_id: str, name: str) -> None:
        super().__init__(envelope)
        self._call_id = call_id
        self._name = name

    def opening(self) -> Iterator[Document]:
        call = {**self._call(""), "index": 0}
        yield self._delta({"role": "assistant", "content": None, "tool_calls": [call]})

    def piece(self, text: str) -> Document:
        return self._delta({"tool_calls": [{"index": 0, "function": {"arguments": text}}]})

    def whole(self, text: str, finish: FinishReason, usage: Usage) -> Document:
        message = {"role": "assistant", "content": None, "refusal": None, "tool_calls": [self._call(text)]}
        return self._whole(message, finish, usage)

    def _call(self, text: str) -> Document:
        return {"id": self._call_id, "type": "function", "function": {"name": self._name, "arguments": text}}


class CompletionDialect(Dialect):
    _KIND = "text_completion"

    def __init__(self, envelope: Envelope) -> None:
        self._envelope = envelope

    def opening(self) -> Iterator[Document]:
        yield from ()

    def piece(self, text: str) -> Document:
        return self._envelope.chunk(self._KIND, [self._choice(text, None)])

    def closing(self, finish: FinishReason) -> Document:
        return self._envelope.chunk(self._KIND, [self._choice("", finish)])

    def usage(self, usage: Usage) -> Document:
        return self._envelope.chunk(self._KIND, [], usage)

    def whole(self, text: str, finish: FinishReason, usage: Usage) -> Document:
        document = self._envelope.wrap(self._KIND, [self._choice(text, finish)])
        return {**document, "usage": usage.document()}

    def _choice(self, text: str, finish: FinishReason | None) -> Document:
        return {"index": 0, "text": text, "logprobs": None, "finish_reason": finish}
