"""Answers that are put aside for their idempotency key, and given again.

Nothing is kept unless its caller asked for it (``RetainFor``, with a key); a store that is full, slow or broken
costs the repetition, never the answer.
"""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final, TypeVar

import structlog
import trio

from lunanexa_apps.controller.gateway.asking import Asking
from lunanexa_apps.controller.gateway.outlet import EVENT_STREAM, stream_headers
from lunanexa_apps.controller.gateway.progress import Progress
from lunanexa_apps.controller.gateway.relay import Whole
from lunanexa_apps.controller.gateway.telling import WORKLOAD_HEADER
from lunanexa_core.admission.idempotency import output_gone
from lunanexa_core.binding import BUSY
from lunanexa_core.ids import WorkloadId
from lunanexa_core.openai.stream import KEEPALIVE
from lunanexa_core.outcomes import Outcome, Refusal
from lunanexa_core.terms import RetainFor
from lunanexa_ports.answers import Answer, Answers
from lunanexa_ports.clock import Clock
from lunanexa_ports.dispatch import Repeated
from lunanexa_ports.errors import PortError, PortUnavailable
from lunanexa_ports.gateway import Accepted, News, ResponseSink, Settled

REPLAYED_HEADER: Final = "x-lunanexa-replayed"
NOT_NOW: Final = Refusal(
    outcome=Outcome.STORE_UNAVAILABLE, message="The answer that was kept can't be read at the moment."
)
_SWEEP_S: Final = 60.0

T = TypeVar("T")


class Keeper:
    """Keeps and gives answers of one gateway. What is asked of the store has a task of its own, because its answer
    can't be cancelled and may come late."""

    def __init__(self, answers: Answers, clock: Clock, *, wait_ms: int) -> None:
        self._answers = answers
        self._clock = clock
        self._wait_s = wait_ms / 1000
        self._nursery: trio.Nursery | None = None
        self._log = structlog.get_logger("lunanexa.gateway")

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serves, and removes what has expired once a minute, until it is cancelled."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            task_status.started()
            try:
                while True:
                    try:
                        await self._answers.remove_expired(self._clock.now().wall_ms)
                    except PortError as error:
                        self._log.warning("answers_not_removed", problem=str(error))
                    await trio.sleep(_SWEEP_S)
            finally:
                self._nursery = None

    async def keep(self, asking: Asking, progress: Progress, answer: Answer) -> None:
        """Puts an answer aside where its caller asked for that; ``progress`` knows then whether it was. To be called
        before it is settled."""
        retain_ms = retained_ms(asking)
        if retain_ms is None or answer.status in BUSY:
            return
        now_wall_ms = self._clock.now().wall_ms
        put = partial(
            self._answers.put,
            progress.workload,
            answer,
            now_wall_ms=now_wall_ms,
            expires_wall_ms=now_wall_ms + retain_ms,
        )
        progress.kept = await self._in_time(put, "answer_not_kept", progress.workload) is True

    async def give(self, repeated: Repeated, sink: ResponseSink, progress: Progress) -> Refusal | None:
        """Gives a kept answer again; a refusal when it is gone, or can't be read now."""
        workload = repeated.record.receipt.workload
        get = partial(self._answers.get, workload, self._clock.now().wall_ms)
        answer = await self._in_time(get, "answer_not_read", workload)
        if isinstance(answer, PortUnavailable):
            return NOT_NOW
        if answer is None or isinstance(answer, PortError):
            return output_gone(workload, repeated.record)
        progress.replayed = True
        progress.status = answer.status
        await sink.tell(Accepted(workload=workload, place=0, replayed=True))
        await sink.tell(Settled(repeated.record, None))
        own = ((WORKLOAD_HEADER, workload), (REPLAYED_HEADER, "true"))
        await sink.begin(answer.status, (*_head(answer), *own))
        if answer.body:
            await sink.write(answer.body)
        await sink.end()
        return None

    async def _in_time(self, ask: Callable[[], Awaitable[T]], failure: str, workload: WorkloadId) -> T | PortError:
        """What the store answers, or how it failed; nobody waits for it longer than for a receipt."""
        found: list[T | PortError] = []
        done = trio.Event()

        async def work() -> None:
            try:
                found.append(await ask())
            except PortError as error:
                self._log.warning(failure, workload_id=workload, problem=str(error))
                found.append(error)
            finally:
                done.set()

        if self._nursery is not None:
            self._nursery.start_soon(work)
            with trio.move_on_after(self._wait_s):
                await done.wait()
        return found[0] if found else PortUnavailable("the store of answers takes too long")


class RecordingSink(ResponseSink):
    """Passes everything on, and remembers the body of a stream without our own comments, within ``bytes_max``."""

    def __init__(self, sink: ResponseSink, bytes_max: int) -> None:
        self._sink = sink
        self._left = bytes_max
        self._parts: list[bytes] = []
        self._content_type = ""

    @property
    def begun(self) -> bool:
        return self._sink.begun

    @property
    def closed_because(self) -> str | None:
        return self._sink.closed_because

    async def begin(self, status: int, headers: Sequence[tuple[str, str]]) -> None:
        self._content_type = next((value for name, value in headers if name == "content-type"), "")
        await self._sink.begin(status, headers)

    async def write(self, data: bytes) -> None:
        if data != KEEPALIVE and self._left >= 0:
            self._left -= len(data)
            self._parts.append(data)
            if self._left < 0:
                self._parts.clear()
        await self._sink.write(data)

    async def end(self, *, whole: bool = True) -> None:
        await self._sink.end(whole=whole)

    async def refuse(self, refusal: Refusal, headers: Sequence[tuple[str, str]] = ()) -> None:
        await self._sink.refuse(refusal, headers)

    async def tell(self, news: News) -> None:
        await self._sink.tell(news)

    def answer(self, last: bytes) -> Answer | None:
        """The whole stream, with its last frames, which are still to be sent; ``None`` when it was too long."""
        if self._left < len(last):
            return None
        return Answer(status=200, content_type=self._content_type, body=b"".join((*self._parts, last)))


def answer_of(result: Whole) -> Answer:
    """What an engine told in one piece."""
    return Answer(status=result.status, content_type=result.content_type, body=result.body)


def retained_ms(asking: Asking) -> int | None:
    """For how long the answer may be kept; without a key that asks for it again there is nothing to keep it for."""
    retention = asking.terms.data.retention
    if asking.terms.idempotency_key is None or not isinstance(retention, RetainFor):
        return None
    return retention.ms


def _head(answer: Answer) -> Sequence[tuple[str, str]]:
    if answer.content_type.startswith(EVENT_STREAM):
        return stream_headers(answer.content_type)
    return (("content-type", answer.content_type), ("content-length", str(len(answer.body))))
