"""Server-sent events, as far as a relay needs them: where one event ends, and what its data is.

The rule is the WHATWG HTML standard, section 9.2 (server-sent events), without its lone-CR line ends,
which no server of this kind writes and which can't be told from half of a CRLF. Events stay raw bytes:
what the splitter returns, joined, with :meth:`SseSplitter.rest` is exactly what was fed, so that a
relay passes them on untouched and looks inside only where it must.
"""

import re
from typing import Final

_BLANK_LINE: Final = re.compile(rb"\n\r?\n")
_LONGEST_PART: Final = 2
"""A blank line's bytes without its last one: so much of the past must be seen with the next bytes."""


class SseEventTooLong(ValueError):
    """One event is longer than the limit. ``events`` are the whole ones that came before it in the same bytes."""

    def __init__(self, limit_bytes: int, events: list[bytes]) -> None:
        super().__init__(f"a server-sent event is longer than {limit_bytes} bytes")
        self.events = events


class SseSplitter:
    """Cuts a byte stream into events, however it was cut into reads. Holds at most one unfinished event.

    The unfinished event is kept in parts and its bytes are searched once, so that an event that comes
    byte by byte costs no more than its length."""

    __slots__ = ("_limit_bytes", "_parts", "_size", "_tail")

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._parts: list[bytes] = []
        self._size = 0
        self._tail = b""

    def feed(self, data: bytes) -> list[bytes]:
        """The events that ``data`` completes, each with its blank line. Raises :class:`SseEventTooLong`;
        the splitter is then of no more use."""
        size = len(data)
        if not self._tail and 1 < size <= self._limit_bytes and data.find(b"\n\n") == size - 2 and b"\r" not in data:
            return [data]  # the common read of a paced stream, at half the cost
        events: list[bytes] = []
        seen = len(self._tail)
        window = self._tail + data if seen else data
        start = 0
        for match in _BLANK_LINE.finditer(window):
            end = match.end() - seen
            self._grow(end - start, events)
            if self._parts:
                self._parts.append(data[start:end])
                events.append(b"".join(self._parts))
                self._parts = []
            else:
                events.append(data[start:end])
            self._size = 0
            start = end
        self._keep(data[start:] if start else data, b"" if start else self._tail, events)
        return events

    def rest(self) -> bytes:
        """The bytes of the unfinished event: not empty at the end of a stream that was cut."""
        return b"".join(self._parts)

    def _keep(self, data: bytes, tail: bytes, events: list[bytes]) -> None:
        self._grow(len(data), events)
        if data:
            self._parts.append(data)
        self._tail = (tail + data[-_LONGEST_PART:])[-_LONGEST_PART:]

    def _grow(self, count: int, events: list[bytes]) -> None:
        self._size += count
        if self._size > self._limit_bytes:
            raise SseEventTooLong(self._limit_bytes, events)


def data_of(event: bytes) -> bytes | None:
    """The event's data (several ``data`` lines joined by a line feed); ``None`` for comments and the like."""
    if event.startswith(b"data: ") and event.find(b"\n") >= len(event) - 3:
        return event[6:].rstrip(b"\r\n")
    found: list[bytes] = []
    for line in event.split(b"\n"):
        name, colon, value = line.removesuffix(b"\r").partition(b":")
        if name == b"data":
            found.append(value.removeprefix(b" ") if colon else b"")
    return b"\n".join(found) if found else None
