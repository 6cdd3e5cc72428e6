"""The dispatch port in the kernel's own process: a call of a gateway is a command of the kernel."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import trio

from lunanexa_apps.controller.kernel import Kernel
from lunanexa_core.admission.admit import KEY_REFUSED, authorise, may_use
from lunanexa_core.admission.limits import allowances_of
from lunanexa_core.allowance import UNLIMITED
from lunanexa_core.commands import AdmitWorkload, FailAttempt, OpenSession, SettleWorkload
from lunanexa_core.drivers.catalog import DRIVERS
from lunanexa_core.events import Event, WorkloadAdmitted, WorkloadSettled
from lunanexa_core.ids import SessionId, WorkloadId
from lunanexa_core.keys import Role, derive_engine_key
from lunanexa_core.outcomes import Outcome, Refusal
from lunanexa_core.routing.pick import Denied, Granted
from lunanexa_core.routing.routable import routable_replicas
from lunanexa_core.workload import Attempt, Receipt, Settlement, WorkloadRequest
from lunanexa_ports.dispatch import Admitted, Dispatch, Grant, ModelCard, QueuePlace, Watch, WatchEvent

_ACTOR = "gateway"
_SETTLED = Refusal(outcome=Outcome.INTERNAL, message="The workload was settled by the service itself.")


class _Box(Watch):
    """The newest event of one workload. A grant or refusal takes the place of a queue place, never the
    other way round; a second grant (after a failed attempt) comes when the first was taken."""

    def __init__(self) -> None:
        self._event: WatchEvent | None = None
        self._told: QueuePlace | None = None
        self._void = False
        self._tell_void: Callable[[Refusal], None] | None = None
        self._arrived = trio.Event()

    def put(self, event: WatchEvent) -> None:
        if isinstance(event, QueuePlace):
            if event == self._told or not isinstance(self._event, QueuePlace | None):
                return
            self._told = event
        self._event = event
        self._arrived.set()

    async def next(self) -> WatchEvent:
        while self._event is None:
            self._arrived = trio.Event()
            await self._arrived.wait()
        event, self._event = self._event, None
        return event

    def on_void(self, tell: Callable[[Refusal], None]) -> None:
        self._tell_void = tell
        if self._void:
            tell(KEY_REFUSED)

    def void(self) -> None:
        """The key of the workload is in force no more."""
        self._void = True
        if self._tell_void is not None:
            self._tell_void(KEY_REFUSED)

    def close(self) -> None:
        """The watch is over."""
        self._tell_void = None


class KernelDispatch(Dispatch):
    """Gateways' face of the kernel; one box a workload, from before its admission to its receipt."""

    def __init__(self, kernel: Kernel, engine_secret: str) -> None:
        self._kernel = kernel
        self._engine_secret = engine_secret
        self._boxes: dict[WorkloadId, _Box] = {}
        kernel.listeners.append(self)

    async def open_session(self, session: SessionId) -> int:
        await self._kernel.ask(OpenSession(session), _ACTOR)
        return self._kernel.policy.session_lease_ms

    async def authenticate(self, key_digest: str) -> Refusal | None:
        key = authorise(self._kernel.state, key_digest, Role.INFERENCE, self._kernel.now())
        return key if isinstance(key, Refusal) else None

    async def admit(self, request: WorkloadRequest) -> Admitted | Refusal:
        # The grant may come in the batch that admits: the box must be there before.
        self._boxes[request.workload] = _Box()
        admitted = False
        try:
            answer = await self._kernel.ask(AdmitWorkload(request), _ACTOR)
            admitted = isinstance(answer, WorkloadAdmitted)
        finally:
            if not admitted:
                self._boxes.pop(request.workload, None)
        if isinstance(answer, Refusal):
            return answer
        assert isinstance(answer, WorkloadAdmitted), answer
        state = self._kernel.state
        key = state.keys.get(answer.key)
        allowances = UNLIMITED if key is None else allowances_of(state, key, self._kernel.now())
        return Admitted(workload=request.workload, deployment=answer.deployment, allowances=allowances)

    def watch(self, workload: WorkloadId) -> AbstractAsyncContextManager[Watch]:
        return self._watch(workload)

    @asynccontextmanager
    async def _watch(self, workload: WorkloadId) -> AsyncIterator[Watch]:
        box = self._boxes.get(workload)
        if box is None:
            box = _Box()
            box.put(_SETTLED)
        try:
            yield box
        finally:
            box.close()

    async def attempt_failed(self, workload: WorkloadId, attempt: Attempt) -> None:
        await self._kernel.ask(FailAttempt(workload, attempt), _ACTOR)

    async def settle(self, settlement: Settlement) -> Receipt | None:
        answer = await self._kernel.ask(SettleWorkload(settlement), _ACTOR)
        return answer if isinstance(answer, Receipt) else None

    async def models(self, key_digest: str) -> tuple[ModelCard, ...] | Refusal:
        kernel, now = self._kernel, self._kernel.now()
        key = authorise(kernel.state, key_digest, Role.INFERENCE, now)
        if isinstance(key, Refusal):
            return key
        cards = []
        for alias, deployment_id in sorted(kernel.state.deployment_of_alias.items()):
            if kernel.observed.draining or not may_use(key, alias):
                continue
            if not routable_replicas(kernel.state, kernel.observed, kernel.policy, deployment_id, now):
                continue
            engine = kernel.state.deployments[deployment_id].spec.engine
            dialects = DRIVERS[engine.driver].capabilities.dialects
            cards.append(
                ModelCard(
                    alias=alias,
                    created_s=kernel.began_wall_ms // 1000,
                    state="ready",
                    context_tokens=engine.context_tokens,
                    dialects=tuple(sorted(dialect.value for dialect in dialects)),
                )
            )
        return tuple(cards)

    def granted(self, granted: Granted) -> None:
        """A listener's word from the kernel."""
        box = self._boxes.get(granted.workload)
        if box is None:
            return
        report = granted.report
        assert report.host is not None
        assert report.port is not None
        engine = self._kernel.state.deployments[granted.deployment].spec.engine
        adopted = engine.url is not None
        box.put(
            Grant(
                start=report.start,
                host=report.host,
                port=report.port,
                served_name=report.served_name or engine.served_name,
                driver=engine.driver,
                engine_key=None
                if adopted
                else derive_engine_key(self._engine_secret, report.assignment, report.generation),
                queued_ms=granted.queued_ms,
            )
        )

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

    def voided(self, workload: WorkloadId) -> None:
        """A listener's word from the kernel."""
        box = self._boxes.get(workload)
        if box is not None:
            box.void()

    def events(self, events: Sequence[Event]) -> None:
        """A listener's word from the kernel: what was settled needs no box any more."""
        for event in events:
            if isinstance(event, WorkloadSettled):
                box = self._boxes.pop(event.receipt.workload, None)
                if box is not None:
                    box.put(_SETTLED)  # For a gateway that still waits: the janitor was first.
