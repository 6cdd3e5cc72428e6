"""The gateway: admits a call, relays an engine's answer, and settles it, whatever happens on the way.

Every exit of :meth:`Gateway.infer` passes one guard. What may have been admitted is settled there, in a
shielded and timed cleanup, if nothing settled it before: a client that left, a deadline, a bug.
"""

import math
from collections.abc import Callable
from typing import Final, assert_never

import trio

from lunanexa_apps.controller.gateway.admitting import DEADLINE, Admitter
from lunanexa_apps.controller.gateway.asking import ENVELOPE_ROUTE, NO_KEY, Asking, read_call
from lunanexa_apps.controller.gateway.attempts import ENGINE_FAILED, Attempts, Result
from lunanexa_apps.controller.gateway.keeping import Keeper, RecordingSink, answer_of, retained_ms
from lunanexa_apps.controller.gateway.outlet import Outlet
from lunanexa_apps.controller.gateway.progress import Progress
from lunanexa_apps.controller.gateway.relay import Broken, Streamed, Whole
from lunanexa_apps.controller.gateway.report import Reporter
from lunanexa_apps.controller.gateway.session import run_gateway_session
from lunanexa_apps.controller.gateway.settings import GatewaySettings
from lunanexa_apps.controller.gateway.settling import NO_KERNEL, Settler
from lunanexa_apps.controller.gateway.submission import SubmissionSink
from lunanexa_apps.controller.gateway.telling import detail_of, fail_stream, refuse, tell_whole, timings
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
    Settled,
    WorkloadCall,
    WorkloadSink,
)
from lunanexa_ports.http_client import HttpClient
from lunanexa_ports.ids import IdSource
from lunanexa_ports.metrics import Metrics
from lunanexa_ports.workers import Workers

OUTLIVED: Final = Refusal(
    outcome=Outcome.DEADLINE_EXCEEDED, message="The workload ran longer than its resource_ceiling.runtime_ms."
)


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
        self._client = client
        self._clock = clock
        self._ids = ids
        self._workers = workers
        self._session = session
        self._settings = settings
        self._reporter = Reporter(metrics)
        self._settler = Settler(dispatch, settings)
        self._admitter = Admitter(dispatch, self._settler.settle_late)
        self._keeper = Keeper(answers, clock, wait_ms=settings.receipt_ms)

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
        elif asking.head.stream or asking.head.bare:
            await self._serve_stream(call.request, asking, sink, progress)
        else:
            await self._serve_whole(asking, sink, progress)

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
        await sink.tell(Accepted(workload=progress.workload, place=admitted.place))
        return None

    async def _settle(
        self, sink: ResponseSink, progress: Progress, outcome: Refusal | None, detail: str | None
    ) -> Refusal | None:
        """Settles and tells how; a refusal of what may not be told as a success."""
        refusal = await self._settler.settle(progress, None if outcome is None else outcome.outcome, detail)
        await sink.tell(Settled(progress.receipt, outcome or refusal))
        return refusal

    async def _serve_whole(self, asking: Asking, sink: ResponseSink, progress: Progress) -> None:
        result: Result = DEADLINE
        with trio.CancelScope(deadline=progress.began_s + asking.deadline_ms / 1000) as budget:

            def end_by(deadline_s: float) -> None:
                budget.deadline = min(budget.deadline, deadline_s)

            result = await self._attempt(asking, progress, None, end_by)
        if result is DEADLINE:
            result = progress.voided or progress.outlived or DEADLINE
        match result:
            case Whole():
                progress.engine_refused = result.status >= 400
                await self._keeper.keep(asking, progress, answer_of(result))
                refusal = await self._settle(sink, progress, None, detail_of(result))
                if refusal is None:
                    await tell_whole(result, sink, progress)
                else:
                    await refuse(refusal, sink, progress)
            case Refusal():
                await self._settle(sink, progress, result, detail_of(result, progress))
                await refuse(result, sink, progress)
            case Streamed() | Broken():
                raise AssertionError(type(result))
            case _:
                assert_never(result)

    async def _serve_stream(self, request: RequestId, asking: Asking, sink: ResponseSink, progress: Progress) -> None:
        recorded: RecordingSink | None = None
        if retained_ms(asking) is not None:
            sink = recorded = RecordingSink(sink, self._settings.answer_bytes_max)
        keepalive_s = math.inf if asking.head.bare else self._settings.keepalive_ms / 1000
        outlet = Outlet(sink, keepalive_s=keepalive_s, headers=lambda: timings(progress))
        result: Result = DEADLINE
        async with trio.open_nursery() as nursery:
            budget = trio.CancelScope()
            nursery.start_soon(outlet.keep, budget, progress.began_s + asking.deadline_ms / 1000)
            with budget:
                result = await self._attempt(asking, progress, outlet, outlet.end_by)
            await outlet.stop(nursery.cancel_scope)
        if result is DEADLINE:
            result = progress.voided or progress.outlived or DEADLINE
        match result:
            case Streamed(last=last):
                whole = None if recorded is None else recorded.answer(last)
                if whole is not None:
                    await self._keeper.keep(asking, progress, whole)
                refusal = await self._settle(sink, progress, None, None)
                if refusal is not None:
                    await fail_stream(refusal, sink, progress, request)
                    return
                progress.status = 200
                await outlet.write(last)
                await outlet.end()
            case Whole():
                progress.engine_refused = result.status >= 400
                await self._keeper.keep(asking, progress, answer_of(result))
                refusal = await self._settle(sink, progress, None, detail_of(result))
                if refusal is None:
                    await tell_whole(result, sink, progress)
                else:
                    await fail_stream(refusal, sink, progress, request)
            case Broken(reason=reason):
                await self._settle(sink, progress, ENGINE_FAILED, reason)
                await fail_stream(ENGINE_FAILED, sink, progress, request)
            case Refusal():
                await self._settle(sink, progress, result, detail_of(result, progress))
                await fail_stream(result, sink, progress, request)
            case _:
                assert_never(result)

    async def _attempt(
        self,
        asking: Asking,
        progress: Progress,
        outlet: Outlet | None,
        end_by: Callable[[float], None],
    ) -> Result:
        def on_void(refusal: Refusal) -> None:
            progress.voided = refusal
            end_by(trio.current_time())

        def on_grant() -> None:
            runtime_ms, now_s = asking.terms.ceiling.runtime_ms, trio.current_time()
            if runtime_ms is not None and now_s + runtime_ms / 1000 < progress.began_s + asking.deadline_ms / 1000:
                progress.outlived = OUTLIVED
                end_by(now_s + runtime_ms / 1000)

        attempts = Attempts(
            dispatch=self._dispatch,
            client=self._client,
            workers=self._workers,
            settings=self._settings,
            progress=progress,
            head=asking.head,
            body=asking.body,
            outlet=outlet,
            on_void=on_void,
            on_grant=on_grant,
        )
        try:
            return await attempts.run()
        except PortUnavailable:
            return NO_KERNEL
