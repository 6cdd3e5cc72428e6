"""A batch of commands: decided on ``pending``, appended, applied to ``committed``, answered. Everything that arrived
while the last one was written shares its transaction."""

from collections.abc import Callable, Sequence

import attrs
import structlog
import trio

from lunanexa_apps.controller.inbox import Inbox, Slot
from lunanexa_apps.controller.listener import KernelListener, tell_queues
from lunanexa_apps.controller.rows import place_of, to_row
from lunanexa_apps.controller.writer import Writer, Written
from lunanexa_core.admission.admit import KEY_REFUSED
from lunanexa_core.admission.limits import voided
from lunanexa_core.admission.settle import CANCELLED, given_up
from lunanexa_core.commands import CancelWorkload, RevokeKey, SettleWorkload, Tick
from lunanexa_core.ids import WorkloadId
from lunanexa_core.journal import Chain, Head, Row
from lunanexa_core.kernel.absorb import absorb
from lunanexa_core.kernel.apply import apply
from lunanexa_core.kernel.decide import Decision, Done, decide
from lunanexa_core.observed import Observed
from lunanexa_core.outcomes import Outcome, Refusal
from lunanexa_core.policy import Policy
from lunanexa_core.recovery import RECOVERING
from lunanexa_core.routing.pick import deny_waiting, grant_waiting
from lunanexa_core.state import State
from lunanexa_core.time import Instant, event_wall_ms
from lunanexa_ports.clock import Clock

_log = structlog.get_logger()
_STORE_RETRY_S = 0.5
_SETTLEMENT_FAILED = "settlement_failed"
_INTERNAL = Refusal(outcome=Outcome.INTERNAL, message="An internal error; the log of the service has it.")
STORE_DOWN = Refusal(outcome=Outcome.STORE_UNAVAILABLE, message="The store can't be written at the moment.")


@attrs.define
class _Batch:
    """Decided commands and the rows that make them durable."""

    decided: list[tuple[Slot, Decision]]
    rows: list[Row]
    head: Head
    now: Instant
    wall_ms: int


class Batches:
    """The tables of one kernel, and what a batch does to them."""

    def __init__(self, clock: Clock, policy: Policy, writer: Writer) -> None:
        self.policy = policy
        self.state = State()
        self.observed = Observed(began_mono_ms=0)
        self.head = Head()
        self.store_ok = False
        self.listeners: list[KernelListener] = []
        self._clock = clock
        self._writer = writer
        self._pending = State()
        self._last = clock.now()
        self._inbox = Inbox()
        self._changed = trio.Event()
        self._awaited: dict[trio.Event, Callable[[], bool]] = {}
        self._lost = 0

    def now(self) -> Instant:
        """The clock that the rules go by: its wall time is that of events."""
        now = self._clock.now()
        return Instant(now.mono_ms, event_wall_ms(self._last, now))

    def wall_ms(self) -> int:
        """The system's wall clock, which may jump: for who compares clocks."""
        return self._clock.now().wall_ms

    @property
    def relayed(self) -> int:
        """How many requests are in this controller's hands. What an earlier leader left, though it be this one, nobody
        relays any more: whoever leads settles it in its time."""
        return len(self.state.open) - sum(workload in self.state.open for workload in self.observed.left)

    async def _process(self, slots: list[Slot]) -> None:
        try:
            batch = self._decide(slots)
        except Exception:  # noqa: BLE001  # the poison guard: one command's bug must not stop the service
            self._pending = self.state.copy()
            if len(slots) == 1:
                _log.exception("command_failed", command=type(slots[0].command).__name__)
                await self._answer_failed(slots[0])
                return
            for slot in slots:
                await self._process([slot])
            return
        if batch.rows and not await self._append(batch):
            self._pending = self.state.copy()
            # What settles or renews is decided again: nobody would repeat it, and what it holds would stay held.
            for slot in self._inbox.put_back(slots):
                slot.reply(STORE_DOWN)
            self._lost += 1
            if self._lost > 1:
                await trio.sleep(_STORE_RETRY_S)  # It answers, and takes nothing: no haste.
            return
        if batch.rows:
            self._lost = 0
        self._commit(batch)

    async def _answer_failed(self, slot: Slot) -> None:
        """A settlement that can't be taken as it is ends its workload all the same: nobody would tell of it again,
        and what it holds would stay held until its deadline."""
        command = slot.command
        if not isinstance(command, SettleWorkload) or command.settlement.detail == _SETTLEMENT_FAILED:
            slot.reply(_INTERNAL)
            return
        workload = command.settlement.workload
        slot.command = SettleWorkload(given_up(workload, _SETTLEMENT_FAILED, self.observed, self.now()))
        await self._process([slot])

    def _decide(self, slots: list[Slot]) -> _Batch:
        now = self.now()
        batch = _Batch([], [], self.head, now, now.wall_ms)
        for slot in slots:
            decision = decide(self._pending, self.observed, self.policy, slot.command, now)
            for event in decision.events:
                row = to_row(batch.head, event, epoch=self._writer.epoch, wall_ms=batch.wall_ms, actor=slot.actor)
                apply(self._pending, event, epoch=self._writer.epoch, wall_ms=row.wall_ms, place=place_of(row))
                batch.head = batch.head.after(row)
                batch.rows.append(row)
            batch.decided.append((slot, decision))
        return batch

    async def _append(self, batch: _Batch) -> bool:
        """Whether the batch's rows are durable; an unknown outcome is resolved before this returns."""
        written = await self._writer.append(self.head, batch.rows)
        return await self._resolve(batch.rows) if written is Written.IN_DOUBT else written is Written.YES

    async def _resolve(self, rows: Sequence[Row]) -> bool:
        """After a write of unknown outcome: returns when the store answers again, whether it holds ``rows``."""
        self.store_ok = False
        # Meanwhile new work is refused; what settles waits its turn.
        while (written := await self._writer.resolve(self.head, rows)) is Written.IN_DOUBT:
            for slot in self._inbox.drain(1 << 20, urgent=False):
                slot.reply(STORE_DOWN)
            await trio.sleep(_STORE_RETRY_S)
        self.store_ok = True
        self.observed.spare_sessions(self._clock.now().mono_ms + self.policy.session_lease_ms)
        return written is Written.YES

    def _commit(self, batch: _Batch) -> None:
        happened = [event for _, decision in batch.decided for event in decision.events]
        by_row = zip(batch.rows, happened, strict=True)
        for row, event in by_row:
            apply(self.state, event, epoch=row.epoch, wall_ms=row.wall_ms, place=place_of(row))
        self.head = batch.head
        if batch.rows:
            self._last = Instant(batch.now.mono_ms, batch.wall_ms)
        for slot, decision in batch.decided:
            absorb(self.state, self.observed, self.policy, slot.command, decision, batch.now)
        for listener in self.listeners:
            listener.events(happened)
        if any(isinstance(slot.command, RevokeKey | Tick) for slot, _ in batch.decided):
            # Looked at again with each tick: a key's time ends without an event.
            for workload in voided(self.state, batch.now):
                self._void(workload, KEY_REFUSED)
        for slot, decision in batch.decided:
            if isinstance(slot.command, CancelWorkload) and isinstance(decision.answer, Done):
                self._void(slot.command.workload, CANCELLED)
        self._serve_queues(batch.now)
        for slot, decision in batch.decided:
            slot.reply(decision.answer)
        if happened:
            self._tell_changed(fleet=any(row.chain is Chain.JOURNAL for row in batch.rows))

    def _tell_changed(self, *, fleet: bool = True) -> None:
        """Not ``fleet``: it was but requests that came and went."""
        changed, self._changed = self._changed, trio.Event()
        changed.set()
        if fleet:
            for event, holds in self._awaited.items():
                if holds():
                    event.set()

    def _void(self, workload: WorkloadId, refusal: Refusal) -> None:
        for listener in self.listeners:
            listener.voided(workload, refusal)

    def _serve_queues(self, now: Instant) -> None:
        if not self._writer.leads:
            return  # Another may have granted the same slots.
        if self.state.recovery is not None:
            for workload in [waiting for queue in self.observed.queues.values() for waiting in queue.waiters]:
                self._void(workload, RECOVERING)
            return
        granted = grant_waiting(self.state, self.observed, self.policy, now)
        denied = deny_waiting(self.state, self.observed, self.policy, now)
        for listener in self.listeners:
            tell_queues(listener, self.observed, self.policy, granted=granted, denied=denied, now=now)
