"""Streams whose events name themselves: what responses, messages and sound have in common."""

import json
import re
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, Final

from lunanexa_core.openai.response import document, error_object
from lunanexa_core.openai.stream import AnswerReader, EventKind
from lunanexa_core.sse import data_of

_NAME: Final = re.compile(rb"(?:\A|\n)event:[ ]?([^\r\n]*)")
_TYPE: Final = re.compile(rb'\s*\{\s*"type"\s*:\s*"([A-Za-z_.]*)"')


class TypedReader(AnswerReader):
    """The last event of a whole answer has a name of its own; ``[DONE]`` passes where an engine adds it."""

    def __init__(self, _choices: int) -> None:
        super().__init__()
        self._finished = False

    @property
    def whole(self) -> bool:
        return not self.failed and self._finished

    def read(self, event: bytes) -> EventKind:
        data = data_of(event)
        if data is None:
            return EventKind.SILENT
        if data.strip() == b"[DONE]":
            self.done = True
            return EventKind.DONE
        name = _name(event, data)
        kind = EventKind.ERROR
        # Some engines tell an error by the event's name only, others in OpenAI's form.
        if name != "error" and not (b'"error"' in data and error_object(data) is not None):
            kind = self.take(name, data)
        self.failed = self.failed or kind is EventKind.ERROR
        self._finished = self._finished or kind is EventKind.FINISH
        return kind

    @abstractmethod
    def take(self, name: str, data: bytes) -> EventKind:
        """What an event of this name is, which is no error."""


def named_frame(name: str, document: Mapping[str, Any]) -> bytes:
    """One event of our own, named as its ``type``."""
    data = json.dumps({"type": name, **document}, separators=(",", ":")).encode()
    return b"event: " + name.encode() + b"\ndata: " + data + b"\n\n"


def _name(event: bytes, data: bytes) -> str:
    """The event's name, else the ``type`` in its data."""
    found = _NAME.search(event) if b"event:" in event else None
    found = found or _TYPE.match(data)
    if found is not None:
        return found[1].decode(errors="replace").strip()
    name = (document(data) or {}).get("type")
    return name if isinstance(name, str) else ""
