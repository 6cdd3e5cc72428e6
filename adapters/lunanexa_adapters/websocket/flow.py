"""One workload: what the gateway says of it, as numbered frames on whichever connection has it."""

import math
from abc import abstractmethod
from collections.abc import Callable
from typing import Final, Protocol

import trio

from lunanexa_adapters.websocket.answers import error_of
from lunanexa_adapters.websocket.log import Log
from lunanexa_adapters.websocket.pieces import Piece, completed_piece, event_piece
from lunanexa_core.contract.frame_text import write_completed, write_event, write_frame
from lunanexa_core.contract.frames import CREDITS, CREDITS_MAX, Accepted, Cancelled, Failed, JsonObject
from lunanexa_core.contract.response import WorkloadResponse, response_members
from lunanexa_core.ids import RequestId, WorkloadId
from lunanexa_core.outcomes import Refusal, WebSocketFrame
from lunanexa_ports import gateway as port

_CREDITS_HELD_MAX: Final = 16 * CREDITS_MAX


class Line(Protocol):
    """The connection, as a workload on it sees it. Nothing here waits."""

    @property
    @abstractmethod
    def has_room(self) -> bool:
        """For an event; :meth:`waits_for_room` where there is none."""

    @abstractmethod
    def put(self, text: str) -> None: ...

    @abstractmethod
    def waits_for_room(self, flow: "Flow") -> None: ...

    @abstractmethod
    def over(self, flow: "Flow", refusal: Refusal | None) -> None:
        """Its last frame was put."""

    @abstractmethod
    def give_up(self, flow: "Flow") -> None:
        """It goes on elsewhere: its client came back before anybody noticed that it had left."""

    @abstractmethod
    def slow(self) -> None:
        """The client takes too long to take what is offered."""


class Flow(port.WorkloadSink):
    """It is *attached* to one connection, or, where it is kept, to none for a while. Its task runs within ``scope``,
    which ends when nobody can come for it any more."""

    def __init__(
        self,
        *,
        request: RequestId,
        log: Log,
        issue: Callable[["Flow", WorkloadId], str | None],
        slow_ms: int,
        keep_ms: int,
    ) -> None:
        """``issue`` makes the token of a kept one; ``None``: it can't be kept."""
        self.request = request
        self.log = log
        self.scope = trio.CancelScope()
        self.keeping = trio.CancelScope()
        """The time for which it is kept after its end."""
        self.workload: WorkloadId | None = None
        self.cancelling = False
        """The client said so, and somebody sees to it."""
        self._issue = issue
        self._slow_s = slow_ms / 1000
        self._keep_s = keep_ms / 1000
        self._line: Line | None = None
        self._id = ""
        self._credits = 0
        self._last: tuple[Refusal | None, JsonObject | None] | None = None
        """How it ended, other than with ``completed``: what it failed with, or the receipt of its cancellation."""
        self._completed = False
        self._closed_because: str | None = None
        self._news = trio.lowlevel.ParkingLot()

    # --- the connection's side ---

    @property
    def ended(self) -> bool:
        """Nothing follows what is in the log."""
        return self._completed or self._last is not None

    @property
    def line(self) -> Line | None:
        return self._line

    def attach(self, line: Line, frame_id: str) -> None:
        """From now on its frames go to ``line``, under that name, with fresh credit."""
        assert self._line is None
        self._line, self._id, self._credits = line, frame_id, CREDITS
        self.scope.deadline = math.inf
        self._news.unpark_all()

    def detach(self, because: str | None = None) -> None:
        """The connection is no more. A workload whose token is out goes on for a while; any other one is cancelled."""
        self._line = None
        self._closed_because = because
        if self.cancelling:
            self._end(None, None)
        if self.log.kept and self.workload is not None and not self.cancelling:
            self.scope.deadline = min(self.scope.deadline, trio.current_time() + self._keep_s)
        else:
            self.scope.cancel(reason="the connection is gone")
        self._news.unpark_all()

    def credit(self, events: int) -> None:
        """So many more events may go."""
        self._credits = min(self._credits + events, _CREDITS_HELD_MAX)
        self.advance()

    def advance(self) -> None:
        """Puts what may go now."""
        while (line := self._line) is not None and (piece := self.log.next()) is not None:
            if piece.is_event and not self._credits:
                return
            if not line.has_room:
                line.waits_for_room(self)
                return
            seq = self.log.sent()
            if piece.is_event:
                self._credits -= 1
                line.put(write_event(self._id, seq, piece.text))
            else:
                line.put(write_completed(self._id, seq, piece.text))
            self._news.unpark_all()
        if line is None or not self.ended:
            return
        refusal = None
        if self._last is not None:
            refusal, receipt = self._last
            line.put(write_frame(self._last_frame(refusal, receipt)))
        self._line = None
        self._news.unpark_all()
        line.over(self, refusal)

    def cancelled(self, receipt: JsonObject | None) -> None:
        """The client's cancellation is done, unless it ended before."""
        self._end(None, receipt)

    def refuse(self, refusal: Refusal) -> None:
        """It ends with a refusal, unless it ended before."""
        self._end(refusal, None)

    # --- the gateway's side ---

    @property
    def closed_because(self) -> str | None:
        return self._closed_because

    async def accepted(self, accepted: port.Accepted) -> None:
        await trio.lowlevel.checkpoint()
        self.workload = accepted.workload
        token = self._issue(self, accepted.workload) if self.log.kept else None
        if token is None:
            self.log.forget()
        if self._line is not None:
            self._line.put(
                write_frame(
                    Accepted(
                        id=self._id,
                        workload_id=accepted.workload,
                        queue_position=accepted.place,
                        resume_token=token,
                        replayed=accepted.replayed,
                    )
                )
            )

    async def event(self, data: bytes) -> None:
        await self._append(event_piece(data))

    async def silence(self) -> None:
        """Pings are the signs of life here."""

    async def completed(self, response: WorkloadResponse) -> None:
        await self._append(completed_piece(response))

    async def failed(self, refusal: Refusal, response: WorkloadResponse | None) -> None:
        await trio.lowlevel.checkpoint()
        if refusal.row.frame is WebSocketFrame.FAILED:
            self._end(refusal, None if response is None else _receipt(response))
        elif not self.cancelling:  # else whoever cancelled it has the receipt, and says so
            self._end(None, None if response is None else _receipt(response))

    async def _append(self, piece: Piece) -> None:
        """Waits until it may be held, and while somebody is there also until it was put."""
        await trio.lowlevel.checkpoint()
        await self._until(lambda: self._may_hold(piece))
        if self._line is not None:
            self.log.trim(piece)
            if self.log.kept and not (self.log.fits(piece) and self.log.can_ever_fit(piece)):
                self.log.forget()
        self.log.append(piece)
        self._completed = not piece.is_event
        self.advance()
        await self._until(lambda: self._line is None or not self.log.unsent)

    def _may_hold(self, piece: Piece) -> bool:
        if self._line is not None:
            return not self.log.unsent
        if not self.log.can_ever_fit(piece):
            self.log.forget()
            self.scope.cancel(reason="nobody is there, and it can't be kept")
        return self.log.fits(piece)

    async def _until(self, ready: Callable[[], bool]) -> None:
        while not ready():
            line = self._line
            with trio.move_on_after(self._slow_s if line is not None else math.inf) as patience:
                await self._news.park()
            if patience.cancelled_caught and line is not None and line is self._line:
                line.slow()

    # --- its end ---

    def _end(self, refusal: Refusal | None, receipt: JsonObject | None) -> None:
        if self.ended:
            return
        if self._line is not None:
            # An end waits for nobody's credit, and what comes after the end is of no use.
            self.log.drop_unsent()
        self._last = (refusal, receipt)
        self.advance()

    def _last_frame(self, refusal: Refusal | None, receipt: JsonObject | None) -> Failed | Cancelled:
        if refusal is None:
            return Cancelled(self._id, receipt)
        return Failed(self._id, error_of(refusal, self.request, self.workload, receipt))


def _receipt(response: WorkloadResponse) -> JsonObject | None:
    return None if response.receipt is None else dict(response_members(response))
