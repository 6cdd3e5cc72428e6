"""The kernel: the one task that changes control state. Decide on ``pending``, append, apply to ``committed``,
answer; everything that arrived while the last batch was written shares the next one's transaction."""

from contextlib import aclosing

import attrs
import structlog
import trio

from lunanexa_apps.controller.inbox import Inbox, Slot
from lunanexa_apps.controller.listener import KernelListener, tell_queues
from lunanexa_apps.controller.replay import replay
from lunanexa_apps.controller.rows import place_of, to_row
from lunanexa_core.admission.admit import KEY_REFUSED
from lunanexa_core.admission.limits import voided
from lunanexa_core.admission.settle import CANCELLED, given_up
from lunanexa_core.commands import Begin, CancelWorkload, Command, RevokeKey, SettleWorkload, Tick
from lunanexa_core.ids import WorkloadId
from lunanexa_core.journal import Head, Row
from lunanexa_core.kernel.absorb import absorb
from lunanexa_core.kernel.apply import apply
from lunanexa_core.kernel.decide import Answer, Decision, Done, decide
from lunanexa_core.observed import Observed
from lunanexa_core.outcomes import Outcome, Refusal
from lunanexa_core.policy import Policy
from lunanexa_core.routing.pick import deny_waiting, grant_waiting
from lunanexa_core.state import State
from lunanexa_core.time import Instant, event_wall_ms
from lunanexa_ports.clock import Clock
from lunanexa_ports.errors import PortUnavailable
from lunanexa_ports.journal import Appended, Journal, JournalReader

_log = structlog.get_logger()
_STORE_RETRY_S = 0.5
STALL_MS = 2_000
_SETTLEMENT_FAILED = "settlement_failed"
_INTERNAL = Refusal(outcome=Outcome.INTERNAL, message="An internal error; the log of the service has it.")
STORE_DOWN = Refusal(outcome=Outcome.STORE_UNAVAILABLE, message="The store can't be written at the moment.")


class Fenced(Exception):
    """Another leader took a newer epoch: this kernel must end."""


@attrs.define
class _Batch:
    """Decided commands and the rows that make them durable."""

    decided: list[tuple[Slot, Decision]]
    rows: list[Row]
    head: Head
    now: Instant
    wall_ms: int


class Kernel:
    """Owns state. Readers look at :attr:`state` and :attr:`observed` between awaits and keep no table."""

    def __init__(self, journal: Journal, clock: Clock, policy: Policy) -> None:
        self.policy = policy
        self.state = State()
        self.observed = Observed(began_mono_ms=0)
        self.head = Head()
        self.epoch = 0
        self.began_wall_ms = 0
        self.store_ok = False
        self._lost = 0
        self.listeners: list[KernelListener] = []
        self._journal = journal
        self._clock = clock
        self._pending = State()
        self._last = clock.now()
        self._inbox = Inbox()
        self._changed = trio.Event()

    def now(self) -> Instant:
        """The clock that the rules go by: its wall time is that of events."""
        now = self._clock.now()
        return Instant(now.mono_ms, event_wall_ms(self._last, now))

    async def ask(self, command: Command, actor: str) -> Answer:
        """Has ``command`` decided; returns when what it changed is durable. Raises
        :class:`PortUnavailable` when the kernel is gone."""
        return await self._inbox.ask(command, actor)

    @property
    def reader(self) -> JournalReader:
        """The journal, for who only reads."""
        return self._journal

    async def wait_changed(self) -> None:
        """Returns after the next batch that changed state."""
        await self._changed.wait()

    async def run(self, begin: Begin, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Replays, takes a new epoch, begins, then serves its inbox. Never returns. Raises :class:`Fenced` when
        another leader took over, ``PortFault`` when the journal is damaged."""
        try:
            # The epoch first: from here on nobody else can write what the replay would miss.
            taken = await self._journal.take_epoch()
            await self._rebuild()
            self.epoch = taken.epoch
            await self._begin(begin)
            task_status.started()
            looked_mono_ms = self._clock.now().mono_ms
            while True:
                slots = await self._inbox.batch()
                # The janitor asks four times a second: a longer gap is this process or machine standing still.
                # So is a store that takes long: nobody could be heard meanwhile.
                stood_ms = self._clock.now().mono_ms - looked_mono_ms
                looked_mono_ms += stood_ms
                if stood_ms > STALL_MS:
                    _log.warning("stood_still", ms=stood_ms)
                    self.observed.stood_still(stood_ms, looked_mono_ms)
                await self._process(slots)
        finally:
            self._inbox.close()

    async def _begin(self, begin: Begin) -> None:
        """Without the keys that ``begin`` brings, a store that failed now would later look like a 401."""
        answer: Answer | None = STORE_DOWN
        while answer == STORE_DOWN:
            slot = Slot(begin, "kernel")
            await self._process([slot])
            answer = slot.answer
        assert isinstance(answer, Done), answer

    async def _rebuild(self) -> None:
        rebuilt = await replay(self._journal)
        now = self._clock.now()
        self.state, self.head = rebuilt.state, rebuilt.head
        self._pending = self.state.copy()
        self._last = Instant(now.mono_ms, max(rebuilt.wall_ms, now.wall_ms))
        self.observed = Observed(began_mono_ms=now.mono_ms)
        self.began_wall_ms = now.wall_ms
        self.store_ok = True

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
                row = to_row(batch.head, event, epoch=self.epoch, wall_ms=batch.wall_ms, actor=slot.actor)
                apply(self._pending, event, epoch=self.epoch, wall_ms=row.wall_ms, place=place_of(row))
                batch.head = batch.head.after(row)
                batch.rows.append(row)
            batch.decided.append((slot, decision))
        return batch

    async def _append(self, batch: _Batch) -> bool:
        """Whether the batch's rows are durable; an unknown outcome is resolved before this returns."""
        try:
            appended = await self._journal.append(self.epoch, self.head, batch.rows)
        except PortUnavailable as error:
            _log.error("store_unavailable", problem=str(error))
            self.store_ok = False
            return await self._resolve(batch)
        if appended is Appended.FENCED:
            raise Fenced(f"another controller took over from epoch {self.epoch}")
        return True

    async def _resolve(self, batch: _Batch) -> bool:
        """After an append of unknown outcome: takes a new epoch, so that the old append can't come late, then
        looks whether the rows are there. Meanwhile new work is refused; what settles waits its turn."""
        while (found := await self._read_tail()) is None:
            for slot in self._inbox.drain(1 << 20, urgent=False):
                slot.reply(STORE_DOWN)
            await trio.sleep(_STORE_RETRY_S)
        epoch, tail = found
        written = [row.hash for row in tail] == [row.hash for row in batch.rows]
        if tail and not written:
            raise Fenced("the journal holds rows that this controller did not write")
        self.epoch = epoch
        self.store_ok = True
        self.observed.spare_sessions(self._clock.now().mono_ms + self.policy.session_lease_ms)
        _log.info("store_back", epoch=self.epoch, rows_were_written=written)
        return written

    async def _read_tail(self) -> tuple[int, list[Row]] | None:
        try:
            taken = await self._journal.take_epoch()
            async with aclosing(self._journal.read(self.head.sequence)) as rows:
                return taken.epoch, [row async for row in rows]
        except PortUnavailable:
            return None

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
            changed, self._changed = self._changed, trio.Event()
            changed.set()

    def _void(self, workload: WorkloadId, refusal: Refusal) -> None:
        for listener in self.listeners:
            listener.voided(workload, refusal)

    def _serve_queues(self, now: Instant) -> None:
        granted = grant_waiting(self.state, self.observed, self.policy, now)
        denied = deny_waiting(self.state, self.observed, self.policy, now)
        for listener in self.listeners:
            tell_queues(listener, self.observed, self.policy, granted=granted, denied=denied, now=now)
