"""The published suites of the ``http_client`` port over the simulated network's mutual TLS."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import attrs
import pytest
import trio
import trio.testing

from lunanexa_ports.asgi import AsgiApplication
from lunanexa_ports.conformance.http_client import HTTP_CLIENT_CHECKS, Bench, ServedApp
from lunanexa_ports.conformance.http_client_tls import CLIENT, HTTP_CLIENT_TLS_CHECKS, LIMIT_S, SERVER, TlsBench
from lunanexa_ports.http_client import HttpClient, TlsPeer
from lunanexa_simulation.credentials import SimulatedCredentials
from lunanexa_simulation.http_client import SimulatedHttpClient
from tests.simulation.tls_fleet import SimulatedFleet


@pytest.mark.parametrize("check", HTTP_CLIENT_TLS_CHECKS)
@pytest.mark.parametrize("latency_ms", [(0, 0), (1, 5)])
async def test_simulated_client(
    check: Callable[[TlsBench], Awaitable[None]],
    latency_ms: tuple[int, int],
    autojump_clock: trio.testing.MockClock,
    nursery: trio.Nursery,
) -> None:
    assert autojump_clock.autojump_threshold == 0
    with trio.fail_after(LIMIT_S):
        await check(SimulatedFleet(nursery, latency_ms).bench)


@pytest.mark.parametrize("check", HTTP_CLIENT_CHECKS)
async def test_all_else_holds_over_tls(
    check: Callable[[Bench], Awaitable[None]], autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    assert autojump_clock.autojump_threshold == 0
    fleet = SimulatedFleet(nursery, (1, 5))
    own, shown = fleet.bench.party(CLIENT), fleet.bench.party(SERVER)

    def make_client(*, exchanges_per_origin: int = 8) -> HttpClient:
        assert isinstance(own, SimulatedCredentials)
        return SimulatedHttpClient(fleet.network, "client", credentials=own, exchanges_per_origin=exchanges_per_origin)

    @asynccontextmanager
    async def serve_app(app: AsgiApplication) -> AsyncIterator[ServedApp]:
        async with fleet.serve(app, shown, demand=True) as served:
            yield attrs.evolve(served, tls=TlsPeer(identity=SERVER, server_name="x"))

    with trio.fail_after(LIMIT_S):
        await check(Bench(make_client, serve_app))
