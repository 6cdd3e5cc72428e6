"""What the tests of the data listener share: a small fleet's credentials, a door in front of an engine, its callers."""

import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import count

import attrs
import trio

from lunanexa_adapters.crypto.authority import LocalAuthority, make_authority
from lunanexa_adapters.crypto.credentials import TlsCredentials
from lunanexa_adapters.data_door.serve import DataDoorLimits, serve_data_door
from lunanexa_adapters.data_door.tls_stream import TlsServerStream
from lunanexa_adapters.http_server.listeners import addresses, open_listeners
from lunanexa_adapters.system.clock import SystemClock
from lunanexa_core.identity.certificate import terms_at
from lunanexa_core.identity.names import gateway_identity, node_identity
from lunanexa_core.ids import HolderId, NodeId
from lunanexa_ports.http_client import TlsPeer
from tests.apps.door_machine import CLUSTER, START, Machine, record

NODE = node_identity(CLUSTER, NodeId("node-1")).uri
GATEWAY = gateway_identity(CLUSTER, HolderId("controller@host")).uri
_serials = count(0xABC)

Engine = Callable[[trio.SocketStream], Awaitable[None]]


def issued(authority: LocalAuthority, identity: str, *trusted: LocalAuthority) -> TlsCredentials:
    """A process with a certificate of ``authority``, which trusts it and ``trusted``."""
    credentials = TlsCredentials(None)
    credentials.trust([one.public.certificate for one in (authority, *trusted)])
    terms = terms_at(identity, f"{next(_serials):x}", SystemClock().now().wall_ms)
    chain = authority.issue(credentials.request(), terms)
    assert chain is not None
    credentials.accept(chain)
    return credentials


class TlsCaller(TlsServerStream):
    """The same rules at the other end of the connection."""

    def __init__(self, transport: trio.SocketStream, context: ssl.SSLContext, server_name: str | None) -> None:
        super().__init__(transport, ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
        self.transport = transport
        self.tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname=server_name)

    def leave(self) -> None:
        self.transport.socket.close()

    async def receive_after(self, data: bytes) -> bytes:
        """What comes back of a mirror."""
        await self.send(data)
        return await self.read_exactly(len(data))

    async def read_exactly(self, size: int) -> bytes:
        found = b""
        while len(found) < size:
            data = await self.receive()
            assert data, f"the end after {found!r}"
            found += data
        return found


@attrs.define
class Doored:
    """A door, its doorkeeper, and whoever calls."""

    host: str
    port: int
    machine: Machine
    authority: LocalAuthority
    gateway: TlsCredentials
    node: TlsCredentials
    engines: list[trio.SocketStream] = attrs.Factory(list)
    """The engine's end of each connection."""
    _callers: list[TlsCaller] = attrs.Factory(list)

    @property
    def peer(self) -> TlsPeer:
        return TlsPeer(identity=NODE, server_name=START)

    async def call(
        self,
        server_name: str | None = START,
        *,
        credentials: TlsCredentials | None = None,
        anonymous: bool = False,
    ) -> TlsCaller:
        """A connection whose handshake is done."""
        context = (credentials or self.gateway).client_context(anonymous=anonymous, verified=True)
        caller = TlsCaller(await trio.open_tcp_stream(self.host, self.port), context, server_name)
        self._callers.append(caller)
        await caller.do_handshake()
        return caller

    async def until_inside(self, passages: int) -> None:
        while len(self.machine.door.open_to()) != passages:
            await trio.sleep(0.001)

    def leave(self) -> None:
        for caller in self._callers:
            caller.leave()


@asynccontextmanager
async def doored(engine: Engine, limits: DataDoorLimits | None = None) -> AsyncIterator[Doored]:
    """A door in front of ``engine``, which serves raw connections."""
    authority = make_authority(SystemClock().now().wall_ms // 1_000)
    listeners, (behind,) = await open_listeners("127.0.0.1", 0), await open_listeners("127.0.0.1", 0)
    host, port = addresses(listeners)[0]
    machine = Machine()
    machine.records = [record(host="127.0.0.1", port=addresses([behind])[0][1])]
    found = Doored(host, port, machine, authority, issued(authority, GATEWAY), issued(authority, NODE))

    async def serve_engine(stream: trio.SocketStream) -> None:
        found.engines.append(stream)
        try:
            await engine(stream)
        finally:
            stream.socket.close()

    async with trio.open_nursery() as nursery:
        await nursery.start(trio.serve_listeners, serve_engine, [behind])
        await nursery.start(serve_data_door, listeners, machine.door, found.node, limits)
        with trio.fail_after(20):
            yield found
        found.leave()
        with trio.fail_after(20):
            await found.until_inside(0)
        nursery.cancel_scope.cancel()
