"""`/v1/stream` over the real kernel and gateway, in memory, and one WebSocket from its client's side."""

import json
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import trio

from lunanexa_adapters.websocket.application import WebSocketPlane
from lunanexa_adapters.websocket.settings import WebSocketSettings
from lunanexa_apps.controller.workloads import KernelWorkloads
from lunanexa_core.contract.frame_text import FrameProblem, read_server_frame, write_frame
from lunanexa_core.contract.frames import Cancelled, ClientFrame, Completed, Failed, ServerFrame, Submit
from lunanexa_ports.asgi import AsgiApplication, Message
from lunanexa_simulation.ids import SimulatedIds
from lunanexa_simulation.rng import Streams
from tests.apps.gateway_fleet import DONE, USAGE, Fleet, Part, Script, delta
from tests.core.builders import SECRET, SESSION

CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}
STREAM = {**CHAT, "stream": True}
ENVELOPE = {"capability": "TextGenerate", "model": "tiny", "payload": {"messages": CHAT["messages"], "max_tokens": 4}}
KEY = (b"authorization", b"Bearer " + SECRET.encode())


class Gone(OSError):
    """What a server's ``send`` raises after the client's departure."""


class Socket:
    """One connection, from the client's side. ``room`` unset makes a client that does not read."""

    def __init__(
        self,
        *,
        path: str = "/v1/stream",
        subprotocols: Sequence[str] = ("lunanexa.v1",),
        headers: Sequence[tuple[bytes, bytes]] = (KEY,),
        extensions: Sequence[str] = ("websocket.http.response",),
    ) -> None:
        self.scope: dict[str, Any] = {
            "type": "websocket",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "scheme": "ws",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "root_path": "",
            "headers": [*headers, (b"host", b"lunanexa")],
            "client": ("10.0.0.9", 1234),
            "server": ("10.0.0.1", 8400),
            "subprotocols": list(subprotocols),
            "extensions": {name: {} for name in extensions},
        }
        self.room = trio.Event()
        self.room.set()
        self.closed = trio.Event()
        """The application has closed, refused, or the client has left."""
        self.code: int | None = None
        """Of the application's close frame."""
        self.status: int | None = None
        """Of an HTTP answer instead of an acceptance."""
        self.body = b""
        self.accepted: Message | None = None
        self.frames: deque[str] = deque()
        self._messages: deque[Message] = deque([{"type": "websocket.connect"}])
        self._news = trio.lowlevel.ParkingLot()
        self._readers = trio.lowlevel.ParkingLot()

    # --- the application's side ---

    async def receive(self) -> Message:
        await trio.lowlevel.checkpoint()
        while not self._messages:
            await self._readers.park()
        if self._messages[0]["type"] == "websocket.disconnect":
            return self._messages[0]
        return self._messages.popleft()

    async def send(self, message: Message) -> None:
        await trio.lowlevel.checkpoint()
        kind = message["type"]
        if kind == "websocket.send":
            await self.room.wait()
        if self.closed.is_set():
            raise Gone
        match kind:
            case "websocket.accept":
                self.accepted = message
            case "websocket.send":
                assert self.accepted is not None
                self.frames.append(message["text"])
            case "websocket.close":
                self.code = message["code"]
                assert len(message.get("reason", "").encode()) <= 123
                self._close(self.code)
            case "websocket.http.response.start":
                self.status = message["status"]
            case "websocket.http.response.body":
                self.body += message["body"]
                self._close(1000)
            case _:
                raise AssertionError(kind)
        self._news.unpark_all()

    # --- the client's side ---

    def say(self, *frames: ClientFrame) -> None:
        for frame in frames:
            self.say_text(write_frame(frame))

    def say_text(self, text: str) -> None:
        self._put({"type": "websocket.receive", "text": text, "bytes": None})

    def say_bytes(self, data: bytes) -> None:
        self._put({"type": "websocket.receive", "text": None, "bytes": data})

    def leave(self) -> None:
        self._close(1006)
        self.room.set()

    async def hear(self) -> ServerFrame:
        """The next frame."""
        while not self.frames:
            assert not self.closed.is_set(), f"it is closed: {self.code}"
            await self._news.park()
        frame = read_server_frame(self.frames.popleft())
        assert not isinstance(frame, FrameProblem), frame
        return frame

    def heard(self) -> list[ServerFrame]:
        """What came by now."""
        frames = [read_server_frame(text) for text in self.frames]
        self.frames.clear()
        found = [frame for frame in frames if not isinstance(frame, FrameProblem)]
        assert len(found) == len(frames), frames
        return found

    def error(self) -> Any:
        """The error of an HTTP answer."""
        return json.loads(self.body)["error"]

    def _put(self, message: Message) -> None:
        self._messages.append(message)
        self._readers.unpark_all()

    def _close(self, code: int) -> None:
        if not self.closed.is_set():
            self.closed.set()
            self._put({"type": "websocket.disconnect", "code": code})
            self._news.unpark_all()


@asynccontextmanager
async def connected(app: AsgiApplication, **options: Any) -> AsyncIterator[Socket]:
    """A connection that was accepted. The client leaves at the end, and the application must return by itself."""
    socket = Socket(**options)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(app, socket.scope, socket.receive, socket.send)
        while socket.accepted is None:
            assert not socket.closed.is_set(), socket.body
            await socket._news.park()
        yield socket
        socket.leave()


async def refused(app: AsgiApplication, **options: Any) -> Socket:
    """A connection that is refused."""
    socket = Socket(**options)
    await app(socket.scope, socket.receive, socket.send)
    assert socket.accepted is None
    return socket


def plane(world: Fleet, **settings: Any) -> WebSocketPlane:
    return WebSocketPlane(
        gateway=world.gateway,
        workloads=KernelWorkloads(world.kernel, world.dispatch),
        ids=SimulatedIds(Streams(3).stream("websocket"), world.clock),
        clock=world.clock,
        metrics=world.metrics,
        session=SESSION,
        settings=WebSocketSettings(**settings),
    )


@asynccontextmanager
async def running(world: Fleet, **settings: Any) -> AsyncIterator[WebSocketPlane]:
    """A plane that can keep workloads; nothing of it is left at the end."""
    app = plane(world, **settings)
    async with trio.open_nursery() as nursery:
        await nursery.start(app.run)
        yield app
        app.close()
        nursery.cancel_scope.cancel("the test is over")
    assert world.metrics.value("lunanexa_websocket_kept_workloads") == 0
    assert world.metrics.value("lunanexa_websocket_kept_bytes") == 0


def submit(frame_id: str, request: dict[str, Any] = STREAM, **more: Any) -> Submit:
    more.setdefault("endpoint", "chat/completions")
    return Submit(id=frame_id, request=request, **more)


def events(count: int, *, every_s: float = 0.0) -> Script:
    """So many events of one word each."""
    words = tuple(Part(delta(f"w{number} "), wait_s=every_s) for number in range(count))
    return Script(parts=(*words, Part(delta("", "stop") + USAGE + DONE)))


async def until_ended(socket: Socket) -> list[Any]:
    """The frames of one workload, to its last."""
    frames: list[Any] = []
    while not frames or not isinstance(frames[-1], Completed | Failed | Cancelled):
        frames.append(await socket.hear())
    return frames
