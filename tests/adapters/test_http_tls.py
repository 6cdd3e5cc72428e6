"""TLS is prepared in both servers and the client; certificates of clients are a matter of the context."""

import datetime
import ipaddress
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from lunanexa_adapters.http_client.http_client import H11HttpClient
from lunanexa_adapters.http_server.lean import serve_lean
from lunanexa_adapters.http_server.limits import ServerLimits
from lunanexa_adapters.http_server.serve import serve_http
from lunanexa_ports.asgi import Receive, Scope, Send
from lunanexa_ports.http_client import HttpRequest, HttpUnreachable
from tests.adapters.http_tools import answer, served

LONG_AGO = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
FAR_AHEAD = datetime.datetime(2100, 1, 1, tzinfo=datetime.UTC)


def self_signed(folder: Path) -> ssl.SSLContext:
    """A server's context for 127.0.0.1; its certificate is its own authority, in ``cert.pem``."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test")])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(LONG_AGO)
        .not_valid_after(FAR_AHEAD)
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    (folder / "cert.pem").write_bytes(certificate.public_bytes(pem))
    secret = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (folder / "key.pem").write_bytes(secret)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    return context


async def app(scope: Scope, _receive: Receive, send: Send) -> None:
    if scope["type"] == "http":
        await answer(send, 200, scope["scheme"].encode())


@pytest.mark.parametrize("serve", [serve_lean, serve_http])
async def test_tls(serve: Callable[..., Any], tmp_path: Path) -> None:
    server_context = self_signed(tmp_path)

    async def serve_tls(app: Any, listeners: list[trio.SocketListener], **rest: Any) -> None:
        await serve(app, [trio.SSLListener(one, server_context, https_compatible=True) for one in listeners], **rest)

    async with served(serve_tls, app, ServerLimits(tls_handshake_timeout_ms=100)) as server:
        request = HttpRequest(method="GET", host=server.host, port=server.port, target="/")
        trusting = H11HttpClient(ssl_context=ssl.create_default_context(cafile=str(tmp_path / "cert.pem")))
        for _ in range(3):
            async with trusting.exchange(request) as response:
                assert await response.read(100) == b"https"
        await trusting.aclose()
        with pytest.raises(HttpUnreachable, match="certificate"):
            async with H11HttpClient(ssl_context=ssl.create_default_context()).exchange(request):
                pass
        silent = await server.connect()
        assert await silent.receive_some() == b""
        assert server.faults == []
