"""A client of the simulated world that speaks ``lunanexa.v1``, and checks what it is told."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

import attrs
import trio

from lunanexa_core.contract.frame_text import FrameProblem, read_server_frame, write_frame
from lunanexa_core.contract.frames import (
    CREDITS,
    SUBPROTOCOL,
    Accepted,
    Cancelled,
    ClientFrame,
    Completed,
    Credit,
    Event,
    Failed,
    Goaway,
    Resume,
    ServerFrame,
    Submit,
)
from lunanexa_simulation.client import Answer, Ending
from lunanexa_simulation.http_network import SimulatedNetwork
from lunanexa_simulation.trace import Trace
from lunanexa_simulation.websocket_network import Closed, Refused, WebSocketExchange, open_websocket

_GRANT: Final = CREDITS // 4


@attrs.define(eq=False)
class Heard:
    """What was heard of one workload, over all its connections."""

    body: Mapping[str, Any]
    grants: bool = True
    """Whether it is granted more as it is heard."""
    accepted: Accepted | None = None
    seq: int = 0
    text: str = ""
    end: Completed | Failed | Cancelled | None = None
    _ungranted: int = 0

    def take(self, frame: ServerFrame) -> int:
        """Notes a frame; how many events are to be granted for it."""
        assert self.end is None, f"a frame after the end: {frame}"
        match frame:
            case Accepted():
                assert self.accepted is None, frame
                self.accepted = frame
            case Event():
                self._follow(frame.seq)
                for choice in frame.data["choices"]:
                    self.text += choice["delta"].get("content") or ""
                self._ungranted += 1
            case Completed():
                self._follow(frame.seq)
                output = frame.response["output"]
                if output is not None:
                    self.text += output["choices"][0]["message"]["content"]
                self.end = frame
            case Failed() | Cancelled():
                self.end = frame
            case Goaway():
                raise AssertionError(frame)
        if self._ungranted < _GRANT or not self.grants:
            return 0
        granted, self._ungranted = self._ungranted, 0
        return granted

    def resume(self, frame_id: str) -> Resume:
        """What to say on a new connection."""
        assert self.accepted is not None
        assert self.accepted.resume_token is not None
        self._ungranted = 0
        return Resume(frame_id, self.seq, self.accepted.resume_token)

    @property
    def workload(self) -> str | None:
        return None if self.accepted is None else self.accepted.workload_id

    @property
    def error(self) -> str | None:
        """``error.code`` of a failure."""
        return str(self.end.error["code"]) if isinstance(self.end, Failed) else None

    def answer(self) -> Answer:
        """The same in the words of HTTP."""
        whole = isinstance(self.end, Completed)
        return Answer(ending=Ending.WHOLE if whole else Ending.CUT, text=self.text, workload=self.workload)

    def _follow(self, seq: int) -> None:
        assert seq == self.seq + 1, f"{seq} came after {self.seq}"
        self.seq = seq


class Session:
    """One connection. A task hears it; what it heard is in ``heard``."""

    def __init__(self, exchange: WebSocketExchange, trace: Trace, name: str) -> None:
        self._exchange = exchange
        self._trace = trace
        self._name = name
        self.heard: dict[str, Heard] = {}
        self.goaway: Goaway | None = None
        self.over: Closed | Refused | None = None

    def submit(self, frame_id: str, body: Mapping[str, Any], *, resumable: bool = False, grants: bool = True) -> Heard:
        """Starts a chat."""
        self.heard[frame_id] = heard = Heard(body, grants)
        self.say(Submit(id=frame_id, request=dict(body), endpoint="chat/completions", resumable=resumable))
        return heard

    def resume(self, frame_id: str, heard: Heard) -> None:
        """Goes on with what another connection began."""
        self.heard[frame_id] = heard
        self.say(heard.resume(frame_id))

    def say(self, frame: ClientFrame) -> None:
        self._exchange.say(write_frame(frame))

    async def listen(self) -> None:
        """To the end of the connection."""
        while self.over is None:
            item = await self._exchange.hear()
            if not isinstance(item, str):
                self.over = item
                self._trace.record(self._name, f"websocket: over, {item}")
                return
            frame = read_server_frame(item)
            assert not isinstance(frame, FrameProblem), frame
            if isinstance(frame, Goaway):
                self.goaway = frame
                continue
            heard = self.heard[frame.id]
            granted = heard.take(frame)
            if granted:
                self.say(Credit(frame.id, granted))
            if heard.end is not None:
                self._trace.record(self._name, f"websocket: {frame.id} {type(frame).__name__}, {len(heard.text)}")


class StreamCaller:
    """Connects to ``/v1/stream`` with one API key."""

    def __init__(
        self, network: SimulatedNetwork, *, host: str, port: int, api_key: str, trace: Trace, name: str
    ) -> None:
        self._network = network
        self._host = host
        self._port = port
        self._api_key = api_key
        self._trace = trace
        self._name = name

    @asynccontextmanager
    async def connected(self, *, listens: bool = True) -> AsyncIterator[Session]:
        """A connection; leaving the block drops it. Raises ``HttpUnreachable``."""
        async with (
            open_websocket(
                self._network,
                self._name,
                host=self._host,
                port=self._port,
                path="/v1/stream",
                subprotocols=(SUBPROTOCOL,),
                headers=((b"authorization", b"Bearer " + self._api_key.encode()),),
            ) as exchange,
            trio.open_nursery() as nursery,
        ):
            self._trace.record(self._name, "websocket: connected")
            session = Session(exchange, self._trace, self._name)
            if listens:
                nursery.start_soon(session.listen)
            yield session
            nursery.cancel_scope.cancel("the connection is dropped")
