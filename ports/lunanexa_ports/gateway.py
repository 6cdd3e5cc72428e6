"""Driving port: inference, as HTTP and WebSocket ask for it.

A dialect call is answered with an engine's own bytes (:class:`ResponseSink`). A submission, canonical or in a
dialect, is answered with events and one response document (:class:`WorkloadSink`).
"""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Protocol, TypeAlias

import attrs

from lunanexa_core.allowance import UNLIMITED, Allowances
from lunanexa_core.contract.response import WorkloadResponse
from lunanexa_core.ids import RequestId, WorkloadId
from lunanexa_core.outcomes import Refusal
from lunanexa_core.terms import Terms
from lunanexa_core.workload import Dialect, LedgerReceipt
from lunanexa_ports.dispatch import ModelCard


@attrs.frozen(kw_only=True)
class InferenceCall:
    """One call of a dialect as it came: raw body bytes, and the terms that its headers state."""

    request: RequestId
    dialect: Dialect
    api_key: str | None
    terms: Terms
    body: bytes
    content_type: str = "application/json"
    received_mono_ms: int


@attrs.frozen(kw_only=True)
class WorkloadCall:
    """One canonical envelope as it came. ``terms`` are those of the headers; the envelope's own win."""

    request: RequestId
    api_key: str | None
    terms: Terms
    body: bytes
    stream: bool
    received_mono_ms: int


@attrs.frozen(kw_only=True)
class Accepted:
    """The workload is durable. ``place``: how many waiters are before it; 0 is next, or running already.
    ``replayed``: it has ended long since, and its kept answer is given again. ``allowances``: what is left of the
    key's limits then."""

    workload: WorkloadId
    place: int
    replayed: bool = False
    allowances: Allowances = UNLIMITED


@attrs.frozen
class Settled:
    """How it ended, just before the last bytes. No receipt: none could be made durable in time."""

    receipt: LedgerReceipt | None
    refusal: Refusal | None


News: TypeAlias = Accepted | Settled


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
    async def end(self, *, whole: bool = True) -> None:
        """Ends the body. Once, last. Not ``whole``: what was sent has no form that could say that it is a part, so
        the connection must."""

    @abstractmethod
    async def refuse(self, refusal: Refusal, headers: Sequence[tuple[str, str]] = ()) -> None:
        """Sends a whole error answer in the one shape; only before ``begin``."""

    @abstractmethod
    async def tell(self, news: News) -> None:
        """What is known beside the engine's bytes; a dialect has no words for it."""


class WorkloadSink(Protocol):
    """Where a submission's frames go: ``accepted`` at most once and first, then events, then one of ``completed``
    and ``failed``, last. A refusal before admission is ``failed`` alone."""

    @property
    @abstractmethod
    def closed_because(self) -> str | None:
        """As :attr:`ResponseSink.closed_because`."""

    @abstractmethod
    async def accepted(self, accepted: Accepted) -> None:
        """The workload is durable."""

    @abstractmethod
    async def event(self, data: bytes) -> None:
        """One event of the engine: its data, JSON text on one line. Waits while the reader is slow."""

    @abstractmethod
    async def silence(self) -> None:
        """Nothing has happened for a while: whoever needs a sign of life sends one."""

    @abstractmethod
    async def completed(self, response: WorkloadResponse) -> None:
        """The whole answer is out, or in the response."""

    @abstractmethod
    async def failed(self, refusal: Refusal, response: WorkloadResponse | None) -> None:
        """It was refused (no response) or ended otherwise than with its answer."""


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
    async def submit(self, call: WorkloadCall | InferenceCall, sink: WorkloadSink) -> None:
        """Answers a submission into ``sink``. Cancelling it is a departure, as with :meth:`infer`."""

    @abstractmethod
    async def models(self, api_key: str | None) -> tuple[ModelCard, ...] | Refusal:
        """What this key can call now."""
