"""OpenSSL's settings for mutual TLS, made anew for each identity and trust that are in force.

Names of hosts are not compared: parties are named by a URI, which whoever opens or takes a connection compares right
after the handshake. Nothing is resumed, so that each connection is verified anew: no tickets are given, and of TLS 1.2,
whose servers resume what they remember, nothing is spoken, since both ends are ours. A revocation list is never loaded:
a stale one would refuse everybody, and connections that are open would not notice a fresh one.
"""

import os
import ssl
from collections.abc import Sequence

from lunanexa_ports.errors import PortFault, PortUnavailable


def server_context(identity_pem: bytes, trusted: Sequence[str], *, demand: bool) -> ssl.SSLContext:
    """Shows the identity, and verifies a client's certificate where one is shown; ``demand``: one must be."""
    context = _context(ssl.PROTOCOL_TLS_SERVER, trusted)
    context.num_tickets = 0
    context.verify_mode = ssl.CERT_REQUIRED if demand else ssl.CERT_OPTIONAL
    _show(context, identity_pem)
    return context


def client_context(identity_pem: bytes | None, trusted: Sequence[str], *, verified: bool) -> ssl.SSLContext:
    """Shows the identity where there is one; ``verified``: the server must show a certificate that is trusted."""
    context = _context(ssl.PROTOCOL_TLS_CLIENT, trusted)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED if verified else ssl.CERT_NONE
    if identity_pem is not None:
        _show(context, identity_pem)
    return context


def _context(protocol: ssl._SSLMethod, trusted: Sequence[str]) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    if trusted:
        context.load_verify_locations(cadata="".join(trusted))
    return context


def _show(context: ssl.SSLContext, identity_pem: bytes) -> None:
    """OpenSSL takes keys from files only; this one is nowhere but in memory."""
    try:
        descriptor = os.memfd_create("identity", os.MFD_CLOEXEC)
        with open(descriptor, "wb") as file:
            file.write(identity_pem)
            file.flush()
            context.load_cert_chain(f"/proc/self/fd/{descriptor}")
    except ssl.SSLError as error:
        raise PortFault(f"OpenSSL refuses the certificate and key of this process: {error.reason}") from error
    except OSError as error:
        raise PortUnavailable(f"no context for TLS can be made: {error.strerror}") from error
