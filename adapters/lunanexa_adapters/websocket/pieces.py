"""The numbered pieces of a workload's output, as JSON text that frames only enclose."""

import json
from typing import Any, Final

import attrs

from lunanexa_core.contract.response import WorkloadResponse, response_json


def _no_constant(name: str) -> Any:
    raise ValueError(name)


_DECODER: Final = json.JSONDecoder(parse_constant=_no_constant)


@attrs.frozen(kw_only=True)
class Piece:
    """An event's data, or the response of ``completed``, as JSON text."""

    text: str = attrs.field(repr=False)
    is_event: bool


def event_piece(data: bytes) -> Piece:
    """What an engine sent as an event: as it is where it is JSON, else as a JSON string of it."""
    try:
        text = data.decode()
        _DECODER.decode(text)
    except (ValueError, RecursionError):
        text = json.dumps(data.decode(errors="replace"))
    return Piece(text=text, is_event=True)


def completed_piece(response: WorkloadResponse) -> Piece:
    """The end of a workload that succeeded."""
    return Piece(text=response_json(response).decode(), is_event=False)
