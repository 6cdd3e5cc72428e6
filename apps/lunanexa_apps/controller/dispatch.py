"""The dispatch port in the kernel's own process: a call of a gateway is a command of the kernel."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from types import MappingProxyType

import trio

from lunanexa_apps.controller.batches import STORE_DOWN
from lunanexa_apps.controller.kernel import Kernel
from lunanexa_apps.controller.ledger import find_receipt
from lunanexa_apps.controller.watch_box import WatchBox
from lunanexa_core.admission.admit import ACTIVE, authorise
from lunanexa_core.admission.grants import may_use
from lunanexa_core.admission.idempotency import output_gone
from lunanexa_core.admission.limits import allowances_of
from lunanexa_core.allowance import UNLIMITED
from lunanexa_core.binding import Ended
from lunanexa_core.commands import AdmitWorkload, FailAttempt, OpenSession, SettleWorkload
from lunanexa_core.drivers.catalog import dialects_of
from lunanexa_core.events import Event, WorkloadAdmitted, WorkloadSettled
from lunanexa_core.ids import SessionId, WorkloadId
from lunanexa_core.keys import Role, derive_engine_key
from lunanexa_core.outcomes import Outcome, Refusal
from lunanexa_core.routing.pick import Denied, Granted
from lunanexa_core.routing.reach import reach
from lunanexa_core.routing.routable import routable_replicas
from lunanexa_core.routing.sever import severed
from lunanexa_core.southbound.heartbeat import ReplicaReport
from lunanexa_core.workload import Attempt, LedgerReceipt, Receipt, Settlement, WorkloadRequest
from lunanexa_ports.dispatch import Admitted, Dispatch, Grant, ModelCard, QueuePlace, Repeated, Watch
from lunanexa_ports.http_client import TlsPeer

_ACTOR = "gateway"
_SETTLED = Refusal(outcome=Outcome.INTERNAL, message="The workload was settled by the service itself.")


class KernelDispatch(Dispatch):
    """Gateways' face of the kernel; one box a workload, from before its admission to its receipt."""

    def __init__(
        self, kernel: Kernel, engine_secret: str, adopted_keys: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        self._kernel = kernel
        self._engine_secret = engine_secret
        self._adopted_keys = adopted_keys
        self._boxes: dict[WorkloadId, WatchBox] = {}
        self.draining = trio.Event()
        """Set when nothing new is admitted any more, whoever asked for that."""
        kernel.listeners.append(self)

    async def open_session(self, session: SessionId) -> int:
        await self._kernel.ask(OpenSession(session), _ACTOR)
        return self._kernel.policy.session_lease_ms

    async def authenticate(self, key_digest: str) -> Refusal | None:
        refusal = self._kernel.suspended()  # First: a controller without a store knows no key, and nobody's is wrong.
        key = refusal or authorise(self._kernel.state, key_digest, Role.INFERENCE, self._kernel.now())
        return key if isinstance(key, Refusal) else None

    async def admit(self, request: WorkloadRequest) -> Admitted | Repeated | Refusal:
        if request.workload in self._boxes or request.workload in self._kernel.state.open:
            # A name of the caller's own. Who has it now must lose neither its box nor, by what comes of this, its end.
            return await self.authenticate(request.key_digest) or ACTIVE
        # The grant may come in the batch that admits: the box must be there before.
        self._boxes[request.workload] = WatchBox()
        admitted = False
        try:
            answer = await self._kernel.ask(AdmitWorkload(request), _ACTOR)
            admitted = isinstance(answer, WorkloadAdmitted)
        finally:
            if not admitted:
                self._boxes.pop(request.workload, None)
        if isinstance(answer, Refusal):
            return answer
        if isinstance(answer, Ended):
            record = await find_receipt(self._kernel, answer.workload)
            return Repeated(record) if answer.kept and record is not None else output_gone(answer.workload, record)
        assert isinstance(answer, WorkloadAdmitted), answer
        state = self._kernel.state
        key = state.keys.get(answer.key)
        allowances = UNLIMITED if key is None else allowances_of(state, key, self._kernel.now())
        box = self._boxes.get(request.workload)
        return Admitted(
            workload=request.workload,
            deployment=answer.deployment,
            place=0 if box is None else box.place,
            allowances=allowances,
        )

    def watch(self, workload: WorkloadId) -> AbstractAsyncContextManager[Watch]:
        return self._watch(workload)

    @asynccontextmanager
    async def _watch(self, workload: WorkloadId) -> AsyncIterator[Watch]:
        box = self._boxes.get(workload)
        if box is None:
            box = WatchBox()
            box.put(_SETTLED)
        try:
            yield box
        finally:
            box.close()

    async def attempt_failed(self, workload: WorkloadId, attempt: Attempt) -> None:
        await self._kernel.ask(FailAttempt(workload, attempt), _ACTOR)

    async def settle(self, settlement: Settlement) -> LedgerReceipt | None:
        answer = await self._kernel.ask(SettleWorkload(settlement), _ACTOR)
        if not isinstance(answer, Receipt):
            return None
        return LedgerReceipt(answer, self._kernel.state.places[answer.workload])

    async def models(self, key_digest: str) -> tuple[ModelCard, ...] | Refusal:
        kernel, now = self._kernel, self._kernel.now()
        key = kernel.suspended() or authorise(kernel.state, key_digest, Role.INFERENCE, now)
        if isinstance(key, Refusal):
            return key
        if not kernel.store_ok:
            return STORE_DOWN  # Nothing could be called, and an empty list would say that there is nothing.
        cards = []
        for alias, deployment_id in sorted(kernel.state.deployment_of_alias.items()):
            if kernel.observed.draining or not may_use(key, alias):
                continue
            if not routable_replicas(kernel.state, kernel.observed, kernel.policy, deployment_id, now):
                continue
            engine = kernel.state.deployments[deployment_id].spec.engine
            cards.append(
                ModelCard(
                    alias=alias,
                    created_s=kernel.began_wall_ms // 1000,
                    state="ready",
                    context_tokens=engine.context_tokens,
                    dialects=tuple(sorted(dialect.value for dialect in dialects_of(engine))),
                )
            )
        return tuple(cards)

    def streaming(self, workload: WorkloadId) -> bool:
        """Whether a workload's output goes out already, piece by piece."""
        box = self._boxes.get(workload)
        return box is not None and box.streaming

    def granted(self, granted: Granted) -> None:
        """A listener's word from the kernel."""
        box = self._boxes.get(granted.workload)
        if box is None:
            return
        report = granted.report
        there = reach(self._kernel.state, report)
        assert there is not None, "a replica that is not reached is granted nothing"
        engine = self._kernel.state.deployments[granted.deployment].spec.engine
        box.put(
            Grant(
                start=report.start,
                host=there.host,
                port=there.port,
                tls=None if there.identity is None else self._peer(there.identity, report),
                served_name=report.served_name or engine.served_name,
                driver=engine.driver,
                engine_key=derive_engine_key(self._engine_secret, report.assignment, report.generation)
                if engine.url is None
                else self._adopted_keys.get(engine.url),
                queued_ms=granted.queued_ms,
            )
        )

    def _peer(self, identity: str, report: ReplicaReport) -> TlsPeer:
        """A machine that had the node's name before may have a certificate that is good for hours yet."""
        state = self._kernel.state
        node = state.assignments[report.assignment].node
        void = frozenset(serial for serial, one in state.revoked.items() if one.node == node)
        return TlsPeer(identity=identity, server_name=report.start, void=void)

    def denied(self, denied: Denied) -> None:
        """A listener's word from the kernel."""
        box = self._boxes.get(denied.workload)
        if box is not None:
            box.put(denied.refusal)

    def place(self, workload: WorkloadId, place: int) -> None:
        """A listener's word from the kernel."""
        box = self._boxes.get(workload)
        if box is not None:
            box.put(QueuePlace(place))

    def voided(self, workload: WorkloadId, refusal: Refusal) -> None:
        """A listener's word from the kernel."""
        box = self._boxes.get(workload)
        if box is not None:
            box.void(refusal)

    def events(self, events: Sequence[Event]) -> None:
        """A listener's word from the kernel: what was settled needs no box any more, and who waits for a node that is
        gone waits in vain."""
        if self._kernel.observed.draining:
            self.draining.set()
        for event in events:
            if isinstance(event, WorkloadSettled):
                box = self._boxes.pop(event.receipt.workload, None)
                if box is not None:
                    box.put(_SETTLED)  # For a gateway that still waits: the janitor was first.
        for one in severed(self._kernel.observed, events):
            box = self._boxes.get(one.workload)
            if box is not None:
                box.sever(one)
