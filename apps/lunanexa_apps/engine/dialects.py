"""The forms in which an answer is told, streamed and whole; here those with choices, chat and completion.

Source: https://platform.openai.com/docs/api-reference/chat/streaming and recorded answers of real servers:
a role chunk, content chunks, a chunk with the finish reason, and on demand one with usage and no choices;
with ``include_usage`` the other chunks bear ``usage: null``.
"""

from abc import abstractmethod
from collections.abc import Iterator
from typing import Any, Protocol, TypeAlias

import attrs

from lunanexa_apps.engine.errors import ApiError
from lunanexa_apps.engine.frames import DONE, PieceTemplate, data_frame
from lunanexa_apps.engine.generation import FinishReason
from lunanexa_apps.engine.settings import OWNER

Document: TypeAlias = dict[str, Any]


@attrs.frozen
class Usage:
    prompt_tokens: int
    completion_tokens: int

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens

    def document(self) -> Document:
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.total_tokens,
        }

    def input_output(self) -> Document:
        """Under the names of the younger dialects."""
        return {
            "input_tokens": self.prompt_tokens,
            "output_tokens": self.completion_tokens,
            "total_tokens": self.total_tokens,
        }


@attrs.frozen(kw_only=True)
class Ending:
    """How an answer ended. ``stop``: the stop string that ended it."""

    text: str
    finish: FinishReason
    usage: Usage
    stop: str | None = None


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
    """Inherited explicitly; one object an answer. All but ``whole`` are frames of a stream: first ``opening``, then a
    ``piece`` for each text, then ``ending`` and ``last``; or ``failure`` where it breaks."""

    def opening(self) -> Iterator[bytes]: ...
    def piece(self, text: str) -> bytes: ...
    def ending(self, ending: Ending) -> Iterator[bytes]: ...
    def last(self) -> bytes: ...
    def failure(self, error: ApiError) -> bytes: ...
    def whole(self, ending: Ending) -> Document | str: ...


class _Choices(Dialect):
    """What chat and completion have in common."""

    KIND = ""

    def __init__(self, envelope: Envelope) -> None:
        self._envelope = envelope
        self._template: PieceTemplate | None = None

    def piece(self, text: str) -> bytes:
        if self._template is None:
            self._template = PieceTemplate(self._piece(PieceTemplate.mark()))
        return self._template.event(text)

    @abstractmethod
    def _piece(self, text: str) -> Document:
        """One piece of text as a chunk."""

    def _usage(self, usage: Usage) -> Iterator[bytes]:
        if self._envelope.include_usage:
            yield data_frame(self._envelope.chunk(self.KIND, [], usage))

    def last(self) -> bytes:
        return DONE

    def failure(self, error: ApiError) -> bytes:
        return data_frame(error.document()) + DONE


class ChatDialect(_Choices):
    KIND = "chat.completion.chunk"

    def opening(self) -> Iterator[bytes]:
        yield data_frame(self._delta({"role": "assistant", "content": ""}))

    def _piece(self, text: str) -> Document:
        return self._delta({"content": text})

    def ending(self, ending: Ending) -> Iterator[bytes]:
        yield data_frame(self._delta({}, ending.finish))
        yield from self._usage(ending.usage)

    def whole(self, ending: Ending) -> Document:
        return self._whole({"role": "assistant", "content": ending.text, "refusal": None}, ending)

    def _whole(self, message: Document, ending: Ending) -> Document:
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": ending.finish}
        return {**self._envelope.wrap("chat.completion", [choice]), "usage": ending.usage.document()}

    def _delta(self, delta: Document, finish: FinishReason | None = None) -> Document:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        return self._envelope.chunk(self.KIND, [choice])


class ToolCallDialect(ChatDialect):
    """A chat answer whose text is the arguments of one function call."""

    def __init__(self, envelope: Envelope, call_id: str, name: str) -> None:
        super().__init__(envelope)
        self._call_id = call_id
        self._name = name

    def opening(self) -> Iterator[bytes]:
        call = {**self._call(""), "index": 0}
        yield data_frame(self._delta({"role": "assistant", "content": None, "tool_calls": [call]}))

    def _piece(self, text: str) -> Document:
        return self._delta({"tool_calls": [{"index": 0, "function": {"arguments": text}}]})

    def whole(self, ending: Ending) -> Document:
        message = {"role": "assistant", "content": None, "refusal": None, "tool_calls": [self._call(ending.text)]}
        return self._whole(message, ending)

    def _call(self, text: str) -> Document:
        return {"id": self._call_id, "type": "function", "function": {"name": self._name, "arguments": text}}


class CompletionDialect(_Choices):
    KIND = "text_completion"

    def opening(self) -> Iterator[bytes]:
        yield from ()

    def _piece(self, text: str) -> Document:
        return self._envelope.chunk(self.KIND, [self._choice(text, None)])

    def ending(self, ending: Ending) -> Iterator[bytes]:
        yield data_frame(self._envelope.chunk(self.KIND, [self._choice("", ending.finish)]))
        yield from self._usage(ending.usage)

    def whole(self, ending: Ending) -> Document:
        document = self._envelope.wrap(self.KIND, [self._choice(ending.text, ending.finish)])
        return {**document, "usage": ending.usage.document()}

    def _choice(self, text: str, finish: FinishReason | None) -> Document:
        return {"index": 0, "text": text, "logprobs": None, "finish_reason": finish}
