"""A submission's answer: what the gateway would send as a dialect's bytes, put into frames and one response."""

from collections.abc import Sequence
from typing import Final

from lunanexa_core.contract.response import Output, WorkloadResponse
from lunanexa_core.ids import RequestId, WorkloadId
from lunanexa_core.outcomes import Outcome, Refusal
from lunanexa_core.sse import SseSplitter, data_of
from lunanexa_ports.gateway import Accepted, News, ResponseSink, Settled, WorkloadSink

EVENT_STREAM: Final = "text/event-stream"
_DONE: Final = b"[DONE]"


class SubmissionSink(ResponseSink):
    """Stands where a client of a dialect would. Events pass as they come; a whole answer is kept for the response."""

    def __init__(self, sink: WorkloadSink, request: RequestId, event_bytes_max: int) -> None:
        self._sink = sink
        self._request = request
        self._splitter = SseSplitter(event_bytes_max)
        self._status = 0
        self._content_type = ""
        self._parts: list[bytes] = []
        self._workload: WorkloadId | None = None
        self._settled = Settled(None, None)

    @property
    def begun(self) -> bool:
        return self._status != 0

    @property
    def closed_because(self) -> str | None:
        return self._sink.closed_because

    async def begin(self, status: int, headers: Sequence[tuple[str, str]]) -> None:
        self._status = status
        self._content_type = next((value for name, value in headers if name == "content-type"), "")

    async def write(self, data: bytes) -> None:
        if not self._content_type.startswith(EVENT_STREAM):
            self._parts.append(data)
            return
        for event in self._splitter.feed(data):
            found = data_of(event)
            if found is None:
                await self._sink.silence()
            elif found.strip() != _DONE and self._error() is None:
                # What follows an error that is known is its frame in the words of the dialect.
                await self._sink.event(found)

    async def end(self, *, whole: bool = True) -> None:
        error = self._error()
        response = self._response(error)
        assert response is not None, "an answer without an admission"
        if error is None:
            await self._sink.completed(response)
        else:
            await self._sink.failed(error, response)

    async def refuse(self, refusal: Refusal, headers: Sequence[tuple[str, str]] = ()) -> None:
        await self._sink.failed(refusal, self._response(refusal))

    async def tell(self, news: News) -> None:
        match news:
            case Accepted():
                self._workload = news.workload
                await self._sink.accepted(news)
            case Settled():
                self._settled = news

    def _error(self) -> Refusal | None:
        """What the answer failed by, as far as it is known; the engine's own refusal is one."""
        if self._settled.refusal is not None:
            return self._settled.refusal
        record = self._settled.receipt
        status = self._status if self._status >= 400 else record and record.receipt.engine_refusal
        if status is None:
            return None
        return Refusal(
            outcome=Outcome.INVALID_REQUEST, message=f"The model server refused the request with status {status}."
        )

    def _response(self, error: Refusal | None) -> WorkloadResponse | None:
        if self._workload is None:
            return None
        output = Output(content_type=self._content_type, body=b"".join(self._parts)) if self._parts else None
        return WorkloadResponse(
            workload=self._workload,
            request=self._request,
            output=output,
            error=error,
            receipt=self._settled.receipt,
        )
