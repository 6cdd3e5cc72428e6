"""A simulated network with mutual TLS, and the parties of one fleet on it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from lunanexa_ports.asgi import AsgiApplication
from lunanexa_ports.conformance.http_client import ServedApp
from lunanexa_ports.conformance.http_client_tls import TlsBench
from lunanexa_ports.credentials import Credentials
from lunanexa_ports.http_client import HttpClient
from lunanexa_simulation.clock import SimulatedClock
from lunanexa_simulation.credentials import SimulatedCredentials
from lunanexa_simulation.fleet_keys import SimulatedFleetKeys
from lunanexa_simulation.http_client import SimulatedHttpClient, SimulatedNetwork
from lunanexa_simulation.rng import Streams
from lunanexa_simulation.signing import SimulatedKeyring


class SimulatedFleet:
    """A network, and what its parties have of each other."""

    def __init__(self, nursery: trio.Nursery, latency_ms: tuple[int, int] = (0, 0)) -> None:
        self._streams = Streams(7)
        self._keyring = SimulatedKeyring()
        self._ports = iter(range(1, 1_000))
        self.clock = SimulatedClock()
        self.network = SimulatedNetwork(nursery, self._streams, latency_ms=latency_ms)
        self.bench = TlsBench(
            keys=SimulatedFleetKeys(self._keyring, self._streams.stream("authorities")),
            make_credentials=self.credentials,
            make_client=self.client,
            serve_app=self.serve,
            wall_ms=lambda: self.clock.now().wall_ms,
        )

    def credentials(self, clock: SimulatedClock | None = None) -> SimulatedCredentials:
        """Of a machine with the fleet's clock, or its own."""
        return SimulatedCredentials(self._keyring, self._streams.stream("party"), clock or self.clock)

    def client(self, credentials: Credentials | None) -> HttpClient:
        assert credentials is None or isinstance(credentials, SimulatedCredentials)
        return SimulatedHttpClient(self.network, "client", credentials=credentials)

    @asynccontextmanager
    async def serve(
        self, app: AsgiApplication, credentials: Credentials | None, *, demand: bool
    ) -> AsyncIterator[ServedApp]:
        assert credentials is None or isinstance(credentials, SimulatedCredentials)
        port = next(self._ports)
        self.network.listen("server", port, app, credentials=credentials, demand=demand)
        alive = True

        def kill() -> None:
            nonlocal alive
            if alive:
                self.network.kill("server", port)
            alive = False

        yield ServedApp(host="server", port=port, kill=kill)
        kill()
