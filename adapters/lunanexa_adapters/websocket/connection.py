"""The loop of one connection: one task reads, one writes, and each workload has its own."""

from typing import assert_never

import trio

from lunanexa_adapters.websocket.answers import DRAINING, IN_USE, TOO_MANY, error_of, invalid, resume_gone
from lunanexa_adapters.websocket.calls import Caller, call_of
from lunanexa_adapters.websocket.closing import BINARY, GONE, KEY_REFUSED, NO_FRAME, RESTART, SLOW_CONSUMER, Closing
from lunanexa_adapters.websocket.flow import Flow, Line
from lunanexa_adapters.websocket.outbox import Outbox
from lunanexa_adapters.websocket.pace import Pace
from lunanexa_adapters.websocket.resumables import Gone
from lunanexa_adapters.websocket.roster import Roster
from lunanexa_adapters.websocket.services import Services
from lunanexa_adapters.websocket.tasks import cancel_accepted, run_outlasting, run_workload
from lunanexa_core.contract.frame_text import FrameProblem, read_client_frame, write_frame
from lunanexa_core.contract.frames import Cancel, Credit, Failed, Goaway, Resume, ServerFrame, Submit
from lunanexa_core.outcomes import Outcome, Refusal
from lunanexa_ports.asgi import SLOW_CONSUMER as CLOSED_BECAUSE_SLOW
from lunanexa_ports.asgi import Receive, Send


class Connection(Line):
    """From its acceptance to its end. ``outlasting`` is where the tasks of resumable workloads run."""

    def __init__(
        self,
        services: Services,
        caller: Caller,
        receive: Receive,
        send: Send,
        outlasting: trio.Nursery | None,
    ) -> None:
        settings = services.settings
        self._services = services
        self._caller = caller
        self._receive = receive
        self._send = send
        self._outlasting = outlasting
        self._outbox = Outbox(bytes_max=settings.outbox_bytes, answers_max=settings.outbox_answers_max)
        self._pace = Pace(settings.frames_per_s)
        self._roster = Roster(settings.workloads_max)
        self._draining = False
        self._ended = trio.Event()
        self._closed = trio.Event()
        self._nursery: trio.Nursery
        self.closing = GONE
        """How it ended, or will have."""

    @property
    def workloads(self) -> int:
        """Begun or resumed here."""
        return self._roster.begun

    async def run(self) -> None:
        """Serves until either side ends the connection."""
        try:
            async with trio.open_nursery() as self._nursery:
                self._nursery.start_soon(self._read)
                self._nursery.start_soon(self._write)
                await self._ended.wait()
                self._detach_all()
                with trio.move_on_after(self._services.settings.close_ms / 1000):
                    await self._closed.wait()
                self._nursery.cancel_scope.cancel(reason="the connection has ended")
        finally:
            self._detach_all()

    def drain(self) -> None:
        """Tells the client to go elsewhere; the connection ends with its last workload."""
        if not self._draining:
            self._draining = True
            self._answer(Goaway(self._services.settings.retry_after_ms))
            self._end_if_done()

    def end(self, closing: Closing) -> None:
        """The first reason counts."""
        if not self._ended.is_set():
            self.closing = closing
            self._outbox.close(flush=closing.flush)
            self._ended.set()

    # --- what workloads see ---

    @property
    def has_room(self) -> bool:
        return self._outbox.has_room

    def put(self, text: str) -> None:
        self._outbox.put(text)

    def waits_for_room(self, flow: Flow) -> None:
        self._roster.wait(flow)

    def over(self, flow: Flow, refusal: Refusal | None) -> None:
        self._drop(flow)
        if refusal is not None and refusal.outcome is Outcome.INVALID_API_KEY:
            self.end(KEY_REFUSED)

    def slow(self) -> None:
        self.end(SLOW_CONSUMER)

    # --- reading ---

    async def _read(self) -> None:
        settings = self._services.settings
        while not self._ended.is_set():
            await self._outbox.answerable()
            message = await self._receive()
            if message["type"] == "websocket.disconnect":
                self.end(Closing(int(message.get("code") or GONE.code), "", flush=False))
                self._closed.set()
                return
            self._services.reporter.frame_in()
            text = message.get("text")
            if text is None:
                self.end(BINARY)
                return
            await self._pace.take(1 + len(text) // settings.charged_bytes)
            await self._take(text)

    async def _take(self, text: str) -> None:
        frame = read_client_frame(text)
        match frame:
            case FrameProblem():
                self._take_problem(frame)
            case Submit():
                self._submit(frame)
            case Cancel():
                self._cancel(frame.id)
            case Credit():
                flow = self._roster.get(frame.id)
                if flow is not None:  # else it has ended while the frame was under way
                    flow.credit(frame.events)
            case Resume():
                await self._resume(frame)
            case _:
                assert_never(frame)

    def _take_problem(self, problem: FrameProblem) -> None:
        if problem.id is None:
            self.end(NO_FRAME)
        else:
            self._fail(problem.id, invalid(problem.message, problem.param))

    def _submit(self, frame: Submit) -> None:
        if self._roster.get(frame.id) is not None:
            self._fail(frame.id, IN_USE)
            return
        refusal = self._no_room()
        services = self._services
        kept = frame.resumable and self._outlasting is not None and not self._draining
        flow = services.new_flow(self._caller.key_digest, kept=kept)
        call = refusal or call_of(frame, self._caller, flow.request, services.clock.now().mono_ms)
        if isinstance(call, Refusal):
            self._answer(Failed(frame.id, error_of(call, flow.request)))
            return
        self._roster.attach(flow, self, frame.id)
        if kept and self._outlasting is not None:
            self._outlasting.start_soon(run_outlasting, services, flow, call)
        else:
            self._nursery.start_soon(run_workload, services, flow, call)

    def _cancel(self, frame_id: str) -> None:
        flow = self._roster.get(frame_id)
        if flow is None or flow.cancelling or flow.ended:
            return  # What ended it is under way.
        flow.cancelling = True
        if flow.workload is None:
            flow.scope.cancel(reason="cancelled by its caller")
        else:
            self._nursery.start_soon(cancel_accepted, self._services, flow, flow.workload, self._caller.api_key)

    async def _resume(self, frame: Resume) -> None:
        refusal = await self._services.gateway.authenticate(self._caller.api_key)
        refusal = refusal or self._no_room()
        request = self._services.new_request()
        if self._roster.get(frame.id) is not None:
            self._fail(frame.id, IN_USE)
            return
        if refusal is not None:
            self._answer(Failed(frame.id, error_of(refusal, request)))
            if refusal.outcome is Outcome.INVALID_API_KEY:
                self.end(KEY_REFUSED)
            return
        found = self._services.resumables.find(frame.token, self._caller.key_digest)
        if isinstance(found, Gone) or not found.log.rewind(frame.after):
            self._answer(Failed(frame.id, resume_gone(found.workload, request)))
            return
        if found.line is not None:
            found.line.give_up(found)
        self._roster.attach(found, self, frame.id)
        found.advance()

    def give_up(self, flow: Flow) -> None:
        self._drop(flow)
        flow.detach()

    def _no_room(self) -> Refusal | None:
        if self._draining:
            return DRAINING
        return TOO_MANY if self._roster.is_full else None

    def _fail(self, frame_id: str, refusal: Refusal) -> None:
        """A frame that is wrong about a workload ends it, where it runs: ``failed`` says no less."""
        flow = self._roster.get(frame_id)
        if flow is None:
            request = self._services.new_request()
            self._answer(Failed(frame_id, error_of(refusal, request)))
        else:
            flow.refuse(refusal)
            flow.scope.cancel(reason="a wrong frame about it")

    def _drop(self, flow: Flow) -> None:
        self._roster.drop(flow)
        self._end_if_done()

    def _detach_all(self) -> None:
        because = CLOSED_BECAUSE_SLOW if self.closing is SLOW_CONSUMER else None
        self._roster.detach_all(because, for_good=self._draining)

    # --- writing ---

    async def _write(self) -> None:
        try:
            while (text := await self._outbox.next()) is not None:
                await self._send({"type": "websocket.send", "text": text})
                self._services.reporter.frame_out()
                self._outbox.written(text)
                self._roster.give_turns(lambda: self._outbox.has_room)
                self._end_if_done()
            await self._ended.wait()
            if self.closing.code != GONE.code and not self._closed.is_set():
                closing = self.closing
                await self._send({"type": "websocket.close", "code": closing.code, "reason": closing.reason})
        except OSError:  # ASGI: the client has left
            self.end(GONE)
        self._closed.set()

    def _answer(self, frame: ServerFrame) -> None:
        self._outbox.put(write_frame(frame))

    def _end_if_done(self) -> None:
        if self._draining and self._roster.is_empty and self._outbox.is_empty:
            self.end(RESTART)
