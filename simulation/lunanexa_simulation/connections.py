"""Listeners of the simulated network, and the connections that clients have to them."""

import enum
from abc import abstractmethod
from collections.abc import Sequence
from typing import Protocol

import attrs

from lunanexa_core.identity.certificate import PeerCertificate
from lunanexa_ports.asgi import AsgiApplication
from lunanexa_ports.data_door import Doorkeeper, Passage
from lunanexa_simulation.tls import InForce, ServerTls


class Side(enum.Enum):
    """Of a connection."""

    CLIENT = "client"
    SERVER = "server"


class Carried(Protocol):
    """What runs on a connection of the network."""

    connection: "Connection"

    @abstractmethod
    async def serve(self) -> None:
        """The server's side, to its end."""

    @abstractmethod
    def die(self) -> None:
        """The server's process is dead."""

    @abstractmethod
    def vanish(self) -> None:
        """The server's machine is gone: its side stops, and its client hears nothing of it."""

    @abstractmethod
    def give_up(self) -> None:
        """Whoever is left sees that the connection is broken."""


@attrs.define(eq=False)
class Listener:
    host: str
    port: int
    app: AsgiApplication | None
    """``None``: the doorkeeper says what answers."""
    tls: ServerTls | None = None
    doorkeeper: Doorkeeper | None = None
    refusing: bool = False
    exchanges: dict[Carried, None] = attrs.Factory(dict)
    connections: "dict[Connection, None]" = attrs.Factory(dict)

    def all_connections(self) -> "Sequence[Connection]":
        """Also those that take no further request."""
        return list({**self.connections, **dict.fromkeys(one.connection for one in self.exchanges)})


@attrs.define(eq=False)
class Connection:
    client: tuple[str, int]
    listener: Listener
    app: AsgiApplication
    """What answers on it."""
    secure: bool = False
    peer: PeerCertificate | None = None
    """Who the client is, over mutual TLS; ``None``: it showed no certificate."""
    by: InForce | None = None
    """What the client went by when it was opened."""
    passage: Passage | None = None
    """Of a door's connection."""
    asked_for: str | None = None
    """Which server the client named, of a door's connection."""
    exchange: Carried | None = None
    """The last one."""
    dead: bool = False
    lost: Side | None = None
    """Whose machine is gone without a word; the other side has not noticed yet."""

    def end(self) -> None:
        self.dead = True
        self.listener.connections.pop(self, None)
        if self.passage is not None and self.exchange is None:
            self.passage.left()

    def lose(self, side: Side) -> None:
        """The machine on ``side`` is gone: nothing comes from there any more, not even that it ended."""
        self.lost = side
        if self.exchange is not None and side is Side.SERVER:
            self.exchange.vanish()

    def give_up(self) -> None:
        """Whoever is left has noticed."""
        self.end()
        if self.exchange is not None:
            self.exchange.give_up()

    def cut(self) -> None:
        """The server's side closes it, whatever is under way."""
        self.end()
        if self.exchange is not None:
            self.exchange.die()
