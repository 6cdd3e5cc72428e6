"""What the load generator noted, read afterwards and strictly: HTTP by h11, events by the letter.

A fault is an exception, so that no figure is ever taken from a wrong answer.
"""

import json
from typing import Any, Final

import attrs
import h11

from benchmarks.load import Call

DONE: Final = b"data: [DONE]\n\n"


class WrongAnswer(Exception):
    """An answer is not what it must be."""


@attrs.frozen
class Event:
    """One server-sent event, and when its last byte had arrived."""

    arrived_s: float
    data: bytes

    def document(self) -> Any:
        return json.loads(self.data.removeprefix(b"data: "))


def body_of(call: Call) -> bytes:
    """The whole body of a 200."""
    return b"".join(data for _, data in _body_parts(call))


def events_of(call: Call) -> list[Event]:
    """The events of a 200, but comments and ``[DONE]``, which must be the last."""
    events: list[Event] = []
    rest = b""
    for arrived_s, data in _body_parts(call):
        *whole, rest = (rest + data).split(b"\n\n")
        events += [Event(arrived_s, event + b"\n\n") for event in whole]
    if rest or not events or events[-1].data != DONE:
        raise WrongAnswer(f"request {call.number}: the stream does not end with [DONE]")
    events = [event for event in events if not event.data.startswith(b":")]
    for event in events:
        if not event.data.startswith(b"data: ") or event.data.count(b"\n") != 2:
            raise WrongAnswer(f"request {call.number}: an event is not one line of data")
    return events[:-1]


def text_events(events: list[Event]) -> list[tuple[float, str]]:
    """The pieces of a chat answer's text with their times: one a token, as the reference engine streams."""
    pieces: list[tuple[float, str]] = []
    for event in events:
        for choice in event.document()["choices"]:
            text = choice["delta"].get("content")
            if text:
                pieces.append((event.arrived_s, text))
    return pieces


def _body_parts(call: Call) -> list[tuple[float, bytes]]:
    protocol = h11.Connection(h11.CLIENT)
    protocol.send(h11.Request(method="POST", target="/", headers=[("host", "x"), ("content-length", "0")]))
    protocol.send(h11.EndOfMessage())
    parts: list[tuple[float, bytes]] = []
    ended = False
    for arrived_s, data in call.reads:
        protocol.receive_data(data)
        while (event := protocol.next_event()) is not h11.NEED_DATA:
            match event:
                case h11.Response(status_code=200):
                    pass
                case h11.Response(status_code=status):
                    raise WrongAnswer(f"request {call.number}: status {status}")
                case h11.Data(data=body):
                    parts.append((arrived_s, bytes(body)))
                case h11.EndOfMessage():
                    ended = True
                    break
                case _:
                    raise WrongAnswer(f"request {call.number}: {event!r}")
    if not ended or protocol.trailing_data[0]:
        raise WrongAnswer(f"request {call.number}: the body was cut, or bytes came after it")
    return parts
