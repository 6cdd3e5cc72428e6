"""Who is at the other end of a connection with mutual TLS."""

import ssl
from typing import Any, TypeAlias

import trio
from cryptography import x509

from lunanexa_adapters.crypto.certificates import UNREADABLE, described
from lunanexa_core.identity.certificate import PeerCertificate

Handshaken: TypeAlias = ssl.SSLObject | ssl.SSLSocket | trio.SSLStream[Any]
"""A connection after its handshake."""


def peer_of(connection: Handshaken) -> PeerCertificate | None:
    """The certificate that the other end showed, if it was verified against the trusted authorities. ``None``: none
    was shown or verified, or what was shown is no party's (see :func:`described`), so that it stands for nobody."""
    if not connection.getpeercert():
        return None  # empty unless it was verified, whatever was shown
    shown = connection.getpeercert(binary_form=True)
    try:
        return None if shown is None else described(x509.load_der_x509_certificate(shown))
    except UNREADABLE:
        return None
