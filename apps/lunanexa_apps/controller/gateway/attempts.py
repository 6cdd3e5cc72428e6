"""The attempts of one admitted request: a replica is granted, asked, and at most once another one after it.

The second attempt begins only when the first's socket is closed, and never after an output byte. Nothing of
the client's own headers reaches an engine; the engine's key is ours.
"""

from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias

import trio

from lunanexa_apps.controller.gateway.outlet import Outlet
from lunanexa_apps.controller.gateway.progress import Progress
from lunanexa_apps.controller.gateway.relay import (
    Broken,
    Failed,
    Relayed,
    Streamed,
    Whole,
    relay_assembled,
    relay_bytes,
    relay_refusal,
    relay_stream,
    relay_whole,
)
from lunanexa_apps.controller.gateway.settings import GatewaySettings
from lunanexa_core.drivers.catalog import DRIVERS
from lunanexa_core.drivers.driver import Capabilities
from lunanexa_core.ids import StartId
from lunanexa_core.openai.answer_rules import answer_rules
from lunanexa_core.openai.head import RequestHead, splice_request
from lunanexa_core.openai.request_rules import request_rules
from lunanexa_core.outcomes import Outcome, Refusal
from lunanexa_core.workload import Attempt
from lunanexa_ports.dispatch import Dispatch, Grant, QueuePlace, Watch
from lunanexa_ports.http_client import Headers, HttpBroken, HttpClient, HttpRequest, HttpResponse, HttpUnreachable
from lunanexa_ports.workers import Workers

ATTEMPTS_MAX: Final = 2
ENGINE_FAILED: Final = Refusal(
    outcome=Outcome.ENGINE_FAILED, message="The model server failed while it worked on this request."
)

Result: TypeAlias = Whole | Streamed | Broken | Refusal


class Attempts:
    """Runs the attempts of one request. ``outlet`` is there for streams; ``on_void`` must cancel the run; ``on_grant``
    is told of the first replica that is granted."""

    def __init__(
        self,
        *,
        dispatch: Dispatch,
        client: HttpClient,
        workers: Workers,
        settings: GatewaySettings,
        progress: Progress,
        head: RequestHead,
        body: bytes,
        outlet: Outlet | None,
        on_void: Callable[[Refusal], None],
        on_grant: Callable[[], None],
    ) -> None:
        self._dispatch = dispatch
        self._client = client
        self._workers = workers
        self._settings = settings
        self._progress = progress
        self._head = head
        self._body = body
        self._outlet = outlet
        self._on_void = on_void
        self._on_grant = on_grant
        self._severed: dict[StartId, str] = {}
        self._exchange_scope = trio.CancelScope()

    async def run(self) -> Result:
        """What became of the request. Cancellable anywhere: the engine's socket closes at once."""
        async with self._dispatch.watch(self._progress.workload) as watch:
            watch.on_void(self._on_void)
            watch.on_severed(self._sever)
            self._progress.on_stream = watch.output_began
            while True:
                grant = await self._granted(watch)
                if isinstance(grant, Refusal):
                    # That there is no other replica is no news to a caller whose engine failed.
                    return ENGINE_FAILED if self._progress.attempts else grant
                if not self._progress.attempts:
                    self._on_grant()
                relayed = await self._ask(grant)
                attempt = Attempt(start=grant.start)
                match relayed:
                    case Failed(reason=reason, status=status):
                        attempt = Attempt(start=grant.start, failure=reason, status=status)
                        self._progress.gave_up(attempt)
                        if len(self._progress.attempts) >= ATTEMPTS_MAX:
                            return ENGINE_FAILED
                        await self._dispatch.attempt_failed(self._progress.workload, attempt)
                    case Broken(reason=reason):
                        self._progress.concluded(Attempt(start=grant.start, failure=reason, status=200))
                        return relayed
                    case Whole(status=status):
                        self._progress.concluded(Attempt(start=grant.start, status=status))
                        return relayed
                    case Streamed():
                        self._progress.concluded(Attempt(start=grant.start, status=200))
                        return relayed

    def _sever(self, start: StartId, failure: str) -> None:
        self._severed[start] = failure
        if self._progress.asking != start:
            return
        if self._outlet is None:
            self._exchange_scope.cancel(reason=failure)
        else:
            self._outlet.sever(self._exchange_scope)

    async def _granted(self, watch: Watch) -> Grant | Refusal:
        began_s = trio.current_time()
        while isinstance(event := await watch.next(), QueuePlace):
            pass
        if isinstance(event, Grant):
            self._progress.granted(event, trio.current_time() - began_s)
        return event

    async def _ask(self, grant: Grant) -> Relayed:
        capabilities = DRIVERS[grant.driver].capabilities
        usage = self._head.stream or _by_stream(self._head, capabilities)
        relayed, refused = await self._exchange(grant, capabilities, include_usage=usage)
        forced = usage and not self._head.include_usage and not capabilities.usage_in_stream
        if refused in (400, 422) and forced:
            # It may not know stream_options, which the caller did not send: once more without.
            relayed, _ = await self._exchange(grant, capabilities, include_usage=False)
        return relayed

    async def _exchange(
        self, grant: Grant, capabilities: Capabilities, *, include_usage: bool
    ) -> tuple[Relayed, int | None]:
        """What became of one exchange, and the status where it was no 2xx."""
        head, progress, settings = self._head, self._progress, self._settings
        by_stream = _by_stream(head, capabilities)
        streams = head.stream or by_stream
        body = splice_request(
            head, self._body, served_name=grant.served_name, include_usage=include_usage, stream=streams
        )
        request = HttpRequest(
            method="POST",
            host=grant.host,
            port=grant.port,
            target=head.dialect.path,
            headers=_headers(grant, progress, head, streams=streams),
            more=body,
            connect_timeout_ms=settings.connect_ms,
            tls=grant.tls,
        )

        async def relay(response: HttpResponse) -> Relayed:
            if self._outlet is not None:
                passed_on = relay_stream if head.stream else relay_bytes
                return await passed_on(response, head, progress, settings, self._outlet)
            if by_stream:
                return await relay_assembled(response, head, progress, settings, self._workers)
            return await relay_whole(response, head, progress, settings)

        # A departure that was noticed on the way here is not booked as work of an engine.
        await trio.lowlevel.checkpoint_if_cancelled()
        if grant.start in self._severed:
            return Failed(self._severed[grant.start]), None
        progress.asked(grant.start)
        with trio.CancelScope() as self._exchange_scope:
            return await self._relay(request, relay)
        failure = self._severed[grant.start]
        return Broken(failure) if progress.passed_on else Failed(failure), None

    async def _relay(
        self, request: HttpRequest, relay: Callable[[HttpResponse], Awaitable[Relayed]]
    ) -> tuple[Relayed, int | None]:
        try:
            async with self._client.exchange(request) as response:
                if 200 <= response.status < 300:
                    return await relay(response), None
                self._progress.reader = None
                return await relay_refusal(response), response.status
        except HttpUnreachable:
            return Failed("engine_unreachable"), None
        except HttpBroken:
            return Failed("engine_cut"), None


def _by_stream(head: RequestHead, capabilities: Capabilities) -> bool:
    """Whether a call without ``stream`` is asked for as one, because the engine would miss its departure.
    Only where usage comes with a stream: else the answer would lose the engine's own count."""
    missed = not capabilities.unary_departure_seen and capabilities.usage_in_stream
    return missed and not head.stream and answer_rules(head.dialect).assemble is not None


def _headers(grant: Grant, progress: Progress, head: RequestHead, *, streams: bool) -> Headers:
    headers = (
        (b"content-type", head.content_type.encode()),
        (b"accept", b"text/event-stream" if streams else request_rules(head.dialect).accept.encode()),
        (b"accept-encoding", b"identity"),
        (b"x-request-id", progress.workload.encode()),
    )
    if grant.engine_key is None:
        return headers
    return (*headers, (b"authorization", b"Bearer " + grant.engine_key.encode()))
