"""Driving port of the kernel for gateways: admission, the wait for a replica, and the receipt.

In one process a call; the same verbs travel over a unix socket when several gateway processes share
one kernel. A gateway holds no truth: what it holds lives as long as its session.
"""

from abc import abstractmethod
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Protocol, TypeAlias

import attrs

from lunanexa_core.allowance import UNLIMITED, Allowances
from lunanexa_core.ids import Alias, DeploymentId, SessionId, StartId, WorkloadId
from lunanexa_core.outcomes import Refusal
from lunanexa_core.workload import Attempt, LedgerReceipt, Settlement, WorkloadRequest
from lunanexa_ports.http_client import TlsPeer


@attrs.frozen(kw_only=True)
class Admitted:
    """The workload is durable and waits in its service's queue."""

    workload: WorkloadId
    deployment: DeploymentId
    place: int = 0
    """Waiters before it; 0 is next, or granted already."""
    allowances: Allowances = UNLIMITED
    """What is left of the key's limits after this admission."""


@attrs.frozen
class Repeated:
    """The idempotency key stands for this workload, which has ended and whose answer was kept. Nothing was admitted."""

    record: LedgerReceipt


@attrs.frozen
class QueuePlace:
    """How many waiters are before this one; 0 is next."""

    place: int


@attrs.frozen(kw_only=True)
class Grant:
    """One replica, for one attempt. The address is not for callers' eyes."""

    start: StartId
    host: str
    port: int
    served_name: str
    driver: str
    engine_key: str | None = attrs.field(repr=False)
    queued_ms: int
    tls: TlsPeer | None = None
    """Whose data listener that is, and which start it is asked for; ``None``: the engine itself, in the clear."""


WatchEvent: TypeAlias = QueuePlace | Grant | Refusal
"""A :class:`Refusal` ends the watch (waited too long, nothing left that could serve)."""


class Watch(Protocol):
    """One gateway task's view of one workload."""

    @abstractmethod
    async def next(self) -> WatchEvent:
        """Waits for what happens next. Cancellable: nothing that was not returned is lost."""

    @abstractmethod
    def on_void(self, tell: Callable[[Refusal], None]) -> None:
        """Has ``tell`` called when the workload must end, because its key is in force no more (revoked, expired) or
        its caller cancelled it: at once if that is so already, at any time while the watch is open, and not after
        it. The gateway then closes the engine's socket and settles with this refusal. ``tell`` never waits and may
        be called again."""

    @abstractmethod
    def on_severed(self, tell: Callable[[StartId, str], None]) -> None:
        """Has ``tell`` called, with the start and why, when a replica that was granted can't answer any more, of which
        its connection need not tell (its node is lost): at once if that is so already, at any time while the watch is
        open, and not after it. The gateway then closes the engine's socket, and the attempt has failed for that
        reason. ``tell`` never waits and may be called again, also of an attempt that is over."""

    @abstractmethod
    def output_began(self) -> None:
        """A stream's first output is on its way to the client."""


@attrs.frozen(kw_only=True)
class ModelCard:
    """One alias that is servable now and that the asking key may use."""

    alias: Alias
    created_s: int
    state: str
    context_tokens: int | None
    dialects: tuple[str, ...]


class Dispatch(Protocol):
    """The kernel's face to gateways. Each method raises
    :class:`~lunanexa_ports.errors.PortUnavailable` only when the kernel is gone; ``admit`` also when the receipt of
    what a request repeats can't be read."""

    @abstractmethod
    async def open_session(self, session: SessionId) -> int:
        """Opens (or renews) a gateway's session and returns its lease in ms from now. What a lapsed session
        held is settled ``gateway_lost``."""

    @abstractmethod
    async def authenticate(self, key_digest: str) -> Refusal | None:
        """Why this key may not ask for inference at all, before a body is read for it. ``admit`` checks again."""

    @abstractmethod
    async def admit(self, request: WorkloadRequest) -> Admitted | Repeated | Refusal:
        """Checks key, alias, idempotency, limits and queue, takes one reservation, all or nothing, and returns when
        the admission is durable. After a refusal nothing is held. Shielded: a caller that is cancelled inside
        must settle what it may have admitted (``settle`` of an unknown workload is harmless)."""

    @abstractmethod
    def watch(self, workload: WorkloadId) -> AbstractAsyncContextManager[Watch]:
        """What happens to an admitted workload: places in the queue (newest only; older ones are dropped),
        then a grant. After a failed attempt the same watch brings the next grant. Leaving the context
        gives up the place and the grant, not the workload: settle that."""

    @abstractmethod
    async def attempt_failed(self, workload: WorkloadId, attempt: Attempt) -> None:
        """Gives the grant back and asks for another replica than the failed one; the answer comes over
        ``watch``: a grant, or a refusal when there is no other."""

    @abstractmethod
    async def settle(self, settlement: Settlement) -> LedgerReceipt | None:
        """Ends a workload: releases everything it held and makes its receipt durable. The first settlement
        wins; a later one gets the first's receipt (``None`` for a workload that never was). Until it is
        durable the caller waits."""

    @abstractmethod
    async def models(self, key_digest: str) -> tuple[ModelCard, ...] | Refusal:
        """The aliases that are servable now and that this key may use."""
