"""The gateway: admits a call, relays an engine's answer, and settles it, whatever happens on the way.

Every exit of :meth:`Gateway.infer` passes one guard. What may have been admitted is settled there, in a
shielded and timed cleanup, if nothing settled it before: a client that left, a deadline, a bug.
"""

import math
from collections.abc import Callable
from typing import Final, assert_never

import trio

from lunanexa_apps.controller.gateway.asking import NO_KEY, Asking, read_call
from lunanexa_apps.controller.gateway.attempts import ENGINE_FAILED, Attempts, Result
from lunanexa_apps.controller.gateway.outlet import Outlet
from lunanexa_apps.controller.gateway.progress import Progress
from lunanexa_apps.controller.gateway.relay import Broken, Streamed, Whole
from lunanexa_apps.controller.gateway.report import Reporter
from lunanexa_apps.controller.gateway.session import run_gateway_session
from lunanexa_apps.controller.gateway.settings import GatewaySettings
from lunanexa_apps.controller.gateway.settling import NO_KERNEL, Settler
from lunanexa_apps.controller.gateway.telling import detail_of, fail_stream, refuse, tell_whole, timings
from lunanexa_core.ids import Alias, SessionId, WorkloadId
from lunanexa_core.keys import secret_digest
from lunanexa_core.openai.request import reserved_tokens
from lunanexa_core.outcomes import TABLE, Outcome, Refusal
from lunanexa_core.workload import WorkloadRequest
from lunanexa_ports.clock import Clock
from lunanexa_ports.dispatch import Dispatch, ModelCard
from lunanexa_ports.errors import PortUnavailable
from lunanexa_ports.gateway import InferenceCall, InferenceGateway, ResponseSink
from lunanexa_ports.http_client import HttpClient
from lunanexa_ports.ids import IdSource
from lunanexa_ports.metrics import Metrics
from lunanexa_ports.workers import Workers

DEADLINE: Final = Refusal(
    outcome=Outcome.DEADLINE_EXCEEDED, message="The request's deadline passed before it was answered."
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

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Holds the gateway's session and delivers its settlements; serving is possible from ``started`` on.
        Never returns. To be cancelled after the last request has ended."""
        async with trio.open_nursery() as nursery:
            await nursery.start(self._settler.run)
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

    async def infer(self, call: InferenceCall, sink: ResponseSink) -> None:
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
            self._reporter.ended(call.request, call.dialect, progress)

    async def _answer(self, call: InferenceCall, sink: ResponseSink, progress: Progress) -> None:
        asking = await read_call(call, self._settings, self._workers)
        if isinstance(asking, Refusal):
            await refuse(asking, sink, progress)
            return
        progress.head = asking.head
        refusal = await self._admit(call, asking, progress)
        if refusal is not None:
            await refuse(refusal, sink, progress)
        elif asking.head.stream:
            await self._serve_stream(call, asking, sink, progress)
        else:
            await self._serve_whole(call, asking, sink, progress)

    async def _admit(self, call: InferenceCall, asking: Asking, progress: Progress) -> Refusal | None:
        progress.owed = True
        try:
            admitted = await self._dispatch.admit(
                WorkloadRequest(
                    workload=progress.workload,
                    request=call.request,
                    session=self._session,
                    key_digest=secret_digest(asking.api_key),
                    alias=Alias(asking.head.model),
                    dialect=call.dialect,
                    stream=asking.head.stream,
                    body_digest=asking.body_digest,
                    body_bytes=len(call.body),
                    reserved_tokens=reserved_tokens(asking.head, self._settings.default_output_tokens),
                    priority=asking.priority,
                    deadline_ms=asking.deadline_ms,
                )
            )
        except PortUnavailable:
            progress.owed = False
            return NO_KERNEL
        if isinstance(admitted, Refusal):
            progress.owed = False
            progress.allowances = admitted.allowances
            return admitted
        progress.admitted_s = trio.current_time()
        progress.allowances = admitted.allowances
        return None

    async def _serve_whole(self, call: InferenceCall, asking: Asking, sink: ResponseSink, progress: Progress) -> None:
        result: Result = DEADLINE
        with trio.CancelScope(deadline=progress.began_s + asking.deadline_ms / 1000) as budget:
            result = await self._attempt(call, asking, progress, None, budget.cancel)
        if result is DEADLINE and progress.voided is not None:
            result = progress.voided
        match result:
            case Whole():
                progress.engine_refused = result.status >= 400
                refusal = await self._settler.settle(progress, None, detail_of(result))
                if refusal is None:
                    await tell_whole(result, sink, progress)
                else:
                    await refuse(refusal, sink, progress)
            case Refusal():
                await self._settler.settle(progress, result.outcome, detail_of(result, progress))
                await refuse(result, sink, progress)
            case Streamed() | Broken():
                raise AssertionError(type(result))
            case _:
                assert_never(result)

    async def _serve_stream(self, call: InferenceCall, asking: Asking, sink: ResponseSink, progress: Progress) -> None:
        outlet = Outlet(sink, keepalive_s=self._settings.keepalive_ms / 1000, headers=lambda: timings(progress))
        result: Result = DEADLINE
        async with trio.open_nursery() as nursery:
            budget = trio.CancelScope()
            nursery.start_soon(outlet.keep, budget, progress.began_s + asking.deadline_ms / 1000)
            with budget:
                result = await self._attempt(call, asking, progress, outlet, outlet.cut)
            await outlet.stop(nursery.cancel_scope)
        if result is DEADLINE and progress.voided is not None:
            result = progress.voided
        match result:
            case Streamed(last=last):
                refusal = await self._settler.settle(progress, None, None)
                if refusal is not None:
                    await fail_stream(refusal, sink, progress, call.request)
                    return
                progress.status = 200
                await outlet.write(last)
                await outlet.end()
            case Whole():
                progress.engine_refused = result.status >= 400
                refusal = await self._settler.settle(progress, None, detail_of(result))
                if refusal is None:
                    await tell_whole(result, sink, progress)
                else:
                    await fail_stream(refusal, sink, progress, call.request)
            case Broken(reason=reason):
                await self._settler.settle(progress, ENGINE_FAILED.outcome, reason)
                await fail_stream(ENGINE_FAILED, sink, progress, call.request)
            case Refusal():
                await self._settler.settle(progress, result.outcome, detail_of(result, progress))
                await fail_stream(result, sink, progress, call.request)
            case _:
                assert_never(result)

    async def _attempt(
        self,
        call: InferenceCall,
        asking: Asking,
        progress: Progress,
        outlet: Outlet | None,
        cut: Callable[[], None],
    ) -> Result:
        def on_void(refusal: Refusal) -> None:
            progress.voided = refusal
            cut()

        attempts = Attempts(
            dispatch=self._dispatch,
            client=self._client,
            workers=self._workers,
            settings=self._settings,
            progress=progress,
            head=asking.head,
            body=call.body,
            outlet=outlet,
            on_void=on_void,
        )
        try:
            return await attempts.run()
        except PortUnavailable:
            return NO_KERNEL
