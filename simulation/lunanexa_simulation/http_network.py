"""The network of a simulated world: ASGI applications called in memory, over links with faults.

Time is Trio's clock and randomness comes from one named stream a link, so a run repeats exactly. What TCP
would do is kept where a caller can see it: order within a connection, backpressure, bytes that are held
back while a link is blocked and arrive after it heals, data sent before a process died arriving before its
end. A process that dies is heard of; a machine that is gone is not, nor is a link that is blocked, and whoever is
connected notices when their own kernel gives up (``giving_up``).
"""

from collections.abc import Iterable, Sequence

import trio

from lunanexa_core.drivers.specification import LOOPBACK, EngineAddress
from lunanexa_core.identity.certificate import PeerCertificate
from lunanexa_ports.asgi import AsgiApplication
from lunanexa_ports.data_door import Doorkeeper, DoorRefusal
from lunanexa_ports.http_client import HttpBroken, HttpRequest, HttpUnreachable, TlsPeer
from lunanexa_simulation.connections import Carried, Connection, Listener, Side
from lunanexa_simulation.credentials import SimulatedCredentials
from lunanexa_simulation.door import PassedOn
from lunanexa_simulation.giving_up import Patience
from lunanexa_simulation.http_exchange import Exchange
from lunanexa_simulation.links import HostLink
from lunanexa_simulation.rng import Streams
from lunanexa_simulation.tls import REFUSED, ServerTls, in_force, shake_hands
from lunanexa_simulation.ways import Way

FIRST_CLIENT_PORT = 32_768


class SimulatedNetwork:
    """Hosts, their listeners and the links between them. ``nursery`` carries the server side of every
    exchange: what a client's cancellation ends is the client alone, and an error in a handler ends the
    simulated world instead of hiding behind a 500."""

    def __init__(self, nursery: trio.Nursery, streams: Streams, *, latency_ms: tuple[int, int] = (0, 0)) -> None:
        self._nursery = nursery
        self._streams = streams
        self._latency_ms = latency_ms
        self._listeners: dict[tuple[str, int], Listener] = {}
        self._links: dict[tuple[str, str], HostLink] = {}
        self._living: dict[Connection, None] = {}
        self._next_client_port = FIRST_CLIENT_PORT
        self._silent: dict[str, trio.Event] = {}
        """Hosts whose machine is gone, each with what comes when it is back."""

    # --- machines ---

    def silence(self, host: str) -> None:
        """The machine of a host loses power. Nobody hears of it: nothing goes out any more, no end of a connection
        either, and nothing that comes is answered. Call it before the processes of the host are killed."""
        if host not in self._silent:
            self._silent[host] = trio.Event()
            for connection in self._between(host):
                for side, there in ((Side.CLIENT, connection.client[0]), (Side.SERVER, connection.listener.host)):
                    if there == host:
                        connection.lose(side)
                self._part(connection)

    def wake(self, host: str) -> None:
        """It is back, and knows of no connection that it had."""
        silent = self._silent.pop(host, None)
        if silent is not None:
            silent.set()
        self._meet(self._between(host))

    # --- who hears whom ---

    def _between(self, *hosts: str) -> Sequence[Connection]:
        """Connections of a host, or of two with each other."""
        return [one for one in self._living if {one.client[0], one.listener.host}.issuperset(hosts)]

    def _part(self, connection: Connection) -> None:
        if connection.patience is not None:
            connection.patience.part()
            return
        source, host = connection.client[0], connection.listener.host
        connection.patience = Patience(connection, self.link(source, host), self.link(host, source))
        self._nursery.start_soon(connection.patience.run)

    def _meet(self, connections: Iterable[Connection]) -> None:
        for connection in connections:
            if connection.patience is not None and not self._apart(connection):
                connection.patience.meet()

    def _apart(self, connection: Connection) -> bool:
        source, host = connection.client[0], connection.listener.host
        silent = source in self._silent or host in self._silent
        return silent or self.link(source, host).blocked or self.link(host, source).blocked

    # --- servers ---

    def listen(
        self,
        host: str,
        port: int,
        app: AsgiApplication,
        *,
        credentials: SimulatedCredentials | None = None,
        demand: bool = False,
    ) -> None:
        """With ``credentials`` over mutual TLS, and then ``demand`` refuses who shows no certificate."""
        tls = None if credentials is None else ServerTls(credentials=credentials, demand=demand)
        self._open(Listener(host, port, app, tls))

    def listen_door(self, host: str, port: int, doorkeeper: Doorkeeper, credentials: SimulatedCredentials) -> None:
        """A node's data listener: whom the doorkeeper lets in is passed on, as from this host."""
        tls = ServerTls(credentials=credentials, demand=True)
        self._open(Listener(host, port, None, tls, doorkeeper))

    def _open(self, listener: Listener) -> None:
        where = listener.host, listener.port
        assert where not in self._listeners, f"{listener.host}:{listener.port} is taken"
        self._listeners[where] = listener

    def close(self, host: str, port: int) -> None:
        """Orderly: new connections are refused and idle ones end; exchanges in progress go on."""
        listener = self._listeners.pop((host, port))
        for connection in list(listener.connections):
            connection.end()

    def kill(self, host: str, port: int) -> None:
        """As the death of the server's process. Nothing that its handlers still try to send gets out."""
        if host not in self._silent:
            self.cut(host, port)
        del self._listeners[host, port]

    def cut(self, host: str, port: int) -> None:
        """Ends every connection of one listener, which goes on listening."""
        listener = self._listeners[host, port]
        for connection in list(listener.connections):
            connection.end()
        for exchange in list(listener.exchanges):
            exchange.die()

    def inside(self, host: str, port: int) -> Sequence[tuple[str, EngineAddress]]:
        """What passes a door now: the start that each gateway named, and where its bytes go."""
        listener = self._listeners.get((host, port))
        if listener is None:
            return ()
        open_yet = [one for one in listener.connections if one.exchange is None or one.exchange in listener.exchanges]
        return [(one.asked_for, one.passage.to) for one in open_yet if one.asked_for and one.passage]

    def refuse(self, host: str, port: int, *, on: bool = True) -> None:
        """A listener whose backlog is full, or whose machine has no process there."""
        self._listeners[host, port].refusing = on

    # --- links ---

    def block(self, source: str, destination: str) -> None:
        """One direction only: call it twice for a whole partition."""
        self.link(source, destination).block()
        for connection in self._between(source, destination):
            self._part(connection)

    def heal(self, source: str, destination: str) -> None:
        self.link(source, destination).heal()
        self._meet(self._between(source, destination))

    def set_latency(self, source: str, destination: str, latency_ms: tuple[int, int]) -> None:
        self.link(source, destination).latency_ms = latency_ms

    def link(self, source: str, destination: str) -> HostLink:
        key = (source, destination)
        if key not in self._links:
            self._links[key] = HostLink(self._streams, f"link/{source}/{destination}")
            # Nothing is on its way for long within one machine.
            self._links[key].latency_ms = (0, 0) if LOOPBACK in key else self._latency_ms
        return self._links[key]

    def troubles(self) -> list[str]:
        """Which machines are gone and what is wrong with which link, for people."""
        gone = [f"the machine of {host} is gone" for host in self._silent]
        links = [(way, link.troubles()) for way, link in sorted(self._links.items())]
        return [*gone, *(f"{source} to {there}: {', '.join(found)}" for (source, there), found in links if found)]

    # --- for the client ---

    async def connect(
        self, source: str, request: HttpRequest, credentials: SimulatedCredentials | None = None
    ) -> Connection:
        """Raises ``HttpUnreachable``, and ``HttpBroken`` where a server with TLS refuses the client."""
        try:
            with trio.fail_after(request.connect_timeout_ms / 1000):
                listener = await self._reach(source, request, opening=True)
                if request.tls is not None:  # TLS 1.3 takes one round trip more
                    listener = await self._reach(source, request, opening=False)
        except trio.TooSlowError as exc:
            raise HttpUnreachable(f"no connection within {request.connect_timeout_ms} ms") from exc
        peer = shake_hands(listener.tls, credentials, request.tls)
        client = (source, self._next_client_port)
        self._next_client_port += 1
        if listener.doorkeeper is not None:
            connection = self._let_in(listener, listener.doorkeeper, client, peer, request.tls)
        else:
            assert listener.app is not None
            connection = Connection(client, listener, listener.app, peer=peer)
        connection.secure = listener.tls is not None
        connection.by = in_force(credentials, request.tls)
        connection.living = self._living
        self._living[connection] = None
        if not connection.dead:
            listener.connections[connection] = None
        if self._apart(connection):
            self._part(connection)
        return connection

    async def _reach(self, source: str, request: HttpRequest, *, opening: bool) -> Listener:
        """One round trip. What is sent to a machine that is gone is sent again until it is back."""
        where = request.host, request.port
        await self.link(source, request.host).carry(opening=opening)
        await self._awake(request.host)
        listener = self._listeners.get(where)
        accepted = listener is not None and not listener.refusing
        await self.link(request.host, source).carry(opening=opening)
        await self._awake(request.host)
        if listener is None or not accepted or self._listeners.get(where) is not listener:
            raise HttpUnreachable("connection refused")
        return listener

    async def _awake(self, host: str) -> None:
        while host in self._silent:
            await self._silent[host].wait()

    def _let_in(
        self,
        listener: Listener,
        doorkeeper: Doorkeeper,
        client: tuple[str, int],
        peer: PeerCertificate | None,
        wanted: TlsPeer | None,
    ) -> Connection:
        assert peer is not None, "a door demands a certificate"
        assert wanted is not None, "there is no door in the clear"
        passage = doorkeeper.admit(peer, wanted.server_name)
        if isinstance(passage, DoorRefusal):
            raise HttpBroken(REFUSED, head_seen=False)
        passed_on = PassedOn(self, listener.host, passage)
        connection = Connection(client, listener, passed_on, peer=peer, passage=passage, asked_for=wanted.server_name)
        passage.on_close(connection.cut)
        return connection

    def ask(self, connection: Connection, request: HttpRequest) -> Exchange:
        there, back = self.ways(connection)
        there.brings_request = True
        exchange = Exchange(self._nursery, connection, request, there, back)
        self.carry(connection, exchange, request.target)
        return exchange

    def ways(self, connection: Connection) -> tuple[Way, Way]:
        """There and back, for its next exchange."""
        source, host = connection.client[0], connection.listener.host
        there = Way(self.link(source, host), connection, Side.CLIENT)
        back = Way(self.link(host, source), connection, Side.SERVER)
        connection.ways = there, back
        return there, back

    def carry(self, connection: Connection, exchange: Carried, target: str) -> None:
        """Runs the server's side of ``exchange``."""
        listener = connection.listener
        connection.exchange = exchange
        if connection.patience is not None and connection.gone:  # nothing of it is heard
            connection.patience.say(Side.CLIENT)
            return
        listener.exchanges[exchange] = None
        if connection.dead:  # closed between its opening and the request
            exchange.die()
        connection.serving += 1
        self._nursery.start_soon(self._serve, exchange, name=f"{listener.host}:{listener.port} {target}")

    async def _serve(self, exchange: Carried) -> None:
        connection = exchange.connection
        try:
            await exchange.serve()
        finally:
            connection.serving -= 1
            connection.let_go()
