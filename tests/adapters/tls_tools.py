"""A fleet's certificates and a server with mutual TLS, for the tests of the adapters that use them."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import trio

from lunanexa_adapters.crypto.credentials import TlsCredentials
from lunanexa_adapters.crypto.fleet_keys import LocalFleetKeys
from lunanexa_adapters.http_client.http_client import H11HttpClient, HttpClientLimits
from lunanexa_adapters.http_server.limits import ServerLimits
from lunanexa_adapters.http_server.tls_listener import TlsListener
from lunanexa_adapters.system.clock import SystemClock
from lunanexa_ports.asgi import AsgiApplication
from lunanexa_ports.conformance.http_client import ServedApp
from lunanexa_ports.conformance.http_client_tls import Fleet, TlsBench
from lunanexa_ports.credentials import Credentials
from lunanexa_ports.http_client import HttpClient
from tests.adapters.http_tools import Server, served

Serve = Callable[..., Any]


@asynccontextmanager
async def served_tls(
    serve: Serve,
    app: Any,
    credentials: TlsCredentials,
    limits: ServerLimits | None = None,
    *,
    demand: bool = True,
) -> AsyncIterator[Server]:
    """As ``served``, over mutual TLS."""

    async def serve_listeners(app: Any, listeners: list[trio.SocketListener], *, on_fault: Any, **rest: Any) -> None:
        secure = [TlsListener(one, credentials, demand=demand, on_fault=on_fault) for one in listeners]
        await serve(app, secure, on_fault=on_fault, **rest)

    async with served(serve_listeners, app, limits) as server:
        yield server


def fleet_in(folder: Path) -> Fleet:
    """A fleet whose authorities' keys are there."""
    clock = SystemClock()
    return Fleet(
        keys=LocalFleetKeys(folder, clock),
        make_credentials=lambda: TlsCredentials(None),
        wall_ms=lambda: clock.now().wall_ms,
    )


def party(fleet: Fleet, uri: str) -> TlsCredentials:
    """One that has a certificate."""
    credentials = fleet.party(uri)
    assert isinstance(credentials, TlsCredentials)
    return credentials


@asynccontextmanager
async def tls_bench(serve: Serve, folder: Path) -> AsyncIterator[TlsBench]:
    """The suite's bench over sockets; its clients are closed at the end."""
    fleet = fleet_in(folder)
    clients: list[HttpClient] = []

    def make_client(credentials: Credentials | None) -> HttpClient:
        assert credentials is None or isinstance(credentials, TlsCredentials)
        clients.append(H11HttpClient(HttpClientLimits(), credentials=credentials))
        return clients[-1]

    @asynccontextmanager
    async def serve_app(
        app: AsgiApplication, credentials: Credentials | None, *, demand: bool
    ) -> AsyncIterator[ServedApp]:
        async def without_lifespan(scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] != "lifespan":
                await app(scope, receive, send)

        if credentials is None:
            serving = served(serve, without_lifespan)
        else:
            assert isinstance(credentials, TlsCredentials)
            serving = served_tls(serve, without_lifespan, credentials, demand=demand)
        async with serving as server:
            yield ServedApp(host=server.host, port=server.port, kill=server.kill)
            assert server.faults == []

    try:
        yield TlsBench(
            keys=fleet.keys,
            make_credentials=fleet.make_credentials,
            wall_ms=fleet.wall_ms,
            make_client=make_client,
            serve_app=serve_app,
        )
    finally:
        with trio.move_on_after(1, shield=True):
            for client in clients:
                await client.aclose()
