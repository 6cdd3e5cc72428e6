"""One engine's event stream, as a relay must understand it: what each event is, and whether the answer is whole.

Neither a 200 nor ``[DONE]`` is success: four engines send ``[DONE]`` after an error frame, two omit it. A
stream is whole when every choice has had its finish reason and no ``error`` object came.
Source: https://platform.openai.com/docs/api-reference/chat/streaming and the recorded answers of engines.
"""

import enum
import json
from collections.abc import Mapping
from typing import Final

from lunanexa_core.canonical import JsonValue
from lunanexa_core.openai.response import document, error_object, finished_choices, is_usage_only_event, usage_of
from lunanexa_core.sse import data_of
from lunanexa_core.workload import Usage

KEEPALIVE: Final = b": keepalive\n\n"


class EventKind(enum.Enum):
    """What an event means to the relay."""

    SILENT = "silent"
    """A comment, or an event without data: passes, and is no output."""
    OUTPUT = "output"
    FINISH = "finish"
    """The event with which the last choice ended; it may bear output too."""
    USAGE = "usage"
    """Only usage: withheld from a client that did not ask."""
    DONE = "done"
    ERROR = "error"


class AnswerReader:
    """Reads one attempt's events in order. ``choices`` is how many the request asked for."""

    def __init__(self, choices: int) -> None:
        self._choices = choices
        self._finished: set[int] = set()
        self.usage: Usage | None = None
        self.outputs = 0
        """Events that bore output: one token each, as engines stream."""
        self.done = False
        self.failed = False

    @property
    def whole(self) -> bool:
        """Whether the answer is complete: it may be told to the client as such."""
        return not self.failed and len(self._finished) >= self._choices

    def read(self, event: bytes) -> EventKind:
        """What the event is; takes note of what it says."""
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
