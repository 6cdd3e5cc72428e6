"""Driven port: one HTTP/1.1 exchange with a server that we chose (engine, controller).

The gateway relays through it, the node agent probes and talks to its controller through it, and the
command line uses it. It knows nothing of JSON or SSE: bytes pass through.
"""

from abc import abstractmethod
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import Final, Protocol

import attrs

from lunanexa_core.identity.certificate import PeerCertificate
from lunanexa_ports.errors import PortUnavailable

Headers = tuple[tuple[bytes, bytes], ...]
IDEMPOTENT: Final = frozenset(("GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE"))
"""Methods that do the same when they are done twice (RFC 9110, section 9.2.2)."""


@attrs.frozen(kw_only=True)
class TlsPeer:
    """Who must answer, over mutual TLS with this process's credentials."""

    identity: str | None
    """The URI of the certificate that the server must show; one that ends with a slash: any that begins with it.
    ``None``: whoever answers, for what is verified by other means."""
    server_name: str
    """What the server is asked for (SNI)."""
    anonymous: bool = False
    """Whether no certificate of ours is shown, though there may be one."""
    void: frozenset[str] = frozenset()
    """Serials of the server's certificates that count no more, though they have not expired."""

    def accepts(self, shown: PeerCertificate) -> bool:
        """Whether this is who must answer."""
        if self.identity is None:
            return True
        if shown.serial in self.void:
            return False
        if self.identity.endswith("/"):
            return shown.identity.startswith(self.identity)
        return shown.identity == self.identity


@attrs.frozen(kw_only=True)
class HttpRequest:
    """One request. ``target`` is the origin form (``/v1/models?x=y``); ``Host`` and
    ``Content-Length`` are added by the adapter. Header names are lower case."""

    method: str
    host: str
    port: int
    target: str
    headers: Headers = ()
    body: bytes = b""
    more: tuple[bytes | memoryview, ...] = ()
    """Goes on the body. Sent as it lies: a large body need not be joined."""
    connect_timeout_ms: int = 5_000
    tls: TlsPeer | None = None
    """``None``: in the clear. A client without credentials can do no other."""
    head_timeout_ms: int | None = None
    """Time from the sent request to the response head; ``None`` leaves it to the caller's scope."""

    @property
    def body_bytes(self) -> int:
        """The length of the whole body."""
        return len(self.body) + sum(map(len, self.more))


class HttpUnreachable(PortUnavailable):
    """No connection: nothing of the request can have been seen by the server. Safe to try again."""


class HttpBroken(PortUnavailable):
    """The connection failed after the request may have been seen. ``head_seen`` tells whether a
    response head had arrived (then the body is what was cut)."""

    def __init__(self, message: str, *, head_seen: bool) -> None:
        super().__init__(message)
        self.head_seen = head_seen


class HttpResponse(Protocol):
    """The response head, and its body as it arrives."""

    @property
    @abstractmethod
    def status(self) -> int:
        """Status code; 1xx answers are never shown."""

    @property
    @abstractmethod
    def headers(self) -> Headers:
        """As received, names in lower case, order and repetition kept."""

    @abstractmethod
    def chunks(self) -> AsyncIterator[bytes]:
        """The body's bytes as each socket read brought them (never empty, never joined or delayed);
        chunked transfer coding is removed. Single use. Raises :class:`HttpBroken` when the body ends
        before its declared end."""

    @abstractmethod
    async def read(self, limit_bytes: int) -> bytes:
        """The whole rest of the body. Raises :class:`HttpBroken` when it is longer than the limit
        or cut."""


class HttpClient(Protocol):
    """A pool of connections, shared by all tasks of a process."""

    @abstractmethod
    def exchange(self, request: HttpRequest) -> AbstractAsyncContextManager[HttpResponse]:
        """Sends the request and yields the response once its head has arrived.

        Leaving the context before the body's end, by error or by cancellation, closes the socket at
        once (the server sees the departure); after its end the connection returns to the pool. A
        pooled connection that the server closed meanwhile is replaced, invisibly, when nothing of the
        request was written to it; for an :data:`IDEMPOTENT` method also when it ends, soon, without a
        byte of an answer. Any other request that a server may have taken is never sent twice. An early
        answer (413 before the body was sent) is returned like any other. The pool's limit counts
        exchanges in progress too: a caller over it waits, within its own cancel scope. Raises
        :class:`HttpUnreachable`, :class:`HttpBroken`."""

    @abstractmethod
    async def aclose(self) -> None:
        """Closes idle connections at once. Exchanges in progress end with :class:`HttpBroken`."""
