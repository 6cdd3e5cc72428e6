"""The published suite of the ``http_client`` port over mutual TLS, on the real client, against both servers."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import pytest
import trio

from lunanexa_adapters.crypto.credentials import TlsCredentials
from lunanexa_adapters.http_client.http_client import H11HttpClient, HttpClientLimits
from lunanexa_adapters.http_server.lean import serve_lean
from lunanexa_adapters.http_server.serve import serve_http
from lunanexa_ports.asgi import AsgiApplication
from lunanexa_ports.conformance.http_client import HTTP_CLIENT_CHECKS, Bench, ServedApp
from lunanexa_ports.conformance.http_client_tls import (
    CLIENT,
    HTTP_CLIENT_TLS_CHECKS,
    LIMIT_S,
    SERVER,
    TlsBench,
    check_both_ends_are_known,
    check_demand,
    check_headers_say_nothing,
)
from lunanexa_ports.http_client import HttpClient, TlsPeer
from tests.adapters.tls_tools import Serve, tls_bench

pytestmark = pytest.mark.thorough

OF_THE_SERVER = (check_both_ends_are_known, check_demand, check_headers_say_nothing)


@pytest.mark.parametrize(
    ("serve", "check"),
    [*((serve_lean, check) for check in HTTP_CLIENT_TLS_CHECKS), *((serve_http, check) for check in OF_THE_SERVER)],
)
async def test_real_client(serve: Serve, check: Callable[[TlsBench], Awaitable[None]], tmp_path: Path) -> None:
    with trio.fail_after(LIMIT_S):
        async with tls_bench(serve, tmp_path) as bench:
            await check(bench)


@pytest.mark.parametrize("check", HTTP_CLIENT_CHECKS)
async def test_all_else_holds_over_tls(check: Callable[[Bench], Awaitable[None]], tmp_path: Path) -> None:
    with trio.fail_after(LIMIT_S):
        async with tls_bench(serve_lean, tmp_path) as bench:
            own, shown = bench.party(CLIENT), bench.party(SERVER)

            def make_client(*, exchanges_per_origin: int = 8) -> HttpClient:
                limits = HttpClientLimits(exchanges_per_origin=exchanges_per_origin)
                assert isinstance(own, TlsCredentials)
                return H11HttpClient(limits, credentials=own)

            @asynccontextmanager
            async def serve_app(app: AsgiApplication) -> AsyncIterator[ServedApp]:
                async with bench.serve_app(app, shown, demand=True) as served:
                    yield attrs.evolve(served, tls=TlsPeer(identity=SERVER, server_name="x"))

            await check(Bench(make_client, serve_app))
