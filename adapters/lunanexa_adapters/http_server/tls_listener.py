"""Mutual TLS in front of a server: what is shown and who is trusted may change while it listens."""

from typing import TYPE_CHECKING

import trio

from lunanexa_adapters.http_server.answers import OnFault
from lunanexa_adapters.http_server.handshakes import TlsStream
from lunanexa_ports.errors import PortFault, PortUnavailable

if TYPE_CHECKING:
    from lunanexa_adapters.crypto.credentials import TlsCredentials


class TlsListener(trio.abc.Listener[TlsStream]):
    """Each connection goes by what is in force when it is accepted; those that are open stay. The handshake is the
    server's, in the connection's own task."""

    def __init__(
        self, tcp: trio.SocketListener, credentials: "TlsCredentials", *, demand: bool, on_fault: OnFault
    ) -> None:
        """``demand``: whoever shows no certificate is refused; else one is verified where it is shown. ``on_fault`` is
        told when there is nothing to show, once for each reason; connections are closed then."""
        self._tcp = tcp
        self._credentials = credentials
        self._demand = demand
        self._on_fault = on_fault
        self._told: str | None = None

    @property
    def socket(self) -> trio.socket.SocketType:
        """The listening socket, as ``addresses`` reads it."""
        return self._tcp.socket

    async def accept(self) -> TlsStream:
        while True:
            stream = await self._tcp.accept()
            try:
                context = self._credentials.server_context(demand=self._demand)
            except (PortUnavailable, PortFault) as error:
                stream.socket.close()
                if str(error) != self._told:  # Whoever connects could fill the log.
                    self._told = str(error)
                    self._on_fault(error)
            else:
                self._told = None
                # HTTP says by itself where a message ends, and many clients close without a word of TLS.
                return trio.SSLStream(stream, context, server_side=True, https_compatible=True)

    async def aclose(self) -> None:
        await self._tcp.aclose()
