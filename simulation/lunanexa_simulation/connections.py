"""Listeners of the simulated network, and the connections that clients have to them."""

import enum
from abc import abstractmethod
from typing import TYPE_CHECKING, Protocol

import attrs

from lunanexa_core.identity.certificate import PeerCertificate
from lunanexa_ports.asgi import AsgiApplication
from lunanexa_ports.data_door import Doorkeeper, Passage
from lunanexa_simulation.tls import InForce, ServerTls

if TYPE_CHECKING:
    from lunanexa_simulation.giving_up import Patience
    from lunanexa_simulation.ways import Way


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
        """The server's kernel gives it up: its side sees that the connection is broken, and its client does not hear
        of it."""

    @abstractmethod
    def close_client(self) -> None:
        """The client's kernel gives it up, or its process is dead: its side sees no more of it."""


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
    gone: frozenset[Side] = frozenset()
    """Ends that know of it no more: their machine lost power, or their kernel gave it up."""
    under_way: dict[Side, float] = attrs.Factory(dict)
    """When the last of what each end sent arrives."""
    patience: "Patience | None" = None
    """Where the ends don't hear each other."""
    ways: "tuple[Way, ...]" = ()
    """Of the last exchange: there, and back."""
    living: "dict[Connection, None]" = attrs.Factory(dict)
    """Its network's connections that somebody has to do with yet."""
    serving: int = 0
    _left: bool = False

    @property
    def lost(self) -> Side | None:
        """Which end knows of it no more, while the other has not noticed."""
        return next(iter(self.gone)) if len(self.gone) == 1 else None

    def end(self) -> None:
        self.dead = True
        self.listener.connections.pop(self, None)
        if self.passage is not None and self.exchange is None:
            self.passage.left()

    def leave(self) -> None:
        """Its client ends it, and has nothing to do with it any more."""
        self._left = True
        self.end()
        self.let_go()

    def let_go(self) -> None:
        """Forgets it where nobody has to do with it any more."""
        if self._left and not self.serving:
            self.living.pop(self, None)
            if self.patience is not None:
                self.patience.end()
            for way in self.ways:
                way.close()

    def say(self, side: Side, arrives_s: float) -> None:
        """An end sends something."""
        self.under_way[side] = arrives_s
        if self.patience is not None:
            self.patience.say(side)

    def lose(self, side: Side) -> None:
        """The machine on ``side`` is gone: nothing comes from there any more, not even that it ended."""
        self.gone |= {side}
        if self.exchange is not None and side is Side.SERVER:
            self.exchange.vanish()

    def give_up(self, side: Side) -> None:
        """The kernel on ``side`` hears nothing of the other."""
        self.gone |= {side}
        self.end()
        if self.exchange is not None:
            if side is Side.CLIENT:
                self.exchange.close_client()
            else:
                self.exchange.give_up()
            if any(way.brings_request for way in self.ways):  # it reaches nobody any more
                self.exchange.vanish()
        for way in self.ways:
            way.give_up(side)

    def cut(self) -> None:
        """The server's side closes it, whatever is under way."""
        self.end()
        if self.exchange is not None:
            self.exchange.die()
