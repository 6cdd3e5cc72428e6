"""What checkers look at: the live kernel, the rows on disk, and what both showed before.

The shadow is a second state, fed with nothing but committed rows, each verified in its chain. Where it and
the live state differ, something changed state that no event tells of, or an event did not survive its codec.
"""

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Final

import attrs

from lunanexa_apps.controller.kernel import Kernel
from lunanexa_apps.controller.listener import KernelListener
from lunanexa_apps.controller.replay import Replay
from lunanexa_apps.controller.rows import from_row
from lunanexa_core import events
from lunanexa_core.admission.limits import used_tokens
from lunanexa_core.events import Event, Liveness
from lunanexa_core.ids import AssignmentId, DeploymentId, KeyId, NodeId, StartId, WorkloadId
from lunanexa_core.journal import Row
from lunanexa_core.outcomes import Refusal
from lunanexa_core.routing.pick import Denied, Granted
from lunanexa_core.routing.routable import routable_replicas
from lunanexa_core.southbound.documents import Directive
from lunanexa_core.southbound.heartbeat import ReplicaReport
from lunanexa_core.state import State
from lunanexa_core.time import Instant
from lunanexa_core.workload import Receipt
from lunanexa_ports.errors import PortFault

_SEQUENCE: Final = attrgetter("sequence")


@attrs.frozen(kw_only=True)
class Taken:
    """What an admission took of its key and when, by the ledger's time; once it is settled, what it used."""

    key: KeyId
    wall_ms: int
    tokens: int
    requests: int = 1


@attrs.define
class Shadow:
    """State and chains as the committed rows tell them, and every workload's receipts."""

    replay: Replay = attrs.Factory(Replay)
    admitted: set[WorkloadId] = attrs.Factory(set)
    receipts: dict[WorkloadId, list[Receipt]] = attrs.Factory(dict)
    open: set[WorkloadId] = attrs.Factory(set)
    """Admitted and without a receipt."""
    news: list[WorkloadId] = attrs.Factory(list)
    """Whose receipts nobody looked at yet."""
    taken: dict[WorkloadId, Taken] = attrs.Factory(dict)
    """In the order of admission, settled ones as they were settled."""
    wall_ms: int = 0
    """The time of the newest row."""
    fault: str | None = None
    """What was wrong with the first row that did not fit; nothing is fed after it."""

    @property
    def sequence(self) -> int:
        return self.replay.head.sequence

    def feed(self, rows: Sequence[Row]) -> None:
        """Takes the rows that follow those it had."""
        for row in rows:
            if self.fault is not None:
                return
            try:
                self.replay.feed(row)
                assert row.wall_ms >= self.wall_ms, f"its time is before {self.wall_ms}"
                self.wall_ms = row.wall_ms
                self._count(from_row(row), row.wall_ms)
            except (PortFault, AssertionError, KeyError) as error:
                self.fault = f"row {row.sequence} ({row.action}): {type(error).__name__}: {error}"

    def _count(self, event: Event, wall_ms: int) -> None:
        if isinstance(event, events.WorkloadAdmitted):
            self.admitted.add(event.request.workload)
            self.open.add(event.request.workload)
            self.taken[event.request.workload] = Taken(
                key=event.key, wall_ms=wall_ms, tokens=event.request.reserved_tokens
            )
        elif isinstance(event, events.WorkloadSettled):
            self.receipts.setdefault(event.receipt.workload, []).append(event.receipt)
            self.open.discard(event.receipt.workload)
            self.news.append(event.receipt.workload)
            used = used_tokens(event.receipt.settlement)
            taken = self.taken[event.receipt.workload]
            requests = 0 if used is None else 1
            self.taken[event.receipt.workload] = attrs.evolve(taken, tokens=used or 0, requests=requests)


@attrs.frozen(kw_only=True)
class Paced:
    """From when on a leader's time is compared with what passed."""

    reign: tuple[Kernel, int]
    """Who leads, and its epoch."""
    began: Instant
    """Its time when it was looked at first."""
    leant_ms: int
    """By how much that may have leant already, since the newest row."""


class GrantWatch(KernelListener):
    """Sits beside the gateways' dispatch and remembers by itself what a grant must respect. It outlives
    controllers. Its finding waits for the next quiescent instant: raised here it would be the kernel's crash."""

    def __init__(self) -> None:
        self.finding: str | None = None
        self.granted_starts: dict[WorkloadId, list[StartId]] = {}
        self._newest: dict[AssignmentId, StartId] = {}
        self._past: set[StartId] = set()
        self._lost: set[NodeId] = set()
        self._node_of: dict[AssignmentId, NodeId] = {}
        self._cordoned: set[NodeId] = set()

    def events(self, events: Sequence[Event]) -> None:
        for event in events:
            self._hear(event)

    def _hear(self, event: Event) -> None:
        if isinstance(event, events.ReplicaChanged):
            report = event.report
            before = self._newest.get(report.assignment)
            if before is not None and before != report.start:
                self._past.add(before)
            self._newest[report.assignment] = report.start
            self._node_of[report.assignment] = event.node
        elif isinstance(event, events.DirectiveChanged):
            closed = event.directive is Directive.CORDON
            (self._cordoned.add if closed else self._cordoned.discard)(event.node)
        elif isinstance(event, events.NodeEnrolled):  # Whoever is let in again is active, and was not lost.
            self._cordoned.discard(event.node)
            self._lost.discard(event.node)
        elif isinstance(event, events.NodeRevoked):
            self._lost.add(event.node)
        elif isinstance(event, events.LivenessChanged):
            (self._lost.add if event.liveness is Liveness.LOST else self._lost.discard)(event.node)

    def granted(self, granted: Granted) -> None:
        start, assignment = granted.report.start, granted.report.assignment
        starts = self.granted_starts.setdefault(granted.workload, [])
        starts.append(start)
        if start in self._past or self._newest.get(assignment) != start:
            self.finding = f"{granted.workload} was granted {start}; {self._newest.get(assignment)} is newer"
        elif self._node_of.get(assignment) in self._lost:
            self.finding = f"{granted.workload} was granted {start} on a lost node"
        elif self._node_of.get(assignment) in self._cordoned:
            self.finding = f"{granted.workload} was granted {start} on a cordoned node"
        elif len(starts) > 2:
            self.finding = f"{granted.workload} was granted a replica {len(starts)} times"

    def denied(self, denied: Denied) -> None:
        """Nothing to respect."""

    def place(self, workload: WorkloadId, place: int) -> None:
        """Nothing to respect."""

    def voided(self, workload: WorkloadId, refusal: Refusal) -> None:
        """Nothing to respect."""


@attrs.frozen(kw_only=True)
class OpenPassage:
    """A connection that a node's data listener lets pass now."""

    node: NodeId
    asked_for: str
    """The start that its gateway named."""
    reached: StartId | None
    """The start whose process listens where the bytes go; ``None``: nobody does."""
    unleased_ms: int
    """For how long the node has had no lease, by its own clock; negative while it has one."""


class OfLeader(KernelListener):
    """Hands on what a kernel says while it leads: one that follows repeats what another said."""

    def __init__(self, kernel: Kernel, inner: KernelListener) -> None:
        self._kernel = kernel
        self._inner = inner

    def granted(self, granted: Granted) -> None:
        self._inner.granted(granted)

    def denied(self, denied: Denied) -> None:
        self._inner.denied(denied)

    def place(self, workload: WorkloadId, place: int) -> None:
        self._inner.place(workload, place)

    def events(self, events: Sequence[Event]) -> None:
        if self._kernel.leading:
            self._inner.events(events)

    def voided(self, workload: WorkloadId, refusal: Refusal) -> None:
        self._inner.voided(workload, refusal)


def _nothing() -> Sequence[tuple[str, str]]:
    return ()


def _routable(kernel: Kernel, deployment: DeploymentId) -> Sequence[ReplicaReport]:
    return routable_replicas(kernel.state, kernel.observed, kernel.policy, deployment, kernel.now())


@attrs.define(kw_only=True)
class Sight:
    """One store's world at a quiescent instant. It lives as long as the world; who builds it keeps the
    members in force."""

    rows: Sequence[Row]
    """All rows on disk, durable ones only."""
    kernel: Kernel | None = None
    """The kernel that leads now, ``None`` while none does."""
    writers: Sequence[str] = ()
    """The controllers that may write, by what each knows itself."""
    shadow: Shadow = attrs.Factory(Shadow)
    grants: GrantWatch = attrs.Factory(GrantWatch)
    fences: Callable[[], Mapping[str, tuple[int, int]]] = dict
    """(epoch, generation) as each node accepted it last."""
    running: Callable[[], Sequence[tuple[AssignmentId, StartId]]] = tuple
    """The engine processes that live, on all nodes."""
    living: Sequence[tuple[AssignmentId, StartId]] = ()
    """The same as it was at the last :meth:`catch_up`."""
    at_doors: Callable[[], Sequence[OpenPassage]] = tuple
    """What passes the data listeners of all nodes."""
    routable: Callable[[Kernel, DeploymentId], Sequence[ReplicaReport]] = _routable
    """The replicas that would be granted requests now."""
    new_texts: Callable[[], Sequence[tuple[str, str]]] = _nothing
    """What was written since it was asked last, and where: log lines, metrics."""
    secrets: Mapping[str, str] = attrs.Factory(dict)
    """What was planted, by name; it may be shown nowhere."""
    highest: dict[str, tuple[int, int]] = attrs.Factory(dict)
    """The highest (epoch, generation) of each machine that was seen so far."""
    deployment_of: dict[AssignmentId, DeploymentId] = attrs.Factory(dict)
    """Of each assignment that was seen while there was an exclusive deployment."""
    places: dict[DeploymentId, int] = attrs.Factory(dict)
    """How many engines each exclusive deployment may have."""
    orders: dict[DeploymentId, set[tuple[AssignmentId, int]]] = attrs.Factory(dict)
    """What of each was ordered (assignment, generation) while it had no fewer places."""
    paced: Paced | None = None
    """Of the kernel that serves."""
    likened: int = 0
    """The sequence up to which shadow and live state share their equal values."""
    likened_state: State | None = None
    """The live state with which the shadow shares them."""
    taken_at: tuple[int, int] = (0, 0)
    """The sequence, and the bucket of time, at which ``taken_of`` was counted."""
    taken_of: dict[KeyId, tuple[int, int]] = attrs.Factory(dict)
    """Requests and tokens that each key with limits took within a minute."""
    rows_read: int = 0
    """The sequence up to which rows were searched for secrets."""

    def begin_again(self) -> None:
        """The store was set back: what its rows told is told anew. What nodes accepted is not forgotten."""
        self.shadow, self.likened_state = Shadow(), None
        self.taken_at = (0, 0)
        self.highest = {name: fence for name, fence in self.highest.items() if not name.startswith("controller")}
        self.rows_read = 0

    def catch_up(self) -> None:
        """Feeds the shadow with what the kernel has committed; with all there is while no kernel serves."""
        self.living = self.running()
        until = None if self.kernel is None else self.kernel.head.sequence
        self.shadow.feed(self.rows_after(self.shadow.sequence, until))

    def rows_after(self, after: int, until: int | None = None) -> Sequence[Row]:
        """Rows beyond sequence ``after``, up to ``until`` or all; where the ledger was pruned there are gaps."""
        first = bisect_right(self.rows, after, key=_SEQUENCE)
        return self.rows[first : None if until is None else bisect_right(self.rows, until, key=_SEQUENCE)]
