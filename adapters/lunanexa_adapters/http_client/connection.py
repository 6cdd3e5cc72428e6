"""One client connection: a Trio stream and the h11 state machine that speaks over it.

Closing is synchronous on purpose: an exchange that is cancelled must leave no socket behind, and
cleanup that can't be interrupted needs no shield.
"""

import select

import h11
import trio

from lunanexa_adapters.http_client.security import Security, secure
from lunanexa_adapters.noticing import notice_loss

Body = tuple[bytes | memoryview, ...]
Stream = trio.SocketStream | trio.SSLStream[trio.SocketStream]

READ_BYTES = 64 * 1024
INTERIM_ANSWERS_MAX = 16
"""1xx answers that we skip before one response head; a server that sends more is broken."""

BROKEN = (h11.RemoteProtocolError, trio.BrokenResourceError, trio.ClosedResourceError)
"""What reading or writing raises when the connection, or the protocol on it, has failed."""


class Connection:
    """Owned by one exchange at a time; the pool holds it in between."""

    __slots__ = (
        "_protocol",
        "_socket",
        "_stream",
        "answer_begun",
        "body_ended",
        "idle_since",
        "security",
        "sent_all",
        "sent_any",
        "was_heard",
    )

    def __init__(self, stream: Stream, *, head_limit_bytes: int, security: Security | None = None) -> None:
        self._stream = stream
        self.security = security
        self._socket = stream.transport_stream.socket if isinstance(stream, trio.SSLStream) else stream.socket
        self._protocol = h11.Connection(h11.CLIENT, max_incomplete_event_size=head_limit_bytes)
        self.answer_begun = False
        self.was_heard = False
        """The peer has said something since the connection stands."""
        self.body_ended = False
        self.sent_any = False
        """Bytes of the request may have reached the peer."""
        self.sent_all = False
        self.idle_since = 0.0

    def close(self) -> None:
        """At once; the peer sees it, and a task that waits in this connection gets ``ClosedResourceError``."""
        self._socket.close()

    def is_stale(self) -> bool:
        """An idle connection is readable only when its peer closed it (or said something uncalled for)."""
        poll = select.poll()
        poll.register(self._socket.fileno(), select.POLLIN)
        return bool(poll.poll(0))

    def encode(self, head: h11.Request, body: Body) -> list[bytes | memoryview]:
        """The request's bytes; from here on the connection belongs to this request."""
        parts: list[bytes | memoryview] = [self._protocol.send(head) or b""]
        for part in filter(len, body):
            # Content-Length framing leaves the body as it is: no need to copy it through h11's join.
            self._protocol.send_with_data_passthrough(h11.Data(data=part))  # type: ignore[arg-type]  # only measured
            parts.append(part)
        self._protocol.send(h11.EndOfMessage())
        return parts

    async def send(self, parts: list[bytes | memoryview]) -> None:
        """``sent_any`` stays unset when the peer was gone before the first byte. Raises what :data:`BROKEN` says."""
        taken = 0
        if isinstance(self._stream, trio.SocketStream):
            try:
                taken = await self._socket.sendmsg(parts)
            except OSError as exc:
                raise trio.BrokenResourceError(str(exc)) from exc
        elif sum(map(len, parts)) <= READ_BYTES:
            parts = [b"".join(parts)]  # one record of TLS
        self.sent_any = True
        for part in parts:
            if taken < len(part):
                await self._stream.send_all(memoryview(part)[taken:])
            taken = max(0, taken - len(part))
        self.sent_all = True

    async def read_head(self) -> h11.Response:
        interim = 0
        while True:
            event = self._protocol.next_event()
            if event is h11.NEED_DATA:
                await self._receive()
            elif isinstance(event, h11.Response):
                return event
            elif isinstance(event, h11.InformationalResponse) and interim < INTERIM_ANSWERS_MAX:
                interim += 1
            else:
                raise h11.RemoteProtocolError("no response head")

    async def read_body(self) -> bytes:
        """What the next socket read brings of the body; empty once at its end."""
        parts: list[bytes] = []
        while True:
            try:
                event = self._protocol.next_event()
            except h11.RemoteProtocolError:
                if parts:  # deliver what came whole; h11 repeats its refusal on the next call
                    return b"".join(parts)
                raise
            if isinstance(event, h11.Data):
                parts.append(bytes(event.data))
            elif isinstance(event, h11.EndOfMessage):
                self.body_ended = True
                return b"".join(parts)
            elif event is not h11.NEED_DATA:
                raise h11.RemoteProtocolError("the body ended before its end")
            elif parts:
                return b"".join(parts)
            else:
                await self._receive()

    def finish(self) -> bool:
        """Whether the connection may carry another exchange; prepares it when so."""
        if not self.sent_all:
            return False
        if not self.body_ended:
            # A caller that has read the last byte, or a body of no bytes, need not ask once more for the end.
            try:
                self.body_ended = isinstance(self._protocol.next_event(), h11.EndOfMessage)
            except h11.RemoteProtocolError:
                return False
        unasked, closed = self._protocol.trailing_data
        if not self.body_ended or unasked or closed:
            return False
        if self._protocol.our_state is not h11.DONE or self._protocol.their_state is not h11.DONE:
            return False  # one side said `Connection: close`, or spoke HTTP/1.0
        self._protocol.start_next_cycle()
        self.answer_begun = self.body_ended = self.sent_any = self.sent_all = False
        return True

    async def _receive(self) -> None:
        data = await self._stream.receive_some(READ_BYTES)
        if data:
            self.answer_begun = self.was_heard = True
        self._protocol.receive_data(bytes(data))


async def connect(host: str, port: int, *, security: Security | None, head_limit_bytes: int) -> Connection:
    """Raises ``OSError``, ``UnicodeError`` (a host that is no name) or ``BrokenResourceError`` (TLS refused, by either
    side). ``TCP_NODELAY`` is set by Trio on every stream socket."""
    tcp = await trio.open_tcp_stream(host, port)
    try:
        notice_loss(tcp.socket)
        if security is None:
            return Connection(tcp, head_limit_bytes=head_limit_bytes)
        tls = await secure(tcp, security)
    except BaseException:
        tcp.socket.close()
        raise
    return Connection(tls, head_limit_bytes=head_limit_bytes, security=security)
