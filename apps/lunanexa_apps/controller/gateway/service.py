"""The gateway: admits a call, relays an engine's answer, and settles it, whatever happens on the way.

Every exit of :meth:`Gateway.infer` passes one guard. What may have been admitted is settled there, in a
shielded and timed cleanup, if nothing settled it before: a client that left, a deadline, a bug.
"""

import math

import trio

from lunanexa_apps.controller.gateway.admitting import Admitter
from lunanexa_apps.controller.gateway.answering import Answerer
from lunanexa_apps.controller.gateway.asking import ENVELOPE_ROUTE, NO_KEY, Asking, read_call
from lunanexa_apps.controller.gateway.keeping import Keeper
from lunanexa_apps.controller.gateway.progress import Progress
from lunanexa_apps.controller.gateway.report import Reporter
from lunanexa_apps.controller.gateway.session import run_gateway_session
from lunanexa_apps.controller.gateway.settings import GatewaySettings
from lunanexa_apps.controller.gateway.settling import NO_KERNEL, Settler
from lunanexa_apps.controller.gateway.submission import SubmissionSink
from lunanexa_apps.controller.gateway.telling import refuse
from lunanexa_core.admission.grants import NO_CAPTURE
from lunanexa_core.ids import RequestId, SessionId, WorkloadId
from lunanexa_core.keys import secret_digest
from lunanexa_core.openai.head import reserved_tokens
from lunanexa_core.outcomes import TABLE, Outcome, Refusal
from lunanexa_core.terms import EvaluationCapture
from lunanexa_ports.answers import Answers
from lunanexa_ports.clock import Clock
from lunanexa_ports.dispatch import Admitted, Dispatch, ModelCard, Repeated
from lunanexa_ports.errors import PortUnavailable
from lunanexa_ports.gateway import (
    Accepted,
    InferenceCall,
    InferenceGateway,
    ResponseSink,
    WorkloadCall,
    WorkloadSink,
)
from lunanexa_ports.http_client import HttpClient
from lunanexa_ports.ids import IdSource
from lunanexa_ports.metrics import Metrics
from lunanexa_ports.workers import Workers


class Gateway(InferenceGateway):
    """One gateway with its session. Stateless but for what is in progress."""

    def __init__(
        self,
        *,
        dispatch: Dispatch,
        client: HttpClient,
        clock: Clock,
        ids: IdSource,
        metrics: Metrics,
        workers: Workers,
        session: SessionId,
        answers: Answers,
        settings: GatewaySettings,
    ) -> None:
        self._dispatch = dispatch
        self._clock = clock
        self._ids = ids
        self._workers = workers
        self._session = session
        self._settings = settings
        self._reporter = Reporter(metrics)
        self._settler = Settler(dispatch, settings)
        self._admitter = Admitter(dispatch, self._settler.settle_late)
        self._keeper = Keeper(answers, clock, wait_ms=settings.receipt_ms)
        self._answerer = Answerer(
            dispatch=dispatch,
            client=client,
            workers=workers,
            settings=settings,
            settler=self._settler,
            keeper=self._keeper,
        )

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Holds the gateway's session and delivers its settlements; serving is possible from ``started`` on.
        Never returns. To be cancelled after the last request has ended."""
        async with trio.open_nursery() as nursery:
            await nursery.start(self._settler.run)
            await nursery.start(self._admitter.run)
            await nursery.start(self._keeper.run)
            await nursery.start(run_gateway_session, self._dispatch, self._session)
            task_status.started()

    async def authenticate(self, api_key: str | None) -> Refusal | None:
        if api_key is None:
            return NO_KEY
        try:
            return await self._dispatch.authenticate(secret_digest(api_key))
        except PortUnavailable:
            return NO_KERNEL

    async def models(self, api_key: str | None) -> tuple[ModelCard, ...] | Refusal:
        if api_key is None:
            return NO_KEY
        try:
            return await self._dispatch.models(secret_digest(api_key))
        except PortUnavailable:
            return NO_KERNEL

    async def submit(self, call: WorkloadCall | InferenceCall, sink: WorkloadSink) -> None:
        await self._serve(call, SubmissionSink(sink, call.request, self._settings.event_bytes_max))

    async def infer(self, call: InferenceCall, sink: ResponseSink) -> None:
        await self._serve(call, sink)

    async def _serve(self, call: InferenceCall | WorkloadCall, sink: ResponseSink) -> None:
        late_ms = max(0, self._clock.now().mono_ms - call.received_mono_ms)
        progress = Progress(
            workload=WorkloadId(self._ids.new("wl")),
            began_s=trio.current_time() - late_ms / 1000,
        )
        self._reporter.began()
        ended = False
        try:
            await self._answer(call, sink, progress)
            ended = True
        finally:
            if not ended:
                cancelled = trio.current_effective_deadline() == -math.inf
                outcome = Outcome.CANCELLED_BY_CALLER if cancelled else Outcome.INTERNAL
                progress.status = progress.status or TABLE[outcome].http_status
                with trio.move_on_after(self._settings.cleanup_ms / 1000, shield=True):
                    await self._settler.clean_up(progress, outcome, sink.closed_because)
            route = call.dialect.value if isinstance(call, InferenceCall) else ENVELOPE_ROUTE
            self._reporter.ended(call.request, route, progress)

    async def _answer(self, call: InferenceCall | WorkloadCall, sink: ResponseSink, progress: Progress) -> None:
        asking = await read_call(call, self._settings, self._workers)
        if isinstance(asking, Refusal):
            await refuse(asking, sink, progress)
            return
        progress.head, progress.trace = asking.head, asking.terms.trace
        progress.workload = asking.terms.workload or progress.workload
        found = await self._admit(call.request, asking, sink, progress)
        if isinstance(found, Repeated):
            found = await self._keeper.give(found, sink, progress)
            if found is None:
                return
        if found is not None:
            await refuse(found, sink, progress)
        else:
            await self._answerer.answer(call.request, asking, sink, progress)

    async def _admit(
        self, request: RequestId, asking: Asking, sink: ResponseSink, progress: Progress
    ) -> Repeated | Refusal | None:
        if isinstance(asking.terms.data.retention, EvaluationCapture):
            return NO_CAPTURE
        reserved = reserved_tokens(asking.head, self._settings.default_output_tokens)
        wanted = asking.request(progress.workload, request, self._session, reserved_tokens=reserved)
        deadline_s = progress.began_s + asking.deadline_ms / 1000
        admitted = await self._admitter.admit(wanted, progress, deadline_s)
        if not isinstance(admitted, Admitted):
            if isinstance(admitted, Refusal):
                progress.allowances = admitted.allowances
            return admitted
        progress.owed = True
        progress.admitted_s = trio.current_time()
        progress.allowances = admitted.allowances
        await sink.tell(Accepted(workload=progress.workload, place=admitted.place, allowances=admitted.allowances))
        return None
