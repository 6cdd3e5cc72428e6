"""All replicas of one agent: what runs against what is desired, until both are the same."""

from collections.abc import Callable, Sequence

import structlog
import trio

from lunanexa_apps.node.lease import LeaseKeeper
from lunanexa_apps.node.pulse import Pulse
from lunanexa_apps.node.recovery import Recovered
from lunanexa_apps.node.replica import ReplicaOwner
from lunanexa_apps.node.settings import LocalPorts, NodeSettings, Shutdown
from lunanexa_core.ids import AssignmentId, StartId
from lunanexa_core.lifecycle.observations import Step
from lunanexa_core.lifecycle.reconcile import (
    NodeAction,
    RefuseAssignment,
    StartReplica,
    StopReplica,
    StopStray,
    reconcile,
)
from lunanexa_core.lifecycle.record import ReplicaRecord
from lunanexa_core.lifecycle.replica import new_replica
from lunanexa_core.southbound.documents import DesiredState
from lunanexa_core.southbound.heartbeat import RefusedAssignment, ReplicaReport, ReplicaState, UnstartedReplica
from lunanexa_ports.errors import PortUnavailable
from lunanexa_ports.processes import ManagedProcess

_WAITING_LOG_S = 2.0
_LOOK_AGAIN_S = 30.0
_STABLE = (ReplicaState.READY, ReplicaState.FAILED)
_log = structlog.get_logger()


class Replicas:
    """Owners by assignment. ``changed`` is called when a report would read differently."""

    def __init__(
        self, ports: LocalPorts, settings: NodeSettings, lease: LeaseKeeper, shutdown: Shutdown, changed: Pulse
    ) -> None:
        self.desired: DesiredState | None = None
        self.refused: tuple[RefusedAssignment, ...] = ()
        self.order = (0, 0)
        """(Epoch, generation) of the document that the replicas go by: what it does not want was told to stop."""
        self._ports = ports
        self._settings = settings
        self._lease = lease
        self._shutdown = shutdown
        self._changed = changed
        self.watchers: list[Callable[[], None]] = []
        """Called when a record may have changed. They are quick and raise nothing."""
        self._wake = Pulse()
        self._begun = trio.Event()
        self._owners: dict[AssignmentId, ReplicaOwner] = {}
        self._ended: dict[AssignmentId, ReplicaReport] = {}
        self._strays: set[StartId] = set()

    def follow(self, desired: DesiredState) -> None:
        """From now on this is what shall be true."""
        self.desired = desired
        self._wake.set()

    def reports(self) -> tuple[ReplicaReport, ...]:
        """Every replica that has, or lately had, a start, in order."""
        current = {name: owner.report() for name, owner in self._owners.items()}
        reports = self._ended | {name: report for name, report in current.items() if report is not None}
        return tuple(reports[name] for name in sorted(reports))

    def unstarted(self) -> tuple[UnstartedReplica, ...]:
        """Every replica that no report tells of yet."""
        owners = [(name, owner) for name, owner in sorted(self._owners.items()) if owner.report() is None]
        return tuple(UnstartedReplica(name, owner.record.state) for name, owner in owners)

    def any_outlives_no_lease(self) -> bool:
        """Whether there are replicas that must end some time after the lease has lapsed."""
        return any(owner.outlives_no_lease for owner in self._owners.values())

    def records(self) -> Sequence[ReplicaRecord]:
        """Every replica as its owner knows it."""
        return [owner.record for owner in self._owners.values()]

    async def wait_looked(self) -> None:
        """Returns when every replica that an earlier agent left was looked at once."""
        await self._begun.wait()
        for owner in list(self._owners.values()):
            await owner.looked.wait()

    @property
    def settled(self) -> bool:
        """Whether nothing is left to do: what runs is what is desired, as far as it can be."""
        if not self._begun.is_set() or self._strays:
            return False
        if self.desired is not None and self.desired.order != self.order:
            return False
        actions = self._next_actions(self._ports.processes.recorded())
        stable = all(record.state in _STABLE for record in self.records())
        return stable and all(isinstance(action, RefuseAssignment) for action in actions)

    def told(self, reports: tuple[ReplicaReport, ...]) -> None:
        """The controller has heard these: what is absent need not be told again."""
        for report in reports:
            if report.state is ReplicaState.ABSENT and self._ended.get(report.assignment) == report:
                del self._ended[report.assignment]

    async def run(self, recovered: dict[AssignmentId, Recovered]) -> None:
        """Returns once a shutdown has stopped everything."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._obey_shutdown)
            async with trio.open_nursery() as owners:
                for found in recovered.values():
                    self._own(owners, self._owner(found.step, found.process))
                self._begun.set()
                await self._reconcile_until_done(owners)
            nursery.cancel_scope.cancel("nothing is left to stop")

    async def _reconcile_until_done(self, owners: trio.Nursery) -> None:
        while True:
            stopping = self._shutdown.asked.is_set()
            try:
                recorded = [start for start in self._ports.processes.recorded() if start not in self._strays]
                self._act(self._next_actions(recorded, shutdown=stopping), owners)
                self._obey()
            except PortUnavailable as error:
                _log.error("records_unavailable", reason=str(error))
            if stopping and not self._owners and not self._strays:
                return
            with trio.move_on_after(_LOOK_AGAIN_S):
                await self._wake.wait()

    def _next_actions(self, recorded: Sequence[StartId], *, shutdown: bool = False) -> tuple[NodeAction, ...]:
        records = {name: owner.record for name, owner in self._owners.items()}
        return reconcile(self.desired, records, recorded, policy=self._settings.policy, shutdown=shutdown)

    def _act(self, actions: tuple[NodeAction, ...], owners: trio.Nursery) -> None:
        refused: list[RefusedAssignment] = []
        for action in actions:
            match action:
                case StopStray(start=start):
                    self._strays.add(start)
                    owners.start_soon(self._stop_stray, start)
                case StopReplica(assignment=name, cause=cause):
                    _log.info("replica_stops", assignment=name, cause=cause.value)
                    drain_ms = self._settings.shutdown_drain_ms if self._shutdown.asked.is_set() else None
                    self._owners[name].stop(hurry=self._shutdown.hurried.is_set(), drain_ms=drain_ms)
                case RefuseAssignment(assignment=name, refusal=refusal):
                    refused.append(RefusedAssignment(assignment=name, refusal=refusal.value))
                case StartReplica(assignment=assignment):
                    first = Step(new_replica(assignment, self._ports.clock.now().mono_ms))
                    self._own(owners, self._owner(first, None))
        if tuple(refused) != self.refused:
            self.refused = tuple(refused)
            _log.warning("assignments_refused", refused={one.assignment: one.refusal for one in refused})
            self._changed.set()

    def _obey(self) -> None:
        """What is desired was acted on: only now may it start what waits for the lease."""
        if self.desired is not None and self.desired.order != self.order:
            self.order = self.desired.order
            self._lease.document_followed()

    def _owner(self, first: Step, process: ManagedProcess | None) -> ReplicaOwner:
        return ReplicaOwner(self._ports, self._settings, self._lease, first, process, self._tell, self._promised_mib)

    def _promised_mib(self) -> int:
        return sum(owner.yet_to_take_mib() for owner in self._owners.values())

    def _own(self, owners: trio.Nursery, owner: ReplicaOwner) -> None:
        name = owner.record.assignment.assignment
        assert name not in self._owners, name
        self._owners[name] = owner
        self._ended.pop(name, None)
        owners.start_soon(self._run_owner, owner)

    async def _run_owner(self, owner: ReplicaOwner) -> None:
        await owner.run()
        name = owner.record.assignment.assignment
        last = owner.report()
        del self._owners[name]
        if last is not None:
            self._ended[name] = last
        self._tell()
        self._wake.set()

    async def _stop_stray(self, start: StartId) -> None:
        """Ours by its record, and known to no replica: it was made absent and its agent died then."""
        try:
            process = self._ports.processes.adopt(start)
            _log.info("stray_stops", start=start, process_found=process is not None)
            if process is not None:
                process.kill()
                await process.wait_group_gone()
            self._ports.processes.forget(start)
        except PortUnavailable as error:
            # Not woken: it is found, and tried, again at the next look.
            _log.error("stray_not_stopped", start=start, reason=str(error))
        else:
            self._wake.set()
        finally:
            self._strays.discard(start)

    def _tell(self) -> None:
        self._changed.set()
        for watcher in self.watchers:
            watcher()

    async def _obey_shutdown(self) -> None:
        await self._shutdown.asked.wait()
        self._stop_all()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._tell_waiting)
            await self._shutdown.hurried.wait()
            self._stop_all()

    def _stop_all(self) -> None:
        for owner in self._owners.values():
            owner.stop(hurry=self._shutdown.hurried.is_set(), drain_ms=self._settings.shutdown_drain_ms)
        self._wake.set()

    async def _tell_waiting(self) -> None:
        while True:
            states = {name: owner.record.state.value for name, owner in sorted(self._owners.items())}
            if states:
                _log.info("waiting_for_engines", states=states)
            await trio.sleep(_WAITING_LOG_S)
