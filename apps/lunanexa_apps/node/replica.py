"""The one owner of a replica: feeds the pure machine what is seen, makes its record durable, then acts.

The record is written before each side effect (the intent) and after each observation that changes it (the
outcome), so that an agent that dies anywhere leaves enough to go on.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, assert_never

import structlog
import trio

from lunanexa_apps.codec import encode
from lunanexa_apps.node.cut_off import end_in_time
from lunanexa_apps.node.launch import find_address, launch_order, log_name, new_start_id
from lunanexa_apps.node.lease import LeaseKeeper
from lunanexa_apps.node.probing import Probing
from lunanexa_apps.node.pulse import Pulse
from lunanexa_apps.node.report import describe, same_report
from lunanexa_apps.node.room import see_memory, yet_to_take_mib
from lunanexa_apps.node.settings import LocalPorts, NodeSettings
from lunanexa_apps.node.sight import Readings, fresh_readings
from lunanexa_core.drivers.driver import LaunchRefusal
from lunanexa_core.ids import StartId
from lunanexa_core.lifecycle.observations import (
    Action,
    CutOff,
    Exited,
    GroupGone,
    LaunchFailed,
    LeaseAwaited,
    LeaseGranted,
    MemorySeen,
    NotPrepared,
    Observation,
    Prepared,
    Probed,
    Refused,
    Step,
    StopAsked,
    Tick,
)
from lunanexa_core.lifecycle.record import Ending, ReplicaRecord, rules_for
from lunanexa_core.lifecycle.replica import next_wake_ms, step
from lunanexa_core.southbound.heartbeat import ExitReason, ReplicaReport, ReplicaState
from lunanexa_ports.errors import PortError, PortUnavailable
from lunanexa_ports.processes import ManagedProcess, ProcessExit, SpawnFailed

LOG_LINES: Final = 20
_STORE_RETRY_S: Final = 0.5
_MEMORY_LOOK_S: Final = 0.5
_log = structlog.get_logger()


class ReplicaOwner:
    """One replica of this agent, from its first step to its absence. ``changed`` is called when its report
    would read differently; ``promised_mib`` tells what other starts have yet to take of this machine's memory."""

    def __init__(
        self, ports: LocalPorts, settings: NodeSettings, lease: LeaseKeeper, first: Step,
        process: ManagedProcess | None, changed: Callable[[], None], promised_mib: Callable[[], int],
    ) -> None:  # fmt: skip
        self.record = first.record
        self.looked = trio.Event()
        """Set once its process was looked at, or there is none to look at."""
        self._first = first
        self._ports = ports
        self._settings = settings
        self._lease = lease
        self._changed = changed
        self._promised_mib = promised_mib
        self._rules = rules_for(first.record.assignment)
        self._process = process
        self._stored: ReplicaRecord | None = None
        self._readings: Readings | None = None
        self._inbox: deque[Observation] = deque()
        self._arrived = Pulse()
        self._probing = Probing(ports, settings, self._rules, self._post, lambda: self.record.state)

    def stop(self, *, hurry: bool = False, drain_ms: int | None = None) -> None:
        """Asks for the end of the replica; asking again may only make it sooner."""
        self._post(StopAsked(hurry, drain_ms))

    def report(self) -> ReplicaReport | None:
        """The replica as the controller shall see it; ``None`` before its first start has an id."""
        return describe(
            self.record, self._readings, self._process if self.record.launched else None, now_ms=self._now_ms()
        )

    def yet_to_take_mib(self) -> int:
        """What this start was let in for and does not hold yet."""
        return yet_to_take_mib(self.record, self._rules, self._process)

    @property
    def outlives_no_lease(self) -> bool:
        """Whether it must end some time after the lease has lapsed."""
        return self._rules.cut_off_keep_ms is not None

    async def run(self) -> None:
        """Returns when the replica is absent and no record of it is left."""
        unwatch = self._lease.watch(self._arrived.set)
        try:
            await self._run()
        finally:
            unwatch()

    async def _run(self) -> None:
        async with trio.open_nursery() as nursery:
            if self._rules.cut_off_keep_ms is not None:
                nursery.start_soon(self._end_when_cut_off, self._rules.cut_off_keep_ms)
            if self._process is not None and self.record.start is not None:
                nursery.start_soon(self._watch, self.record.start, self._process)
            await self._take(self._first, nursery)
            if not self._probing.running:
                self.looked.set()
            while self.record.state is not ReplicaState.ABSENT:
                observation = await self._next()
                await self._see(observation, nursery)
            nursery.cancel_scope.cancel("the replica is absent")
        await self._store(None)

    # --- seeing ---

    def _post(self, observation: Observation) -> None:
        # Bounded: only the newest probe counts, a watcher posts twice, and equal stops are one.
        if isinstance(observation, Probed):
            self._inbox = deque(other for other in self._inbox if not isinstance(other, Probed))
        if observation not in self._inbox:
            self._inbox.append(observation)
            self._arrived.set()

    async def _next(self) -> Observation:
        while not self._inbox:
            if self.record.state is ReplicaState.AWAITING_LEASE and self._may_start():
                return LeaseGranted()
            wake_ms = next_wake_ms(self.record, self._rules)
            wait_s = float("inf") if wake_ms is None else (wake_ms - self._now_ms()) / 1_000
            if wait_s <= 0:
                await trio.lowlevel.checkpoint()
                return Tick()
            looks = self.record.state is ReplicaState.AWAITING_MEMORY
            with trio.move_on_after(min(wait_s, _MEMORY_LOOK_S) if looks else wait_s):
                await self._arrived.wait()
                looks = False
            if looks:
                # Looked at by who decides on it, with nothing between: two starts never take the same room.
                return self._see_memory()
        return self._inbox.popleft()

    def _see_memory(self) -> MemorySeen:
        return see_memory(self._ports.memory, self._rules, self._promised_mib)

    async def _see(self, observation: Observation, nursery: trio.Nursery) -> None:
        now_ms = self._now_ms()
        if isinstance(observation, Probed) and observation.start == self.record.start:
            self._readings = fresh_readings(observation, self._readings, now_ms)
        await self._take(step(self.record, observation, now_ms, self._rules, self._ports.ids.below(1_000)), nursery)
        self.looked.set()

    async def _take(self, taken: Step, nursery: trio.Nursery) -> None:
        before, self.record = self.record, taken.record
        self._tell(before)
        await self._persist()
        for action in taken.actions:
            for observation in await self._act(action, nursery):
                await self._see(observation, nursery)
        self._probing.keep(nursery, self.record, self._process)

    def _tell(self, before: ReplicaRecord) -> None:
        record = self.record
        if same_report(record, before):
            return
        if record.start != before.start:
            self._readings = None
        self._changed()
        if record.state is not before.state:
            gave_up = record.state in (ReplicaState.BACKOFF, ReplicaState.FAILED) or record.ending is Ending.RESTART
            reason = record.exit.kind if gave_up and record.exit is not None else None
            lost = before.state is ReplicaState.READY and record.state is ReplicaState.STARTING
            # A terminal shows warnings alone, and who watches it shall see that an engine went.
            ended = reason is not None and record.state is not ReplicaState.STOPPING
            tell = _log.warning if lost or ended else _log.info
            tell(
                "replica_state",
                assignment=record.assignment.assignment,
                start=record.last_start,
                state=record.state.value,
                before=before.state.value,
                restarts=record.restarts,
                reason=reason,
                detail=record.exit.detail if reason is not None and record.exit is not None else None,
            )
        if record.kills > 2 and record.kills != before.kills:
            _log.warning("replica_outlives_kill", assignment=record.assignment.assignment, kills=record.kills)

    # --- remembering ---

    async def _persist(self) -> None:
        durable = self.record.durable()
        if durable != self._stored:
            await self._store(encode(durable))
            self._stored = durable

    async def _store(self, value: bytes | None) -> None:
        """Nothing is done that is not written: while the store can't be had, the replica stands still."""
        while True:
            try:
                await self._ports.store.put_replica(self.record.assignment.assignment, value)
            except PortUnavailable as error:
                _log.error("store_unavailable", assignment=self.record.assignment.assignment, reason=str(error))
                await trio.sleep(_STORE_RETRY_S)
            else:
                return

    # --- acting ---

    async def _act(self, action: Action, nursery: trio.Nursery) -> Sequence[Observation]:
        match action:
            case Action.PREPARE:
                return await self._prepare()
            case Action.SPAWN:
                return await self._spawn(nursery)
            case Action.TERMINATE:
                return self._signal(kill=False)
            case Action.KILL:
                return self._signal(kill=True)
            case Action.FORGET:
                self._forget()
                return ()
            case _:
                assert_never(action)

    def _may_start(self) -> bool:
        """What somebody else runs is only looked at."""
        return self._rules.adopted or self._lease.may_start()

    async def _prepare(self) -> Sequence[Observation]:
        if not self._may_start():
            return (LeaseAwaited(),)
        try:
            number = await self._ports.store.next_start_number()
            address = find_address(self.record.assignment, self._ports.processes)
        except PortUnavailable as error:
            _log.error("start_not_prepared", assignment=self.record.assignment.assignment, reason=str(error))
            return (NotPrepared(),)
        start = new_start_id(number, self._ports.ids)
        if isinstance(address, LaunchRefusal):
            return (Refused(start, address.value),)
        memory = self._see_memory()
        if memory.available_mib is None and self._rules.memory_mib is not None:
            _log.warning("memory_unreadable", start=start, memory_mib=self._rules.memory_mib)
        return (Prepared(start=start, host=address.host, port=address.port, memory=memory),)

    async def _spawn(self, nursery: trio.Nursery) -> Sequence[Observation]:
        start, port = self.record.start, self.record.port
        assert start is not None
        assert port is not None
        if not self._may_start():
            return (LeaseAwaited(),)
        order = launch_order(self.record.assignment, start, port, self._settings.working_directory)
        process: ManagedProcess | None = None
        problem = "the launcher did not answer in time"
        try:
            with trio.move_on_after(self._spawn_limit_ms() / 1_000):
                process = await self._ports.processes.start(order)
            # A start that was given up is either found now, or never will be one.
            process = process or self._ports.processes.adopt(start)
        except (SpawnFailed, PortError) as error:
            problem = str(error)
        if process is None:
            return (LaunchFailed(start, problem),)
        self._process = process
        nursery.start_soon(self._watch, start, process)
        return ()

    def _spawn_limit_ms(self) -> int:
        """What must go when the lease has lapsed does not come up after that."""
        limit_ms, keep_ms = self._settings.spawn_timeout_ms, self._rules.cut_off_keep_ms
        return limit_ms if keep_ms is None else min(limit_ms, self._lease.cut_off_in_ms(keep_ms))

    async def _end_when_cut_off(self, keep_ms: int) -> None:
        """Beside the machine, which stands still while the store can't be had: this may not."""
        while True:
            await self._lease.wait_cut_off(keep_ms)
            self._post(CutOff())
            if self._process is not None:
                await end_in_time(self._process, self.record.assignment, self._rules)
            await self._lease.wait_granted()

    def _signal(self, *, kill: bool) -> Sequence[Observation]:
        start, process = self.record.start, self._process
        assert start is not None
        if process is None:
            return (GroupGone(start),)
        if kill:
            process.kill()
        else:
            process.terminate()
        return ()

    def _forget(self) -> None:
        self._process = None
        if self.record.last_start is None:
            return
        try:
            self._ports.processes.forget(self.record.last_start)
        except PortError as error:
            # Reconciliation finds the record later and tries again.
            _log.error("start_not_forgotten", start=self.record.last_start, reason=str(error))

    async def _watch(self, start: StartId, process: ManagedProcess) -> None:
        ended = await process.wait()
        match ended:
            case ProcessExit(code=int()):
                kind = "exited"
            case ProcessExit(signal=int()):
                kind = "signalled"
            case _:
                kind = "unobserved"
        lines = self._ports.processes.last_lines(log_name(self.record.assignment), LOG_LINES)
        self._post(Exited(start, ExitReason(kind=kind, code=ended.code, signal=ended.signal, last_lines=lines)))
        await process.wait_group_gone()
        self._post(GroupGone(start))

    def _now_ms(self) -> int:
        return self._ports.clock.now().mono_ms
