"""Driven port: what a node agent must remember over its own death."""

from abc import abstractmethod
from collections.abc import Mapping
from typing import Protocol

from lunanexa_core.ids import AssignmentId


class NodeStore(Protocol):
    """Small durable facts of one agent, each written at once and wholly (power-loss safe). Values are
    canonical bytes; their meaning is the agent's. Raises ``PortUnavailable`` (no room, locked) with nothing
    written, ``PortFault`` when the store is corrupt."""

    @abstractmethod
    async def next_start_number(self) -> int:
        """A counter that never gives one number twice, whatever dies when."""

    @abstractmethod
    async def put(self, name: str, value: bytes) -> None:
        """Sets one named fact (accepted document, enrolment, fences)."""

    @abstractmethod
    async def get(self, name: str) -> bytes | None:
        """The named fact, or ``None``."""

    @abstractmethod
    async def put_replica(self, assignment: AssignmentId, value: bytes | None) -> None:
        """Sets the record of one replica (intent before each side effect, outcome after); ``None`` removes it."""

    @abstractmethod
    async def replicas(self) -> Mapping[AssignmentId, bytes]:
        """All replica records, ordered by assignment."""

    @abstractmethod
    async def aclose(self) -> None:
        """Closes the store. Idempotent."""
