"""One workload on a WebSocket connection, as its caller holds it."""

from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Final, Self, TypeAlias

import trio

from lunanexa_client.answers import usage_of
from lunanexa_client.errors import LunaNexaError, ProtocolError, WorkloadCancelled
from lunanexa_client.refusals import error_of
from lunanexa_core.contract.frames import (
    CREDITS,
    Accepted,
    Cancel,
    Cancelled,
    ClientFrame,
    Completed,
    Credit,
    Event,
    Failed,
    Resume,
)
from lunanexa_core.workload import Usage

GRANT_EVENTS: Final = CREDITS // 4
"""Consumed events are granted anew in lots: one frame for so many."""

WorkloadFrame: TypeAlias = Accepted | Event | Completed | Failed | Cancelled


class WorkloadHandle:
    """An async iterator of the output: the ``data`` of each event, once, in order and without a gap, also over a
    dropped connection where the workload is resumable.

    What is not read is held, :data:`~lunanexa_core.contract.frames.CREDITS` events at most; the server waits
    then, and so does the engine behind it. Iteration ends with the workload, and raises what it failed with."""

    def __init__(self, frame_id: str, send: Callable[[ClientFrame], Awaitable[None]]) -> None:
        self.id = frame_id
        self.usage: Usage | None = None
        self._send = send
        self._accepted: Accepted | None = None
        self._events: deque[Event] = deque()
        self._consumed_seq = 0
        self._received_seq = 0
        self._ungranted = 0
        self._cancelling = False
        self._end: Completed | Cancelled | LunaNexaError | None = None
        self._news = trio.lowlevel.ParkingLot()

    @property
    def workload_id(self) -> str | None:
        """``None`` until it is accepted."""
        return None if self._accepted is None else self._accepted.workload_id

    @property
    def queue_position(self) -> int | None:
        """Its place when it was accepted."""
        return None if self._accepted is None else self._accepted.queue_position

    @property
    def replayed(self) -> bool:
        """Whether, as far as it is accepted, an answer that was kept for its idempotency key is given again."""
        return self._accepted is not None and self._accepted.replayed

    @property
    def ended(self) -> bool:
        """Whether its last frame has come; events may still be there to be read."""
        return self._end is not None

    async def accepted(self) -> str:
        """Waits until it is admitted, and returns its identifier. Raises the refusal."""
        await self._until(lambda: self._accepted is not None or self._end is not None)
        if self._accepted is None and isinstance(self._end, LunaNexaError):
            raise self._end
        return self.workload_id or ""

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        await self._until(lambda: bool(self._events) or self._end is not None)
        if not self._events:
            self._raise_failure()
            raise StopAsyncIteration
        event = self._events.popleft()
        self._consumed_seq = event.seq
        self._ungranted += 1
        self.usage = usage_of(event.data) or self.usage
        if self._ungranted >= GRANT_EVENTS and self._end is None:
            granted, self._ungranted = self._ungranted, 0
            await self._send(Credit(self.id, granted))
        return event.data

    async def result(self) -> dict[str, Any]:
        """Waits for the end, passing over events that were not read, and returns the response."""
        async for _ in self:
            pass
        assert isinstance(self._end, Completed)
        return self._end.response

    async def cancel(self) -> dict[str, Any] | None:
        """Ends it and waits for the end. The receipt, where it was cancelled and that is durable already."""
        if self._end is None:
            self._cancelling = True
            await self._send(Cancel(self.id))
            await self._until(lambda: self._end is not None)
        return self._end.receipt if isinstance(self._end, Cancelled) else None

    def take(self, frame: WorkloadFrame) -> None:
        """What the server says of this workload. Raises :class:`ProtocolError` when it can't be so."""
        match frame:
            case Accepted():
                self._accepted = frame
            case Event():
                self._take_event(frame)
            case Completed():
                self._expect(frame.seq)
                self.usage = usage_of(frame.response) or self.usage
                self._end = frame
            case Failed():
                self._end = error_of({"workload_id": self.workload_id} | frame.error)
            case Cancelled():
                self._end = frame
        self._news.unpark_all()

    def fail(self, error: LunaNexaError) -> None:
        """It ends without a frame of its own."""
        if self._end is None:
            self._end = error
            self._news.unpark_all()

    @property
    def resumable(self) -> bool:
        """Whether it can go on after its connection broke."""
        return self._accepted is not None and self._accepted.resume_token is not None and self._end is None

    def resume(self) -> list[ClientFrame]:
        """What to say on a new connection: on from the first event that was not read. What was received and not
        read comes again, so that no more is held than the credits allow."""
        assert self._accepted is not None
        assert self._accepted.resume_token is not None
        self._events.clear()
        self._received_seq = self._consumed_seq
        self._ungranted = 0
        said: list[ClientFrame] = [Resume(self.id, self._consumed_seq, self._accepted.resume_token)]
        return [*said, Cancel(self.id)] if self._cancelling else said

    def _take_event(self, event: Event) -> None:
        self._expect(event.seq)
        if len(self._events) >= CREDITS:
            raise ProtocolError("more events came than were granted")
        self._received_seq = event.seq
        self._events.append(event)

    def _expect(self, seq: int) -> None:
        if seq != self._received_seq + 1:
            raise ProtocolError(f"event {self._received_seq + 1} is missing: {seq} came")

    def _raise_failure(self) -> None:
        match self._end:
            case LunaNexaError():
                raise self._end
            case Cancelled(receipt=receipt):
                raise error_of(
                    {
                        "code": WorkloadCancelled.default_code,
                        "message": "the workload was cancelled",
                        "workload_id": self.workload_id,
                        "receipt": receipt,
                    }
                )
            case Completed() | None:
                return

    async def _until(self, condition: Callable[[], bool]) -> None:
        await trio.lowlevel.checkpoint()
        while not condition():
            await self._news.park()
