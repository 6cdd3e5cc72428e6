"""The server's end of one TLS connection, of which each direction may end by itself.

Trio's own ``SSLStream`` can't do that: its ``unwrap`` ends both. Here, as TLS 1.3 has it (RFC 8446, section 6.1), a
``close_notify`` ends the direction in which it is sent. The end of the TCP connection is another thing: who is gone
reads nothing any more.
"""

import ssl

import trio

from lunanexa_adapters.data_door.client_hello import HELLO_BYTES_MAX, server_name_of

READ_BYTES = 64 * 1024
_BROKEN = (trio.BrokenResourceError, trio.ClosedResourceError)


class Gone(Exception):
    """The other end left, or the connection broke."""


class TlsServerStream:
    """Over a connected socket. One task may receive while another one sends. Whoever has it closes the socket."""

    def __init__(self, transport: trio.SocketStream, context: ssl.SSLContext) -> None:
        self._transport = transport
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self.tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._held: list[bytes] = []
        """What was decrypted before anybody asked for it."""
        self.server_name: str | None = None
        """Which server the client asked for (SNI), once hands were shaken."""
        self.problem: str | None = None
        """Why the handshake failed, where either end said so."""

    async def do_handshake(self) -> None:
        """Raises ``BrokenResourceError`` with the reason."""
        flight, failure = b"", None
        try:
            while not self._shaken():
                await self._flush()
                data = await self._feed()
                flight += data[: HELLO_BYTES_MAX - len(flight)]
        except ssl.SSLError as error:
            failure = error
            self.problem = (error.reason or type(error).__name__).lower()
        await self._flush()  # also the alert: the other end shall know why
        if failure is not None:
            raise trio.BrokenResourceError(self.problem) from failure
        self.server_name = server_name_of(flight)

    async def receive(self) -> bytes:
        """What is there, up to a few records; nothing once the other end said that it sends no more. Raises
        :class:`Gone`."""
        while True:
            data = self._decrypted()
            if data is not None:
                return data
            try:
                await self._feed()
            except _BROKEN as error:
                raise Gone from error

    async def send(self, data: bytes | bytearray) -> None:
        """Returns when the kernel has taken it all. Raises :class:`Gone`."""
        try:
            self.tls.write(data)
            await self._flush()
        except (ssl.SSLError, *_BROKEN) as error:
            raise Gone from error

    async def send_eof(self) -> None:
        """Says that nothing more is sent; the other direction goes on. Raises :class:`Gone`."""
        # OpenSSL's second half of a shutdown throws away what it finds; so there must be nothing to find.
        data = self._decrypted()
        if data:
            self._held.append(data)
        try:
            self.tls.unwrap()
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError as error:
            raise Gone from error
        try:
            await self._flush()
        except _BROKEN as error:
            raise Gone from error

    async def wait_gone(self) -> None:
        """Returns once the other end, which sends no more, has left."""
        try:
            while await self._transport.receive_some(READ_BYTES):
                pass
        except _BROKEN:
            return

    def _shaken(self) -> bool:
        try:
            self.tls.do_handshake()
        except ssl.SSLWantReadError:
            return False
        return True

    def _decrypted(self) -> bytes | None:
        """All whole records that have arrived; nothing at the end, ``None`` while there is neither."""
        parts, self._held = self._held, []
        while True:
            try:
                part = self.tls.read(READ_BYTES)
            except ssl.SSLWantReadError:
                return b"".join(parts) if parts else None
            except ssl.SSLZeroReturnError:
                part = b""
            except ssl.SSLError as error:
                raise Gone from error
            if not part:
                return b"".join(parts)
            parts.append(part)

    async def _feed(self) -> bytes | bytearray:
        data = await self._transport.receive_some(READ_BYTES)
        if not data:
            raise trio.BrokenResourceError("the other end left")
        self._incoming.write(data)
        return data

    async def _flush(self) -> None:
        data = self._outgoing.read()
        if data:
            await self._transport.send_all(data)
