"""A cheap load generator: raw sockets and one selector, because it shares the machine with what it measures.

While it runs it only notes what arrived when; answers are parsed afterwards (:mod:`benchmarks.answers`).
Each connection sends its next request when its last answer is complete (a closed loop).
"""

import selectors
import socket
import time
from collections.abc import Callable
from typing import Final

import attrs

READ_BYTES: Final = 64 * 1024
SILENCE_S: Final = 60.0
"""Nothing arrived on any connection for so long: the run has failed."""
_LAST_CHUNK: Final = b"\r\n0\r\n\r\n"
_HEAD_END: Final = b"\r\n\r\n"


class LoadFailed(Exception):
    """The server cut a connection or fell silent."""


@attrs.define(eq=False)
class Call:
    """One request and what came back: each read with its time."""

    number: int
    sent_s: float
    reads: list[tuple[float, bytes]] = attrs.Factory(list)

    @property
    def first_s(self) -> float:
        return self.reads[0][0]

    @property
    def ended_s(self) -> float:
        return self.reads[-1][0]


@attrs.frozen
class Address:
    host: str
    port: int


@attrs.frozen
class Run:
    """``began_s`` to ``until_s`` is the measured time; answers that were under way then are complete too."""

    began_s: float
    until_s: float
    calls: list[Call]


class _Connection:
    """One socket in turn with requests and answers."""

    def __init__(self, address: Address) -> None:
        self.socket = socket.create_connection((address.host, address.port), timeout=10)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.call: Call | None = None
        self._left: int | None = None
        self._chunked = False
        self._tail = b""

    def ask(self, number: int, request: bytes) -> None:
        self.socket.settimeout(10)
        self.call = Call(number, time.perf_counter())
        self._left, self._chunked, self._tail = None, False, b""
        self.socket.sendall(request)
        self.socket.setblocking(False)

    def read(self) -> bool:
        """Takes what is there; whether the answer is complete."""
        assert self.call is not None
        data = self.socket.recv(READ_BYTES)
        now_s = time.perf_counter()
        if not data:
            raise LoadFailed(f"request {self.call.number}: the connection was cut")
        self.call.reads.append((now_s, data))
        if self._left is None and not self._chunked:
            data = self._read_head()
        if self._chunked:
            self._tail = (self._tail + data)[-len(_LAST_CHUNK) :]
            return self._tail == _LAST_CHUNK
        if self._left is not None:
            self._left -= len(data)
        return self._left == 0

    def _read_head(self) -> bytes:
        """Looks how the answer ends; the body's bytes so far."""
        assert self.call is not None
        head, end, body = b"".join(data for _, data in self.call.reads).partition(_HEAD_END)
        if not end:
            return b""
        lowered = head.lower()
        _, found, rest = lowered.partition(b"\r\ncontent-length:")
        if found:
            self._left = int(rest.split(b"\r\n", 1)[0])
        else:
            self._chunked = True
        return body


def drive(
    address: Address,
    request: Callable[[int], bytes],
    *,
    connections: int,
    seconds: float | None = None,
    count: int | None = None,
) -> Run:
    """Sends ``request(0)``, ``request(1)``, ... for ``seconds`` or ``count`` times. Raises :class:`LoadFailed`."""
    assert (seconds is None) != (count is None), "one of the two bounds"
    opened = [_Connection(address) for _ in range(connections)]
    calls: list[Call] = []
    began_s = time.perf_counter()
    until_s = began_s + (3600.0 if seconds is None else seconds)

    def ask(connection: _Connection) -> bool:
        if time.perf_counter() >= until_s or len(calls) == count:
            return False
        connection.ask(len(calls), request(len(calls)))
        assert connection.call is not None
        calls.append(connection.call)
        return True

    try:
        with selectors.DefaultSelector() as selector:
            for connection in opened:
                if ask(connection):
                    selector.register(connection.socket, selectors.EVENT_READ, connection)
            while selector.get_map():
                ready = selector.select(SILENCE_S)
                if not ready:
                    raise LoadFailed(f"nothing arrived for {SILENCE_S:.0f} s")
                for key, _ in ready:
                    if key.data.read() and not ask(key.data):
                        selector.unregister(key.fileobj)
    finally:
        for connection in opened:
            connection.socket.close()
    return Run(began_s, time.perf_counter() if seconds is None else until_s, calls)
