"""Which server a client asks for, read from the first message of TLS (RFC 8446, section 4.1.2; RFC 6066, section 3).

OpenSSL would tell it to a function of the context. But where a stranger names what is no ASCII, CPython writes the name
and a traceback to the standard error stream, each time; so the message is read here, once its sender is known.
"""

from typing import Final

_HANDSHAKE: Final = 22
_CLIENT_HELLO: Final = 1
_SERVER_NAME: Final = 0
_HOST_NAME: Final = 0
_VERSION_AND_RANDOM: Final = 34
HELLO_BYTES_MAX: Final = 16 * 1024
"""A longer one names no server that we know of."""


def server_name_of(flight: bytes) -> str | None:
    """The name in the hello that ``flight`` begins with; ``None`` where it has none, or is none."""
    try:
        hello = _Reader(_message(_Reader(flight)))
        hello.take(_VERSION_AND_RANDOM)
        for length_bytes in (1, 2, 1):  # session, cipher suites, compression
            hello.vector(length_bytes)
        extensions = _Reader(hello.vector(2))
        while extensions.left:
            kind, content = extensions.number(2), extensions.vector(2)
            if kind == _SERVER_NAME:
                names = _Reader(_Reader(content).vector(2))
                return names.vector(2).decode("ascii") if names.number(1) == _HOST_NAME else None
    except (EOFError, UnicodeDecodeError):
        pass
    return None


def _message(records: "_Reader") -> bytes:
    """The first message of the handshake, which may be spread over several records."""
    found = b""
    while len(found) < 4 or len(found) < 4 + int.from_bytes(found[1:4]):
        if records.number(1) != _HANDSHAKE:
            raise EOFError
        records.take(2)
        found += records.vector(2)
    if found[0] != _CLIENT_HELLO:
        raise EOFError
    return found[4:]


class _Reader:
    """Raises ``EOFError`` at the end."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def left(self) -> int:
        return len(self._data) - self._at

    def take(self, size: int) -> bytes:
        if size > self.left:
            raise EOFError
        self._at += size
        return self._data[self._at - size : self._at]

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size))

    def vector(self, length_bytes: int) -> bytes:
        return self.take(self.number(length_bytes))
