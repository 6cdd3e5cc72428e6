"""Mutual TLS of the simulated network: who each end finds at the other, by what is in force when they connect.

As with TLS 1.3, a client is done before the server has looked at the client's certificate: what the client refuses is
an unreachable server, and what the server refuses is a connection that breaks under the request.
"""

from typing import Final, TypeAlias

import attrs

from lunanexa_core.identity.certificate import PeerCertificate
from lunanexa_ports.http_client import HttpBroken, HttpUnreachable, TlsPeer
from lunanexa_simulation.credentials import SimulatedCredentials

REFUSED: Final = "the connection ended before a response head; perhaps refused: check this process's certificate"

InForce: TypeAlias = tuple[str | None, tuple[str, ...]]
"""A certificate, and the authorities that are trusted."""


@attrs.frozen(kw_only=True)
class ServerTls:
    """What a listener shows and asks for."""

    credentials: SimulatedCredentials
    demand: bool
    """Whoever shows no certificate is refused; else one is verified where it is shown."""


def in_force(credentials: SimulatedCredentials | None, wanted: TlsPeer | None) -> InForce | None:
    """What connections to ``wanted`` go by; ``None``: they are in the clear. Raises ``ValueError`` for a client
    without credentials."""
    if wanted is None:
        return None
    if credentials is None:
        raise ValueError("tls: this client has no credentials")
    return credentials.shown, credentials.trusted


def shake_hands(
    server: ServerTls | None, client: SimulatedCredentials | None, wanted: TlsPeer | None
) -> PeerCertificate | None:
    """Who the client is to the server; ``None``: it showed no certificate. Raises ``HttpUnreachable`` and
    ``HttpBroken``."""
    if wanted is None or client is None:
        if server is not None:
            raise HttpBroken("the connection ended before a response head: the server speaks TLS", head_seen=False)
        return None
    if server is None:
        raise HttpUnreachable("no connection (the server does not speak TLS)")
    _check_server(server.credentials.shown, client, wanted)
    own = None if wanted.anonymous else client.shown
    peer = None if own is None else server.credentials.verified(own)
    if peer is None and (server.demand or own is not None):
        raise HttpBroken(REFUSED, head_seen=False)
    return peer


def _check_server(shown: str | None, client: SimulatedCredentials, wanted: TlsPeer) -> None:
    if shown is None:
        raise HttpUnreachable("no connection (the server has no certificate)")
    if wanted.identity is None:
        return
    found = client.verified(shown)
    if found is None:
        raise HttpUnreachable("no connection (the server's certificate is not trusted, or not good by now)")
    if not wanted.accepts(found):
        raise HttpUnreachable(f"no connection (the server is {found.identity}, and {wanted.identity} was to answer)")
