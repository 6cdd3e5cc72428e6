"""What makes a connection secure: a context, and who must then be at the other end."""

import ssl
from typing import TYPE_CHECKING, TypeAlias

import attrs
import trio

from lunanexa_ports.http_client import TlsPeer

if TYPE_CHECKING:
    from lunanexa_adapters.crypto.credentials import TlsCredentials


@attrs.frozen(kw_only=True)
class MutualTls:
    """Of one fleet: who must answer is compared right after the handshake."""

    context: ssl.SSLContext
    peer: TlsPeer
    credentials: "TlsCredentials"


@attrs.frozen(kw_only=True)
class HostTls:
    """As browsers do it: the context compares the server's name."""

    context: ssl.SSLContext
    host: str


Security: TypeAlias = MutualTls | HostTls


async def secure(tcp: trio.SocketStream, security: Security) -> trio.SSLStream[trio.SocketStream]:
    """Raises ``BrokenResourceError`` (TLS failed, or somebody else answered); the socket is the caller's to close."""
    if isinstance(security, HostTls):
        tls = trio.SSLStream(tcp, security.context, server_hostname=security.host, https_compatible=True)
        await tls.do_handshake()
        return tls
    wanted = security.peer
    # An end that TLS does not announce is a cut here, and never passes for the end of a body.
    tls = trio.SSLStream(tcp, security.context, server_hostname=wanted.server_name)
    await tls.do_handshake()
    if wanted.identity is not None:
        shown = security.credentials.peer_of(tls)
        if shown is None or not wanted.accepts(shown):
            found = "nobody of a fleet" if shown is None else f"{shown.identity} by certificate {shown.serial}"
            raise trio.BrokenResourceError(f"the server is {found}, and {wanted.identity} was to answer")
    return tls
