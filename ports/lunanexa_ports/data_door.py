"""Driving port: whom a node's data listener lets in, and where to."""

import enum
from abc import abstractmethod
from collections.abc import Callable
from typing import Protocol

from lunanexa_core.drivers.specification import EngineAddress
from lunanexa_core.identity.certificate import PeerCertificate


class DoorRefusal(enum.Enum):
    """Why a connection is closed before a byte is passed on. The other end sees that it was closed, and no reason."""

    NOT_A_GATEWAY = "not_a_gateway"
    REVOKED = "revoked"
    EXPIRED = "expired"
    NO_START_ID = "no_start_id"
    UNKNOWN_START_ID = "unknown_start_id"
    NO_LEASE = "no_lease"
    FULL = "full"


class Passage(Protocol):
    """One connection that was let in."""

    @property
    @abstractmethod
    def to(self) -> EngineAddress:
        """Where its bytes go."""

    @abstractmethod
    def on_close(self, close: Callable[[], None]) -> None:
        """Has ``close`` called, once, when the passage must end: the lease lapsed, the replica is another or gone, the
        certificate was revoked. At once if that is so already. ``close`` never waits."""

    @abstractmethod
    def left(self) -> None:
        """The connection is over. Idempotent."""


class Doorkeeper(Protocol):
    """Fails closed: whatever is not known to be right is refused."""

    @abstractmethod
    def admit(self, peer: PeerCertificate, server_name: str | None) -> Passage | DoorRefusal:
        """Whether a verified peer that asks for ``server_name`` (the start id, as TLS names servers) may reach it.
        Whoever is let in says :meth:`Passage.left` in the end."""
