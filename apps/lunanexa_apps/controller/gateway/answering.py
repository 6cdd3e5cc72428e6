"""The answer to one admitted call: attempts at engines, the receipt, and the last bytes, which wait for it."""

import math
from collections.abc import Callable
from typing import Final, assert_never

import trio

from lunanexa_apps.controller.gateway.admitting import DEADLINE
from lunanexa_apps.controller.gateway.asking import Asking
from lunanexa_apps.controller.gateway.attempts import ENGINE_FAILED, Attempts, Result
from lunanexa_apps.controller.gateway.keeping import Keeper, RecordingSink, answer_of, retained_ms
from lunanexa_apps.controller.gateway.outlet import Outlet
from lunanexa_apps.controller.gateway.progress import Progress
from lunanexa_apps.controller.gateway.relay import Broken, Streamed, Whole
from lunanexa_apps.controller.gateway.settings import GatewaySettings
from lunanexa_apps.controller.gateway.settling import NO_KERNEL, Settler
from lunanexa_apps.controller.gateway.telling import detail_of, fail_stream, tell_whole, timings
from lunanexa_core.ids import RequestId
from lunanexa_core.outcomes import Outcome, Refusal
from lunanexa_ports.dispatch import Dispatch
from lunanexa_ports.errors import PortUnavailable
from lunanexa_ports.gateway import ResponseSink, Settled
from lunanexa_ports.http_client import HttpClient
from lunanexa_ports.workers import Workers

OUTLIVED: Final = Refusal(
    outcome=Outcome.DEADLINE_EXCEEDED, message="The workload ran longer than its resource_ceiling.runtime_ms."
)


class Answerer:
    """Answers calls of one gateway. Where it is left by an exception the gateway settles what is owing."""

    def __init__(
        self,
        *,
        dispatch: Dispatch,
        client: HttpClient,
        workers: Workers,
        settings: GatewaySettings,
        settler: Settler,
        keeper: Keeper,
    ) -> None:
        self._dispatch = dispatch
        self._client = client
        self._workers = workers
        self._settings = settings
        self._settler = settler
        self._keeper = keeper

    async def answer(self, request: RequestId, asking: Asking, sink: ResponseSink, progress: Progress) -> None:
        """As a stream or whole, to its end."""
        if asking.head.stream or asking.head.bare:
            await self._serve_stream(request, asking, sink, progress)
        else:
            await self._serve_whole(request, asking, sink, progress)

    async def _settle(
        self, sink: ResponseSink, progress: Progress, outcome: Refusal | None, detail: str | None
    ) -> Refusal | None:
        """Settles and tells how; a refusal of what may not be told as a success."""
        refusal = await self._settler.settle(progress, None if outcome is None else outcome.outcome, detail)
        await sink.tell(Settled(progress.receipt, outcome or refusal))
        return refusal

    async def _serve_whole(self, request: RequestId, asking: Asking, sink: ResponseSink, progress: Progress) -> None:
        result: Result = DEADLINE
        with trio.CancelScope(deadline=progress.began_s + asking.deadline_ms / 1000) as budget:

            def end_by(deadline_s: float) -> None:
                budget.deadline = min(budget.deadline, deadline_s)

            result = await self._attempt(asking, progress, None, end_by)
        if result is DEADLINE:
            result = progress.voided or progress.outlived or DEADLINE
        match result:
            case Whole() | Refusal():
                await self._conclude(result, request, asking, sink, progress)
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
            case Whole() | Refusal():
                await self._conclude(result, request, asking, sink, progress)
            case Broken(reason=reason):
                await self._settle(sink, progress, ENGINE_FAILED, reason)
                await fail_stream(ENGINE_FAILED, sink, progress, request)
            case _:
                assert_never(result)

    async def _conclude(
        self, result: Whole | Refusal, request: RequestId, asking: Asking, sink: ResponseSink, progress: Progress
    ) -> None:
        """Settles and tells what comes in one piece: an answer, or why there is none."""
        if isinstance(result, Refusal):
            await self._settle(sink, progress, result, detail_of(result, progress))
            await fail_stream(result, sink, progress, request)
            return
        progress.engine_refused = result.status >= 400
        await self._keeper.keep(asking, progress, answer_of(result))
        refusal = await self._settle(sink, progress, None, detail_of(result))
        if refusal is None:
            await tell_whole(result, sink, progress)
        else:
            await fail_stream(refusal, sink, progress, request)

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
