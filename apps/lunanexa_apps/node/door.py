"""Whom this node's data listener lets in, and where to: gateways of the same cluster, each to the one start that it
names, while this agent has a lease.

A grant is the kernel's word and carries a start id; the door asks only whether that start serves here now. It fails
closed: without a lease, a mapping or a cluster nobody gets in. What was let in stays until its start ends, the lease
lapses, the certificate that it showed is revoked, or its caller leaves. That an engine may be kept beyond the lease
extends no passage: by then its successor may serve.
"""

from collections.abc import Callable, Collection, Iterable

import attrs

from lunanexa_core.drivers.specification import EngineAddress
from lunanexa_core.identity.certificate import PeerCertificate
from lunanexa_core.identity.names import Party, parse_identity
from lunanexa_core.ids import ClusterId, StartId
from lunanexa_core.lifecycle.record import ReplicaRecord
from lunanexa_core.southbound.heartbeat import IdentityGrade, ReplicaState
from lunanexa_core.time import Instant
from lunanexa_ports.clock import Clock
from lunanexa_ports.data_door import Doorkeeper, DoorRefusal, Passage


@attrs.frozen(kw_only=True)
class DoorLimits:
    """How many passages there may be at a time; one more is refused. Idle connections of gateways count too."""

    each_start: int = 1_024
    total: int = 4_096


def serves(record: ReplicaRecord) -> bool:
    """Whether a replica's start takes new requests: also while it drains, because grants may be on their way. Which
    grade of identity is enough is the kernel's business, which grants; none at all never is."""
    serving = record.state in (ReplicaState.READY, ReplicaState.DRAINING)
    return serving and record.start is not None and record.grade is not IdentityGrade.NONE


def lives(record: ReplicaRecord) -> bool:
    """Whether what a replica's start was given before may go on. One that is seen unwell for a moment, or that was
    asked to end, may still finish it."""
    return record.start is not None and record.state in (
        ReplicaState.STARTING,
        ReplicaState.READY,
        ReplicaState.DRAINING,
        ReplicaState.STOPPING,
    )


class Door(Doorkeeper):
    """The doorkeeper of one agent. It asks ``cluster``, ``replicas``, ``revoked`` (serials) and ``leased`` anew each
    time; :meth:`look` must be called whenever one of their answers may have changed."""

    def __init__(
        self,
        *,
        cluster: Callable[[], ClusterId | None],
        replicas: Callable[[], Iterable[ReplicaRecord]],
        revoked: Callable[[], Collection[str]],
        leased: Callable[[Instant], bool],
        clock: Clock,
        limits: DoorLimits | None = None,
    ) -> None:
        self._cluster = cluster
        self._replicas = replicas
        self._revoked = revoked
        self._leased = leased
        self._clock = clock
        self._limits = limits or DoorLimits()
        self._passages: dict[_Passage, None] = {}

    def admit(self, peer: PeerCertificate, server_name: str | None) -> Passage | DoorRefusal:
        now = self._clock.now()
        refusal = self._check_peer(peer, now)
        if refusal is not None:
            return refusal
        if not server_name:
            return DoorRefusal.NO_START_ID
        start = StartId(server_name)
        to = next((_address(one) for one in self._replicas() if one.start == start and serves(one)), None)
        if to is None:
            return DoorRefusal.UNKNOWN_START_ID
        if not self._leased(now):
            return DoorRefusal.NO_LEASE
        there = sum(passage.start == start for passage in self._passages)
        if len(self._passages) >= self._limits.total or there >= self._limits.each_start:
            return DoorRefusal.FULL
        passage = _Passage(self._passages, to, start, peer.serial)
        self._passages[passage] = None
        return passage

    def look(self) -> None:
        """Ends the passages that must not be any more. Never waits."""
        if not self._passages:
            return
        leased, revoked = self._leased(self._clock.now()), self._revoked()
        living = {record.start for record in self._replicas() if lives(record)}
        for passage in list(self._passages):
            if not leased or passage.start not in living or passage.serial in revoked:
                passage.end()

    def open_to(self) -> tuple[StartId, ...]:
        """The start that each passage leads to."""
        return tuple(passage.start for passage in self._passages)

    def _check_peer(self, peer: PeerCertificate, now: Instant) -> DoorRefusal | None:
        identity, cluster = parse_identity(peer.identity), self._cluster()
        if identity is None or identity.party is not Party.GATEWAY or identity.cluster != cluster:
            return DoorRefusal.NOT_A_GATEWAY
        if peer.expired(now.wall_ms):
            return DoorRefusal.EXPIRED
        return DoorRefusal.REVOKED if peer.serial in self._revoked() else None


def _address(record: ReplicaRecord) -> EngineAddress | None:
    """An adopted engine's is its deployment's URL, one of ours has a port of loopback."""
    return None if record.host is None or record.port is None else EngineAddress(record.host, record.port)


class _Passage(Passage):
    def __init__(self, passages: dict["_Passage", None], to: EngineAddress, start: StartId, serial: str) -> None:
        self.start = start
        self.serial = serial
        self._passages = passages
        self._to = to
        self._ended = False
        self._close: Callable[[], None] | None = None

    @property
    def to(self) -> EngineAddress:
        return self._to

    def on_close(self, close: Callable[[], None]) -> None:
        if self._ended:
            close()
        else:
            self._close = close

    def end(self) -> None:
        self._ended = True
        self._passages.pop(self, None)
        close, self._close = self._close, None
        if close is not None:
            close()

    def left(self) -> None:
        self._passages.pop(self, None)
        self._close = None
