"""The forms whose events have names: responses, messages and transcripts.

Source: https://platform.openai.com/docs/api-reference/responses-streaming ,
https://docs.anthropic.com/en/api/messages-streaming and
https://platform.openai.com/docs/api-reference/audio/transcript-text-delta-event
"""

from collections.abc import Iterator
from typing import Any

from lunanexa_apps.engine.dialects import Dialect, Document, Ending, Envelope
from lunanexa_apps.engine.errors import ApiError
from lunanexa_apps.engine.frames import named_frame


class ResponsesDialect(Dialect):
    """One message of one text. Each event has a number."""

    def __init__(self, envelope: Envelope, item_id: str) -> None:
        self._envelope = envelope
        self._item_id = item_id
        self._number = 0

    def opening(self) -> Iterator[bytes]:
        begun = self._response("in_progress", [])
        yield self._event("response.created", response=begun)
        yield self._event("response.in_progress", response=begun)
        yield self._event("response.output_item.added", output_index=0, item=self._item("in_progress", []))
        yield self._event("response.content_part.added", **self._place(), part=_text_part(""))

    def piece(self, text: str) -> bytes:
        return self._event("response.output_text.delta", **self._place(), delta=text, logprobs=[])

    def ending(self, ending: Ending) -> Iterator[bytes]:
        answer = self.whole(ending)
        yield self._event("response.output_text.done", **self._place(), text=ending.text, logprobs=[])
        yield self._event("response.content_part.done", **self._place(), part=_text_part(ending.text))
        yield self._event("response.output_item.done", output_index=0, item=answer["output"][0])
        yield self._event(f"response.{answer['status']}", response=answer)

    def last(self) -> bytes:
        return b""

    def failure(self, error: ApiError) -> bytes:
        return self._event("error", code=error.code, message=error.message, param=error.param)

    def whole(self, ending: Ending) -> Document:
        cut = ending.finish == "length"
        status = "incomplete" if cut else "completed"
        usage = {
            **ending.usage.input_output(),
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens_details": {"reasoning_tokens": 0},
        }
        answer = self._response(status, [self._item(status, [_text_part(ending.text)])])
        return {**answer, "incomplete_details": {"reason": "max_output_tokens"} if cut else None, "usage": usage}

    def _event(self, kind: str, **members: Any) -> bytes:
        number, self._number = self._number, self._number + 1
        return named_frame({"type": kind, "sequence_number": number, **members})

    def _place(self) -> Document:
        return {"item_id": self._item_id, "output_index": 0, "content_index": 0}

    def _item(self, status: str, content: list[Document]) -> Document:
        return {"id": self._item_id, "type": "message", "status": status, "role": "assistant", "content": content}

    def _response(self, status: str, output: list[Document]) -> Document:
        return {
            "id": self._envelope.id,
            "object": "response",
            "created_at": self._envelope.created,
            "status": status,
            "error": None,
            "incomplete_details": None,
            "instructions": None,
            "metadata": {},
            "model": self._envelope.model,
            "output": output,
            "parallel_tool_calls": True,
            "temperature": None,
            "tool_choice": "auto",
            "tools": [],
            "top_p": None,
            "usage": None,
        }


def _text_part(text: str) -> Document:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


_STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


class MessagesDialect(Dialect):
    """One block of text."""

    def __init__(self, envelope: Envelope, prompt_tokens: int) -> None:
        self._envelope = envelope
        self._prompt_tokens = prompt_tokens

    def opening(self) -> Iterator[bytes]:
        yield named_frame({"type": "message_start", "message": self._message([], None, None, 0)})
        block = {"type": "text", "text": ""}
        yield named_frame({"type": "content_block_start", "index": 0, "content_block": block})
        yield named_frame({"type": "ping"})

    def piece(self, text: str) -> bytes:
        delta = {"type": "text_delta", "text": text}
        return named_frame({"type": "content_block_delta", "index": 0, "delta": delta})

    def ending(self, ending: Ending) -> Iterator[bytes]:
        yield named_frame({"type": "content_block_stop", "index": 0})
        delta = {"stop_reason": _reason(ending), "stop_sequence": ending.stop}
        usage = {"output_tokens": ending.usage.completion_tokens}
        yield named_frame({"type": "message_delta", "delta": delta, "usage": usage})

    def last(self) -> bytes:
        return named_frame({"type": "message_stop"})

    def failure(self, error: ApiError) -> bytes:
        return named_frame({"type": "error", "error": {"type": "api_error", "message": error.message}})

    def whole(self, ending: Ending) -> Document:
        block = {"type": "text", "text": ending.text}
        return self._message([block], _reason(ending), ending.stop, ending.usage.completion_tokens)

    def _message(self, content: list[Document], reason: str | None, stop: str | None, made: int) -> Document:
        usage = {
            "input_tokens": self._prompt_tokens,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
            "output_tokens": made,
        }
        return {
            "id": self._envelope.id,
            "type": "message",
            "role": "assistant",
            "model": self._envelope.model,
            "content": content,
            "stop_reason": reason,
            "stop_sequence": stop,
            "usage": usage,
        }


def _reason(ending: Ending) -> str:
    return _STOP_REASONS[ending.finish] if ending.stop is None else "stop_sequence"


class TranscriptDialect(Dialect):
    """``form``: ``json``, ``text`` or ``verbose_json``. The tokens of the prompt are those of the sound."""

    def __init__(self, form: str, seconds: float, task: str) -> None:
        self._form = form
        self._seconds = seconds
        self._task = task

    def opening(self) -> Iterator[bytes]:
        yield from ()

    def piece(self, text: str) -> bytes:
        return named_frame({"type": "transcript.text.delta", "delta": text})

    def ending(self, ending: Ending) -> Iterator[bytes]:
        yield named_frame({"type": "transcript.text.done", **self._told(ending)})

    def last(self) -> bytes:
        return b""

    def failure(self, error: ApiError) -> bytes:
        return named_frame({"type": "error", **error.document()})

    def whole(self, ending: Ending) -> Document | str:
        match self._form:
            case "text":
                return ending.text
            case "verbose_json":
                return {
                    "task": self._task,
                    "language": "english",
                    "duration": self._seconds,
                    "text": ending.text,
                    "segments": [],
                    "usage": {"type": "duration", "seconds": self._seconds},
                }
            case _:
                return self._told(ending)

    def _told(self, ending: Ending) -> Document:
        details = {"audio_tokens": ending.usage.prompt_tokens, "text_tokens": 0}
        usage = {"type": "tokens", **ending.usage.input_output(), "input_token_details": details}
        return {"text": ending.text, "usage": usage}
