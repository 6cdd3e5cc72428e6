"""One engine's event stream, as a relay must understand it: what each event is, and whether the answer is whole.

Neither a 200 nor ``[DONE]`` is success: four engines send ``[DONE]`` after an error frame, two omit it. A
stream is whole when every choice has had its finish reason and no ``error`` object came.
Source: https://platform.openai.com/docs/api-reference/chat/streaming and the recorded answers of engines.
"""

import enum
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Final

from lunanexa_core.canonical import JsonValue
from lunanexa_core.openai.response import document, error_object, finished_choices, is_usage_only_event, usage_of
from lunanexa_core.sse import data_of
from lunanexa_core.workload import Usage

KEEPALIVE: Final = b": keepalive\n\n"
DONE: Final = b"data: [DONE]\n\n"


class EventKind(enum.Enum):
    """What an event means to the relay."""

    SILENT = "silent"
    """A comment, or an event without data: passes, and is no output."""
    OUTPUT = "output"
    FINISH = "finish"
    """The event with which the answer ended; it may bear output too."""
    USAGE = "usage"
    """Only usage: withheld from a client that did not ask."""
    DONE = "done"
    """What follows the end."""
    ERROR = "error"


class AnswerReader(ABC):
    """Reads one attempt's events in order, and knows the frames that its dialect ends or breaks with."""

    def __init__(self) -> None:
        self.usage: Usage | None = None
        """The engine's own count of the whole answer."""
        self.outputs = 0
        """Tokens that came, where nobody counts them: one an event, as engines stream."""
        self.done = False
        """``[DONE]`` has come."""
        self.failed = False

    @property
    @abstractmethod
    def whole(self) -> bool:
        """Whether the answer is complete: it may be told to the client as such."""

    @abstractmethod
    def read(self, event: bytes) -> EventKind:
        """What the event is; takes note of what it says."""

    def used(self, input_tokens: int) -> Usage:
        """The engine's count, else ours of what came so far; ``input_tokens`` as a guess."""
        return self.usage or Usage(input_tokens=input_tokens, output_tokens=self.outputs, estimated=True)

    def closing(self) -> bytes:
        """What a whole stream lacks still to end as its dialect does."""
        return b""

    def error_frame(self, error: Mapping[str, Any]) -> bytes:
        """An error object of ours (or of an engine) as the last event of a stream that has begun."""
        return data_frame({"error": dict(error)})


class ChoicesReader(AnswerReader):
    """Chat and completions. ``choices`` is how many the request asked for."""

    def __init__(self, choices: int) -> None:
        super().__init__()
        self._choices = choices
        self._finished: set[int] = set()

    @property
    def whole(self) -> bool:
        return not self.failed and len(self._finished) >= self._choices

    def closing(self) -> bytes:
        return b"" if self.done else DONE

    def read(self, event: bytes) -> EventKind:
        data = data_of(event)
        if data is None:
            return EventKind.SILENT
        if data.strip() == b"[DONE]":
            self.done = True
            return EventKind.DONE
        if b'"error"' in data and error_object(data) is not None:
            self.failed = True
            return EventKind.ERROR
        if b'"usage"' in data:
            usage = usage_of(data)
            self.usage = self.usage if usage is None else usage
            if is_usage_only_event(data):
                return EventKind.USAGE
        finished = finished_choices(data)
        # The first event often bears a role only, and the last a reason only: only those are worth a look.
        if (self.outputs and not finished) or _bears_output(data):
            self.outputs += 1
        self._finished |= finished
        return EventKind.FINISH if finished and len(self._finished) >= self._choices else EventKind.OUTPUT


def _bears_output(data: bytes) -> bool:
    """Whether a choice says more than its role. What has another form than ours is taken for output."""
    choices = (document(data) or {}).get("choices")
    if not isinstance(choices, list):
        return True
    for choice in choices:
        if not isinstance(choice, dict) or choice.get("text"):
            return True
        delta = choice.get("delta")
        if isinstance(delta, dict) and any(value for name, value in delta.items() if name != "role"):
            return True
    return False


def data_frame(document: Mapping[str, JsonValue]) -> bytes:
    """One event of our own."""
    return b"data: " + json.dumps(document, separators=(",", ":")).encode() + b"\n\n"
