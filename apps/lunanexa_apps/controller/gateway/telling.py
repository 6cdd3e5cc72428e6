"""How results are told to the client: a whole answer, a refusal, or an error frame in a stream that has begun."""

from collections.abc import Mapping
from typing import Any, Final

from lunanexa_apps.controller.gateway.progress import Progress
from lunanexa_apps.controller.gateway.relay import Whole
from lunanexa_core.allowance import limit_headers
from lunanexa_core.ids import RequestId
from lunanexa_core.openai.answer_rules import answer_rules
from lunanexa_core.openai.response import document
from lunanexa_core.outcomes import Outcome, Refusal, error_document
from lunanexa_ports.gateway import ResponseSink

WORKLOAD_HEADER: Final = "x-lunanexa-workload-id"
QUEUE_HEADER: Final = "x-lunanexa-queue-ms"
OVERHEAD_HEADER: Final = "x-lunanexa-overhead-ms"
_RETRIED_STATUS: Final = frozenset((408, 429))
_BUSY_AFTER_MS: Final = 1_000

Headers = tuple[tuple[str, str], ...]


def timings(progress: Progress) -> Headers:
    """What our headers say of an admitted request, as far as it is known."""
    overhead_s = progress.overhead_s
    overhead = () if overhead_s is None else ((OVERHEAD_HEADER, f"{overhead_s * 1000:.1f}"),)
    told = ((WORKLOAD_HEADER, progress.workload), (QUEUE_HEADER, str(progress.queue_ms)), *overhead)
    return (*told, *limit_headers(progress.allowances))


async def refuse(refusal: Refusal, sink: ResponseSink, progress: Progress) -> None:
    """A whole error answer."""
    if progress.settlement is None:
        progress.outcome = refusal.outcome
    progress.status = refusal.row.http_status
    headers = () if progress.admitted_s is None else ((WORKLOAD_HEADER, progress.workload),)
    await sink.refuse(refusal, (*headers, *limit_headers(progress.allowances)))


async def fail_stream(refusal: Refusal, sink: ResponseSink, progress: Progress, request: RequestId) -> None:
    """An error answer, or, where the stream has begun, a frame of its dialect and the end, without ``[DONE]``."""
    if not sink.begun:
        await refuse(refusal, sink, progress)
        return
    progress.status = 200
    assert progress.head is not None
    if progress.head.bare:
        await sink.end(whole=False)
        return
    await sink.write(_frame(error_document(refusal, request), progress))
    await sink.end()


async def tell_whole(result: Whole, sink: ResponseSink, progress: Progress) -> None:
    """The engine's own answer; its refusal comes as a frame where a keepalive has fixed the status."""
    if sink.begun:
        progress.status = 200
        await sink.write(_frame(_error_of(result), progress))
        await sink.end()
        return
    progress.status = result.status
    headers: Headers = (("content-type", result.content_type), ("content-length", str(len(result.body))))
    if result.status >= 400:
        retried = result.status in _RETRIED_STATUS
        headers += (("x-should-retry", "true" if retried else "false"),)
        if result.status == 429:
            headers += (("retry-after", str(_BUSY_AFTER_MS // 1000)), ("retry-after-ms", str(_BUSY_AFTER_MS)))
    await sink.begin(result.status, (*headers, *timings(progress)))
    if result.body:
        await sink.write(result.body)
    await sink.end()


def detail_of(result: Whole | Refusal, progress: Progress | None = None) -> str | None:
    """The short reason for operators."""
    match result:
        case Whole(status=status):
            return f"engine_refused_{status}" if status >= 400 else None
        case Refusal(outcome=Outcome.ENGINE_FAILED):
            assert progress is not None
            return next((attempt.failure for attempt in reversed(progress.attempts) if attempt.failure), None)
        case Refusal(outcome=Outcome.INVALID_API_KEY):
            return "key_revoked"
        case Refusal(outcome=Outcome.CANCELLED_BY_CALLER):
            return "cancelled"
        case Refusal():
            return None


def _frame(found: Mapping[str, Any], progress: Progress) -> bytes:
    assert progress.head is not None
    reader = progress.reader or answer_rules(progress.head.dialect).reader(1)
    return reader.error_frame(found["error"])


def _error_of(result: Whole) -> Mapping[str, Any]:
    found = document(result.body)
    if found is not None and isinstance(found.get("error"), dict):
        return found
    fallback = Refusal(
        outcome=Outcome.INVALID_REQUEST, message=f"The model server refused the request with status {result.status}."
    )
    return error_document(fallback, "")
