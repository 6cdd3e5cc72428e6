"""What the client does over TLS beyond its port: hosts with certificates as the web has them, and within a fleet how
connections end."""

import datetime
import ipaddress
import ssl
from collections.abc import Callable
from functools import partial
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
from lunanexa_ports.conformance.http_client_tls import CLIENT, SERVER
from lunanexa_ports.http_client import HttpBroken, HttpRequest, HttpUnreachable, TlsPeer
from tests.adapters.http_tools import answer, served
from tests.adapters.tls_tools import fleet_in, party, served_tls

pytestmark = pytest.mark.thorough

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
        not_trusted = r"what listens there is not trusted: certificate verify failed, self-signed certificate\)$"
        with pytest.raises(HttpUnreachable, match=not_trusted):
            async with H11HttpClient(ssl_context=ssl.create_default_context()).exchange(request):
                pass
        silent = await server.connect()
        assert await silent.receive_some() == b""
        assert server.faults == []


def of_the_fleet(host: str, port: int) -> HttpRequest:
    return HttpRequest(method="GET", host=host, port=port, target="/", tls=TlsPeer(identity=SERVER, server_name="x"))


async def test_a_refusal_names_what_to_check(tmp_path: Path) -> None:
    """With TLS 1.3 it shows as an end of the connection, and no more."""
    fleet = fleet_in(tmp_path)
    own, shown = party(fleet, CLIENT), party(fleet, SERVER)
    fleet.renew(own, CLIENT, issued_ms=0)
    client = H11HttpClient(credentials=own)
    async with served_tls(serve_lean, app, shown) as server:
        with pytest.raises(HttpBroken, match="refused: check this process's certificate") as caught:
            async with client.exchange(of_the_fleet(server.host, server.port)):
                pass
        assert not caught.value.head_seen
    await client.aclose()


async def test_idle_connections_of_an_old_certificate_are_closed(tmp_path: Path) -> None:
    fleet = fleet_in(tmp_path)
    own, shown = party(fleet, CLIENT), party(fleet, SERVER)
    client = H11HttpClient(credentials=own)
    async with served_tls(serve_lean, app, shown) as server:
        request = of_the_fleet(server.host, server.port)
        for serial in (2, 3):
            async with client.exchange(request) as first, client.exchange(request) as second:
                assert await first.read(100) == await second.read(100) == b"https"
            assert client.idle_connections(server.host, server.port) == 2
            fleet.renew(own, CLIENT, serial=serial)
        async with client.exchange(request) as response:
            assert await response.read(100) == b"https"
        assert client.idle_connections(server.host, server.port) == 1
    await client.aclose()


@pytest.mark.parametrize("announced", [True, False])
async def test_an_end_that_tls_does_not_announce_is_a_cut(announced: bool, tmp_path: Path) -> None:
    """A body without a length ends with its connection, which anybody on the way could end."""
    fleet = fleet_in(tmp_path)
    own, shown = party(fleet, CLIENT), party(fleet, SERVER)
    client = H11HttpClient(credentials=own)

    async def answer_once(tcp: trio.SocketStream) -> None:
        stream = trio.SSLStream(tcp, shown.server_context(demand=True), server_side=True)
        await stream.do_handshake()
        await stream.receive_some()
        await stream.send_all(b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\nsome")
        if announced:
            await stream.aclose()
        tcp.socket.close()

    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(partial(trio.serve_tcp, answer_once, 0, host="127.0.0.1"))
        port = listeners[0].socket.getsockname()[1]
        async with client.exchange(of_the_fleet("127.0.0.1", port)) as response:
            if announced:
                assert await response.read(100) == b"some"
            else:
                with pytest.raises(HttpBroken):
                    await response.read(100)
        nursery.cancel_scope.cancel()
    await client.aclose()
