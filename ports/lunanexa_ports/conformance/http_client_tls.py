"""What every implementation of the ``http_client`` port must do over mutual TLS, with the ``credentials`` and
``fleet_keys`` that belong to it.

A server that refuses a client's certificate may do so when the client's handshake is over (TLS 1.3): the client then
learns it as a connection that ended, so both failures of the port are right there.
"""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Protocol

import attrs
import trio

from lunanexa_core.identity.certificate import CertificateTerms, PeerCertificate, terms_at
from lunanexa_core.identity.names import SCHEME
from lunanexa_ports.asgi import TLS, AsgiApplication, Receive, Scope, Send
from lunanexa_ports.conformance.http_client import ServedApp, answer, enter, start_answer, until_disconnect
from lunanexa_ports.credentials import Credentials
from lunanexa_ports.errors import PortUnavailable
from lunanexa_ports.fleet_keys import FleetKeys
from lunanexa_ports.http_client import HttpClient, HttpRequest, HttpUnreachable, TlsPeer

LIMIT_S = 30
NODES = f"{SCHEME}moon/node/"
SERVER = f"{NODES}server"
CLIENT = f"{SCHEME}moon/gateway/client"
DAY_MS = 86_400_000


class ServeTls(Protocol):
    def __call__(
        self, app: AsgiApplication, credentials: Credentials | None, *, demand: bool
    ) -> AbstractAsyncContextManager[ServedApp]: ...


@attrs.frozen(kw_only=True)
class Fleet:
    """Whom its authorities certify."""

    keys: FleetKeys
    make_credentials: Callable[[], Credentials]
    """Those of one more process, without a certificate, that trust nobody."""
    wall_ms: Callable[[], int]

    def party(self, uri: str, *, authority: int = 0, issued_ms: int | None = None, serial: int = 1) -> Credentials:
        """A process with a certificate of the authority with that number, which it trusts alone."""
        credentials = self.make_credentials()
        credentials.trust([self.root(authority)])
        self.renew(credentials, uri, authority=authority, issued_ms=issued_ms, serial=serial)
        return credentials

    def renew(
        self, credentials: Credentials, uri: str, *, authority: int = 0, issued_ms: int | None = None, serial: int = 1
    ) -> None:
        terms = terms_at(uri, f"{serial:x}", self.wall_ms() if issued_ms is None else issued_ms)
        self.certify(credentials, terms, authority=authority)

    def certify(self, credentials: Credentials, terms: CertificateTerms, *, authority: int = 0) -> None:
        chain = self.keys.issue(self._fingerprint(authority), credentials.request(), terms)
        assert chain is not None
        _ = credentials.accept(chain)

    def root(self, authority: int) -> str:
        fingerprint = self._fingerprint(authority)
        return self.keys.authorities()[fingerprint].certificate

    def _fingerprint(self, authority: int) -> str:
        while len(self.keys.authorities()) <= authority:
            _ = self.keys.make()
        return list(self.keys.authorities())[authority]


@attrs.frozen(kw_only=True)
class TlsBench(Fleet):
    """And its processes."""

    make_client: Callable[[Credentials | None], HttpClient]
    serve_app: ServeTls
    """Without credentials in the clear."""


def asked_for(
    served: ServedApp, identity: str | None = SERVER, *, target: str = "/", anonymous: bool = False
) -> HttpRequest:
    peer = TlsPeer(identity=identity, server_name="start-1.lunanexa", anonymous=anonymous)
    return served.request(target=target, tls=peer)


class Seen(AsgiApplication):
    """Notes what it is told of its clients. Answers at once, but on ``/stream`` with a piece for each ``give.send``,
    until its client leaves."""

    def __init__(self) -> None:
        self.scopes: list[Scope] = []
        self.give, self._given = trio.open_memory_channel[None](0)

    async def __call__(self, scope: Scope, receive: Receive, send: Send, /) -> None:
        self.scopes.append(scope)
        if scope["path"] != "/stream":
            await answer(send, 200, scope["scheme"].encode())
            return
        await start_answer(send, 200)
        async with trio.open_nursery() as nursery:

            async def go_on() -> None:
                async for _ in self._given:
                    await send({"type": "http.response.body", "body": b"piece", "more_body": True})

            nursery.start_soon(go_on)
            await until_disconnect(receive)
            nursery.cancel_scope.cancel()

    @property
    def serials(self) -> list[str | None]:
        """Of the clients' certificates, one a request."""
        peers: list[PeerCertificate | None] = [scope["extensions"][TLS]["peer"] for scope in self.scopes]
        return [None if peer is None else peer.serial for peer in peers]


async def check_both_ends_are_known(bench: TlsBench) -> None:
    """The application is told of the client's certificate, as the connection has it. A connection is used again."""
    app, own = Seen(), bench.party(CLIENT, serial=0xABC)
    client = bench.make_client(own)
    async with bench.serve_app(app, bench.party(SERVER), demand=True) as served:
        for identity in (SERVER, NODES, SERVER, SERVER):
            assert await _ask(client, asked_for(served, identity)) == b"https"
    assert [scope["extensions"][TLS] for scope in app.scopes] == [{"peer": own.certificate}] * 4
    assert app.serials == ["abc"] * 4
    assert len({scope["client"] for scope in app.scopes}) == 2, "one connection for each whom one asks for"
    await client.aclose()


async def check_wrong_server(bench: TlsBench) -> None:
    """Another party of the same fleet is not whom the client asked for, and hears nothing of the request."""
    app, client = Seen(), bench.make_client(bench.party(CLIENT))
    wrong = (f"{NODES}other", f"{NODES}serve", f"{NODES}server1", f"{SERVER}/", f"{SCHEME}moon/controller/", CLIENT)
    async with bench.serve_app(app, bench.party(SERVER), demand=True) as served:
        for identity in wrong:
            failure = await _failure(client, asked_for(served, identity))
            assert isinstance(failure, HttpUnreachable)
            assert SERVER in str(failure)
            assert identity in str(failure)
    assert app.scopes == []


async def check_void_certificate(bench: TlsBench) -> None:
    """A server whose certificate was revoked is nobody, also where a connection stands; another of its is good."""
    app, shown = Seen(), bench.party(SERVER, serial=0xABC)
    client = bench.make_client(bench.party(CLIENT))
    async with bench.serve_app(app, shown, demand=True) as served:
        asked = asked_for(served)
        assert asked.tls is not None
        void = attrs.evolve(asked, tls=attrs.evolve(asked.tls, void=frozenset({"abc"})))
        assert await _ask(client, asked) == b"https"
        await _unreachable(client, void)
        other = attrs.evolve(asked, tls=attrs.evolve(asked.tls, void=frozenset({"abd"})))
        assert await _ask(client, other) == b"https"
    assert len(app.scopes) == 2


async def check_untrusted(bench: TlsBench) -> None:
    """Neither end takes a certificate of an authority that it does not trust, whatever the other trusts."""
    app, stranger = Seen(), bench.party(CLIENT, authority=1)
    async with bench.serve_app(app, bench.party(SERVER), demand=False) as served:
        await _unreachable(bench.make_client(stranger), asked_for(served))
        stranger.trust([bench.root(0)])
        await _refused(bench.make_client(stranger), asked_for(served))
        trusts_nobody = bench.party(CLIENT)
        trusts_nobody.trust([])
        await _unreachable(bench.make_client(trusts_nobody), asked_for(served))
    assert app.scopes == []


async def check_times(bench: TlsBench) -> None:
    """A certificate that has expired, or is not good yet, is none; on either side."""
    app = Seen()
    for issued_ms in (bench.wall_ms() - 2 * DAY_MS, bench.wall_ms() + 2 * DAY_MS):
        async with bench.serve_app(app, bench.party(SERVER), demand=False) as served:
            await _refused(bench.make_client(bench.party(CLIENT, issued_ms=issued_ms)), asked_for(served))
        async with bench.serve_app(app, bench.party(SERVER, issued_ms=issued_ms), demand=False) as served:
            await _unreachable(bench.make_client(bench.party(CLIENT)), asked_for(served))
    assert app.scopes == []


async def check_demand(bench: TlsBench) -> None:
    """Who shows no certificate is nobody, or refused where one is demanded."""
    app, own = Seen(), bench.party(CLIENT)
    for demand in (False, True):
        async with bench.serve_app(app, bench.party(SERVER), demand=demand) as served:
            client = bench.make_client(own)
            request = asked_for(served, anonymous=True)
            if demand:
                await _refused(client, request)
            else:
                assert await _ask(client, request) == b"https"
            assert await _ask(client, asked_for(served)) == b"https", "one client has both"
            await client.aclose()
    assert app.serials == [None, "1", "1"]


async def check_unverified(bench: TlsBench) -> None:
    """With no identity asked for, whoever answers is right, trusted or not; who asks need not have a certificate."""
    app, new = Seen(), bench.make_credentials()
    async with bench.serve_app(app, bench.party(SERVER, authority=1), demand=False) as served:
        assert await _ask(bench.make_client(new), asked_for(served, None)) == b"https"
        await _unreachable(bench.make_client(new), asked_for(served))
    assert app.serials == [None]


async def check_clear_is_apart(bench: TlsBench) -> None:
    """A server has TLS or has it not, a client without credentials can't ask for it, and a request in the clear is
    not said to be anybody's."""
    app, client = Seen(), bench.make_client(bench.party(CLIENT))
    async with bench.serve_app(app, bench.party(SERVER), demand=False) as served:
        await _refused(client, served.request())
        assert await _is_impossible(bench.make_client(None), asked_for(served))
    assert app.scopes == []
    async with bench.serve_app(app, None, demand=False) as served:
        await _unreachable(client, asked_for(served))
        assert await _ask(client, served.request()) == b"http"
    assert TLS not in app.scopes[0]["extensions"]


async def check_headers_say_nothing(bench: TlsBench) -> None:
    """Who a client is stands in its certificate, and in no header that it sends."""
    names = (b"x-forwarded-client-cert", b"x-forwarded-tls-client-cert", b"ssl-client-cert", b"x-ssl-client-s-dn",
             b"x-client-cert", b"client-cert", b"x-ssl-client-verify", b"forwarded", b"tls", b"peer")  # fmt: skip
    headers = tuple((name, f"Subject=;URI={SERVER};Hash=1".encode()) for name in names)
    app, client = Seen(), bench.make_client(bench.party(CLIENT))
    async with bench.serve_app(app, bench.party(SERVER), demand=False) as served:
        for anonymous in (True, False):
            request = asked_for(served, anonymous=anonymous)
            assert await _ask(client, attrs.evolve(request, headers=headers)) == b"https"
    assert app.serials == [None, "1"]
    async with bench.serve_app(app, None, demand=False) as served:
        assert await _ask(client, served.request(headers=headers)) == b"http"
    assert TLS not in app.scopes[-1]["extensions"]


async def check_renewal(bench: TlsBench) -> None:
    """A renewed certificate is shown by each connection that is opened from then on, and idle ones are used no more.
    What is open goes on."""
    app, own, shown = Seen(), bench.party(CLIENT, serial=1), bench.party(SERVER)
    client = bench.make_client(own)
    async with bench.serve_app(app, shown, demand=True) as served:
        assert await _ask(client, asked_for(served)) == b"https"
        async with client.exchange(asked_for(served, target="/stream")) as response:
            pieces = response.chunks()
            await app.give.send(None)
            assert await anext(pieces) == b"piece"
            bench.renew(own, CLIENT, serial=2)
            bench.renew(shown, SERVER, serial=3)
            assert await _ask(client, asked_for(served)) == b"https"
            await app.give.send(None)
            assert await anext(pieces) == b"piece"
        own.forget()
        await _unreachable(client, asked_for(served))
    assert app.serials == ["1", "1", "2"]


async def check_other_authority(bench: TlsBench) -> None:
    """Authorities are exchanged while a stream is open: both are trusted for a while, then the old one no more, also
    on connections that lie idle."""
    app, own, shown = Seen(), bench.party(CLIENT), bench.party(SERVER)
    client, late = bench.make_client(own), bench.make_client(bench.party(CLIENT, serial=9))
    async with bench.serve_app(app, shown, demand=True) as served:
        async with client.exchange(asked_for(served, target="/stream")) as response:
            pieces = response.chunks()
            for credentials in (own, shown):
                credentials.trust([bench.root(0), bench.root(1)])
            assert await _ask(client, asked_for(served)) == b"https"
            bench.renew(shown, SERVER, authority=1)
            assert await _ask(client, asked_for(served)) == b"https"
            await _unreachable(late, asked_for(served))
            own.trust([bench.root(1)])
            assert await _ask(client, asked_for(served)) == b"https", "the server trusts the old certificate still"
            bench.renew(own, CLIENT, authority=1, serial=2)
            shown.trust([bench.root(1)])
            assert await _ask(client, asked_for(served)) == b"https"
            await app.give.send(None)
            assert await anext(pieces) == b"piece"
        own.trust([bench.root(0)])
        await _unreachable(client, asked_for(served))
    assert app.serials == ["1", "1", "1", "1", "2"]


HTTP_CLIENT_TLS_CHECKS = (
    check_both_ends_are_known,
    check_wrong_server,
    check_void_certificate,
    check_untrusted,
    check_times,
    check_demand,
    check_unverified,
    check_clear_is_apart,
    check_headers_say_nothing,
    check_renewal,
    check_other_authority,
)


async def _ask(client: HttpClient, request: HttpRequest) -> bytes:
    async with client.exchange(request) as response:
        assert response.status == 200
        return await response.read(1_000)


async def _is_impossible(client: HttpClient, request: HttpRequest) -> bool:
    try:
        await enter(client, request)
    except ValueError as error:
        return "credentials" in str(error)
    return False


async def _refused(client: HttpClient, request: HttpRequest) -> None:
    """By the server."""
    _ = await _failure(client, request)


async def _unreachable(client: HttpClient, request: HttpRequest) -> None:
    """The client itself refuses: its caller must learn that nothing was sent."""
    assert isinstance(await _failure(client, request), HttpUnreachable)


async def _failure(client: HttpClient, request: HttpRequest) -> PortUnavailable:
    try:
        await enter(client, request)
    except PortUnavailable as error:
        return error
    raise AssertionError("it was to be refused")
