"""Driving port: inference, as the HTTP edge (and later WebSocket) asks for it."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Protocol

import attrs

from lunanexa_core.ids import RequestId
from lunanexa_core.outcomes import Refusal
from lunanexa_core.workload import Dialect
from lunanexa_ports.dispatch import ModelCard


@attrs.frozen(kw_only=True)
class InferenceCall:
    """One call as it came: raw body bytes and the few headers that mean something to us (lower case names)."""

    request: RequestId
    dialect: Dialect
    api_key: str | None
    headers: Mapping[str, str]
    body: bytes
    received_mono_ms: int


class ResponseSink(Protocol):
    """Where the answer goes. A sink that has begun can't be refused any more."""

    @property
    @abstractmethod
    def begun(self) -> bool:
        """Whether ``begin`` was called."""

    @property
    @abstractmethod
    def closed_because(self) -> str | None:
        """Why the server itself ended the client's connection (``slow_consumer``); ``None`` where it did not."""

    @abstractmethod
    async def begin(self, status: int, headers: Sequence[tuple[str, str]]) -> None:
        """Sends the response head. Once."""

    @abstractmethod
    async def write(self, data: bytes) -> None:
        """Sends body bytes; waits while the reader is slow."""

    @abstractmethod
    async def end(self) -> None:
        """Ends the body. Once, last."""

    @abstractmethod
    async def refuse(self, refusal: Refusal, headers: Sequence[tuple[str, str]] = ()) -> None:
        """Sends a whole error answer in the one shape; only before ``begin``."""


class InferenceGateway(Protocol):
    """Admits, waits, relays, settles."""

    @abstractmethod
    async def authenticate(self, api_key: str | None) -> Refusal | None:
        """Why nothing of this caller is read: a missing, unknown or insufficient key."""

    @abstractmethod
    async def infer(self, call: InferenceCall, sink: ResponseSink) -> None:
        """Answers the call into ``sink``: bytes of the engine, or one refusal. Cancelling it is how a
        client's departure is told: the upstream socket closes at once, and the workload is settled."""

    @abstractmethod
    async def models(self, api_key: str | None) -> tuple[ModelCard, ...] | Refusal:
        """What this key can call now."""
