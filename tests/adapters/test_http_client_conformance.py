"""The published suite of the ``http_client`` port, on the real client over sockets, against both servers."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from lunanexa_adapters.http_client.http_client import H11HttpClient, HttpClientLimits
from lunanexa_adapters.http_server.lean import serve_lean
from lunanexa_adapters.http_server.serve import serve_http
from lunanexa_ports.asgi import AsgiApplication
from lunanexa_ports.conformance.http_client import HTTP_CLIENT_CHECKS, LIMIT_S, Bench, ServedApp
from lunanexa_ports.http_client import HttpClient
from tests.adapters.http_tools import served


def make_client(*, exchanges_per_origin: int = 8) -> HttpClient:
    return H11HttpClient(HttpClientLimits(exchanges_per_origin=exchanges_per_origin))


@pytest.mark.parametrize("check", HTTP_CLIENT_CHECKS)
@pytest.mark.parametrize("serve", [serve_lean, serve_http])
async def test_real_client(serve: Callable[..., Any], check: Callable[[Bench], Awaitable[None]]) -> None:
    @asynccontextmanager
    async def serve_app(app: AsgiApplication) -> AsyncIterator[ServedApp]:
        async def without_lifespan(scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] != "lifespan":
                await app(scope, receive, send)

        async with served(serve, without_lifespan) as server:
            yield ServedApp(host=server.host, port=server.port, kill=server.kill)
            assert server.faults == []

    with trio.fail_after(LIMIT_S):
        await check(Bench(make_client, serve_app))
