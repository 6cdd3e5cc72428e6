"""The kernel: the one task that changes control state. It follows the journal until it may lead, then takes what
was asked batch by batch, until another leads."""

from collections.abc import Callable, Sequence

import attrs
import structlog
import trio

from lunanexa_apps.controller.batches import STORE_DOWN, Batches
from lunanexa_apps.controller.following import Follower
from lunanexa_apps.controller.high_water import HighWater
from lunanexa_apps.controller.inbox import Slot
from lunanexa_apps.controller.lease import Fenced, LeaseKeeper
from lunanexa_apps.controller.replay import Replay
from lunanexa_apps.controller.secrets import begin_with, may_lead
from lunanexa_apps.controller.writer import Writer
from lunanexa_apps.daemon import leaves
from lunanexa_core.commands import Begin, Command, OpenSession, Rebase
from lunanexa_core.events import Event
from lunanexa_core.identity.trust import TrustSet
from lunanexa_core.kernel.absorb import absorb
from lunanexa_core.kernel.decide import Answer, Decision, Done
from lunanexa_core.leadership import Seat
from lunanexa_core.observed import Observed
from lunanexa_core.outcomes import Outcome, Refusal
from lunanexa_core.policy import Policy
from lunanexa_core.recovery import RECOVERING, epoch_floor
from lunanexa_core.state import State
from lunanexa_core.time import Instant
from lunanexa_ports.clock import Clock
from lunanexa_ports.errors import PortUnavailable
from lunanexa_ports.fleet_keys import FleetKeys
from lunanexa_ports.journal import Journal, JournalReader
from lunanexa_ports.leadership import Leadership
from lunanexa_ports.snapshots import Snapshots

_log = structlog.get_logger()
STALL_MS = 2_000
_RELEASE_S = 1.0
NOT_LEADER = Refusal(outcome=Outcome.NOT_LEADER, message="Another controller of this service leads; ask that one.")


class _Once:
    """A task's word that it has started, said once."""

    def __init__(self, task_status: trio.TaskStatus[None]) -> None:
        self._task_status: trio.TaskStatus[None] | None = task_status

    def tell(self) -> None:
        if self._task_status is not None:
            self._task_status.started()
        self._task_status = None


class Kernel(Batches):
    """Owns state. Readers look at :attr:`state` and :attr:`observed` between awaits and keep no table."""

    def __init__(
        self,
        journal: Journal,
        leadership: Leadership,
        clock: Clock,
        policy: Policy,
        seat: Seat,
        water: HighWater | None = None,
        snapshots: Snapshots | None = None,
        fleet_keys: FleetKeys | None = None,
    ) -> None:
        """``fleet_keys``: which of the cluster's keys are here; ``None``: those that the first command names."""
        lease = LeaseKeeper(leadership, clock, seat, policy.lease_ms)
        super().__init__(clock, policy, Writer(journal, lease))
        self.seat = seat
        self.water = water or HighWater()
        self.leading = False
        self.replayed = False
        """Whether :attr:`state` is that of the store, as it was when the store could last be read."""
        self.snapshot_at = 0
        """The sequence of the newest snapshot; 0: there is none, or none that could be used."""
        self.replay_differs = False
        """Whether a replay beside this kernel came to another state."""
        self.began_wall_ms = 0
        self._journal = journal
        self._leadership = leadership
        self._lease = lease
        self._follower = Follower(
            journal=journal,
            leadership=leadership,
            clock=clock,
            seat=seat,
            lease=lease,
            lease_ms=policy.lease_ms,
            water=self.water,
            snapshots=snapshots,
        )
        self._fleet_keys = fleet_keys
        self._begins: tuple[TrustSet | None, Begin] | None = None
        self._could_lead: bool | None = None
        """Whether this installation had the keys for it when it was looked last; ``None``: it was not looked yet."""
        self._turned = trio.Event()

    @property
    def epoch(self) -> int:
        """The epoch in which this controller leads; 0 while it does not."""
        return self._lease.epoch if self.leading else 0

    @property
    def may_write(self) -> bool:
        """Whether it leads, and nobody else can at this instant."""
        return self.leading and self._lease.held

    @property
    def lost_tail_accepted(self) -> bool:
        """Whether what was acknowledged last may be lost with the store's server."""
        return self._leadership.lost_tail_accepted

    @property
    def leader(self) -> str:
        """Where the controller says that it serves which leads, as far as this one knows; may be empty."""
        if self.leading:
            return self.seat.address
        return "" if self._follower.lease is None else self._follower.lease.address

    @property
    def leader_node_url(self) -> str | None:
        """Where another controller that leads answers nodes, as far as this one knows."""
        lease = self._follower.lease
        known = (
            None if self.leading or lease is None or lease.holder is None else self.state.controllers.get(lease.holder)
        )
        return None if known is None else known.node_url

    def unserved(self) -> Refusal | None:
        """Why this controller decides nothing now; ``None``: it leads."""
        if self.leading:
            return None
        return NOT_LEADER if self.store_ok else STORE_DOWN

    def suspended(self) -> Refusal | None:
        """Why callers are served nothing now; ``None``: they are."""
        return self.unserved() or (None if self.state.recovery is None else RECOVERING)

    async def ask(self, command: Command, actor: str) -> Answer:
        """Has ``command`` decided; returns when what it changed is durable. Raises
        :class:`PortUnavailable` when the kernel is gone."""
        refusal = self.unserved()
        if refusal is not None and not self._inbox.closed:
            await trio.lowlevel.checkpoint()
            return self._keep_session(command) or refusal
        return await self._inbox.ask(command, actor)

    def _keep_session(self, command: Command) -> Done | None:
        """A gateway lives beside its kernel, also while that follows: at a takeover its session is there."""
        if not isinstance(command, OpenSession):
            return None
        absorb(self.state, self.observed, self.policy, command, Decision(Done()), self.now())
        return Done()

    @property
    def reader(self) -> JournalReader:
        """The journal, for who only reads."""
        return self._journal

    async def wait_changed(self) -> None:
        """Returns after the next batch that changed state, and when this controller begins or ceases to lead."""
        await self._changed.wait()

    async def wait_until(self, holds: Callable[[], bool]) -> None:
        """Returns when ``holds`` does, which the kernel asks after each change of the fleet: to ask a thousand who wait
        costs less than to wake them all. It must be quick, and must not raise."""
        if holds():
            return
        event = trio.Event()
        self._awaited[event] = holds
        try:
            await event.wait()
        finally:
            del self._awaited[event]

    async def wait_leading(self) -> None:
        """Returns when this controller leads."""
        while not self.leading:
            await self._turned.wait()

    async def run(self, begin: Begin, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Follows until it may lead, then leads until another does, for ever. It has started when it leads, or
        follows another, or waits for the store. Raises ``PortFault`` when the journal is damaged."""
        known: Replay | None = None
        begin, started = attrs.evolve(begin, holder=self.seat.holder), _Once(task_status)
        try:
            while True:
                known = await self._follow(known, begin, started)
                try:
                    async with trio.open_nursery() as nursery:
                        nursery.start_soon(self._lease.run)
                        nursery.start_soon(self.water.watch, self._journal, lambda: self.head)
                        first = attrs.evolve(self._with_keys(begin), recovery=self.water.reasons(self.state))
                        await self._begin(first)
                        self.water.told(self.head, self.state)
                        self._turn(leading=True)
                        _log.info("leading", epoch=self.epoch, sequence=self.head.sequence)
                        started.tell()
                        await self._serve()
                except* Fenced as lost:
                    _log.error("not_leading_any_more", reasons=sorted({str(one) for one in leaves(lost)}))
                self._step_down()
                known = Replay(state=self.state, head=self.head, wall_ms=self._last.wall_ms)
        finally:
            self._inbox.close()
            with trio.move_on_after(_RELEASE_S, shield=True):
                await self._lease.release()

    async def _follow(self, known: Replay | None, begin: Begin, started: "_Once") -> Replay:
        followed: str | None = None

        def waits() -> None:
            nonlocal followed
            if self.leader != followed:
                followed = self.leader
                _log.info("following", leader=followed, sequence=self.head.sequence)
            started.tell()

        def lost(error: PortUnavailable) -> None:
            if self.store_ok or not self.replayed:
                _log.error("store_unavailable", problem=str(error))
            self.store_ok = False
            started.tell()

        return await self._follower.follow(
            known,
            replayed=self._take_replay,
            may_lead=lambda: self._may_lead(begin),
            waits=waits,
            lost=lost,
        )

    def _may_lead(self, begin: Begin) -> bool:
        could = self._could_lead
        self._could_lead = may_lead(self.state, self._with_keys(begin), patient=could is not None)
        if not self._could_lead:
            self._begins = None  # They may be brought at any time.
        if could is not None and could != self._could_lead:
            if self._could_lead:
                _log.info("cluster_keys_found")
            else:
                _log.error(
                    "cluster_keys_missing", fix="copy the folder controller/secrets of the controller that leads"
                )
        return self._could_lead

    def _with_keys(self, begin: Begin) -> Begin:
        """Looked up anew with each change of trust: a rotation makes keys and removes them."""
        if self._fleet_keys is None:
            return begin
        if self._begins is None or self._begins[0] != self.state.trust:
            self._begins = self.state.trust, begin_with(begin, self._fleet_keys)
        return self._begins[1]

    def _take_replay(self, replay: Replay, happened: Sequence[Event]) -> None:
        self.state, self.head = replay.state, replay.head
        self.snapshot_at = max(self.snapshot_at, replay.snapshot_at)
        now = self._clock.now()
        self._last = Instant(now.mono_ms, max(replay.wall_ms, now.wall_ms))
        self.replayed = self.store_ok = True
        if happened:
            for listener in self.listeners:
                listener.events(happened)
            self._tell_changed()

    def _turn(self, *, leading: bool) -> None:
        self.leading = leading
        turned, self._turned = self._turned, trio.Event()
        turned.set()
        self._tell_changed()

    def _step_down(self) -> None:
        """What was not durable never happened. Requests in hand end: whoever leads now settles them."""
        self._turn(leading=False)
        self._inbox.refuse_all(NOT_LEADER)
        for workload in list(self.state.open):
            self._void(workload, NOT_LEADER)
        self._forget(self._clock.now())
        self._pending = State()

    def _forget(self, now: Instant) -> None:
        """What was observed as a leader, or before it led, says nothing of now."""
        kept = self.observed
        self.observed = Observed(began_mono_ms=now.mono_ms, draining=kept.draining, sessions=kept.sessions)

    async def _serve(self) -> None:
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
            await self._process(await self._with_epoch_for_go(slots))

    async def _with_epoch_for_go(self, slots: list[Slot]) -> list[Slot]:
        """An operator's go is decided in an epoch above all that are known to have been given."""
        goes = [slot for slot in slots if isinstance(slot.command, Rebase)]
        if not goes or self.state.recovery is None:
            return slots
        try:
            await self._lease.claim_again(above=epoch_floor(self.state, self.observed))
        except PortUnavailable as error:
            _log.error("store_unavailable", problem=str(error))
            for slot in goes:
                slot.reply(STORE_DOWN)
            # The epoch may have been taken all the same: until it is known which holds, no lease is renewed.
            await self._resolve(())
            return [slot for slot in slots if not isinstance(slot.command, Rebase)]
        return slots

    async def _begin(self, begin: Begin) -> None:
        """Without the keys that ``begin`` brings, a store that failed now would later look like a 401."""
        now = self._clock.now()
        self._pending = self.state.copy()
        self._forget(now)
        self.observed.left = frozenset(self.state.open)
        self.began_wall_ms = now.wall_ms
        answer: Answer | None = STORE_DOWN
        trusted = self.state.trust
        while answer == STORE_DOWN:
            slot = Slot(begin, "kernel")
            await self._process([slot])
            answer = slot.answer
        assert isinstance(answer, Done), answer
        if trusted is not None and self.state.trust is not None and not trusted.shares_authority(self.state.trust):
            _log.error("trust_begun_anew", fix="the keys that nodes trusted are not here: each node must enrol anew")
