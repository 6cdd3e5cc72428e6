"""Calls an engine as an ASGI server would, in memory: a client that can wait, look on, and leave."""

import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

import trio
import trio.testing

from lunanexa_apps.engine.app import ReferenceEngine
from lunanexa_apps.engine.faults import parse_fault
from lunanexa_apps.engine.language_model import LanguageModel, read_corpus
from lunanexa_apps.engine.settings import EngineSettings
from lunanexa_ports.asgi import ABORT, AsgiApplication, Message

CREATED = 1_700_000_000
MODEL = LanguageModel(read_corpus())


def numbered() -> Callable[[], str]:
    numbers = count(1)
    return lambda: f"{next(numbers):08x}"


def engine(
    *faults: str, end_process: Callable[[int], None] | None = None, allow_faults: bool = True, **settings: Any
) -> ReferenceEngine:
    """``faults`` as they stand on the command line."""
    return ReferenceEngine(
        EngineSettings(faults=tuple(map(parse_fault, faults)), allow_faults=allow_faults, **settings),
        MODEL,
        now_s=lambda: CREATED,
        new_id=numbered(),
        end_process=end_process,
    )


async def arm(app: AsgiApplication, *faults: str, key: str | None = None) -> None:
    """From now on the engine has these faults and no others."""
    assert (await post(app, "/faults", {"faults": list(faults)}, key=key)).status == 200


class Call:
    """One request. ``departed`` set by the test is the client's leaving; ``ended`` says that the app returned."""

    def __init__(self, method: str, path: str, parts: list[bytes], headers: list[tuple[bytes, bytes]]) -> None:
        self.scope: dict[str, Any] = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "path": path,
            "raw_path": path.encode("utf-8", "replace"),
            "query_string": b"",
            "headers": headers,
            "extensions": {ABORT: {}},
        }
        self._parts: Iterator[tuple[bytes, bool]] = iter([(part, i < len(parts) - 1) for i, part in enumerate(parts)])
        self.read_bytes = 0
        self.departed = trio.Event()
        self.ended = trio.Event()
        self.sent: list[Message] = []
        self.aborted = False
        """Whether the engine closed the connection."""
        self.news = trio.Event()

    async def receive(self) -> Message:
        await trio.lowlevel.checkpoint()
        part = next(self._parts, None)
        if part is not None:
            self.read_bytes += len(part[0])
            return {"type": "http.request", "body": part[0], "more_body": part[1]}
        await self.departed.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        await trio.lowlevel.checkpoint()
        assert not self.aborted
        if message["type"] == ABORT:
            self.aborted = True
        else:
            self.sent.append(message)
        self.news.set()
        self.news = trio.Event()

    async def run(self, app: AsgiApplication) -> None:
        try:
            await app(self.scope, self.receive, self.send)
        finally:
            self.ended.set()

    async def until_events(self, number: int) -> None:
        while len(self.events()) < number:
            await self.news.wait()

    @property
    def status(self) -> int:
        return int(self.sent[0]["status"])

    def header(self, name: bytes) -> bytes | None:
        return next((value for key, value in self.sent[0]["headers"] if key == name), None)

    @property
    def body(self) -> bytes:
        return b"".join(message["body"] for message in self.sent[1:])

    def json(self) -> Any:
        return json.loads(self.body)

    def events(self) -> list[str]:
        """The ``data:`` lines so far; each has to stand in its own frame."""
        assert not self.body or self.body.endswith(b"\n\n")
        frames = self.body.decode("utf-8").split("\n\n")[:-1]
        assert all(frame.startswith("data: ") and "\n" not in frame for frame in frames)
        return [frame.removeprefix("data: ") for frame in frames]

    def documents(self) -> list[Any]:
        *documents, end = self.events()
        assert end == "[DONE]"
        return [json.loads(document) for document in documents]


def prepare(method: str, path: str, body: object = None, *, key: str | None = None) -> Call:
    data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode("utf-8")
    headers = [(b"host", b"engine"), (b"content-length", str(len(data)).encode("ascii"))]
    if key is not None:
        headers.append((b"authorization", b"Bearer " + key.encode("utf-8")))
    return Call(method, path, [data], headers)


async def get(app: AsgiApplication, path: str, *, key: str | None = None) -> Call:
    call = prepare("GET", path, key=key)
    await call.run(app)
    return call


async def post(app: AsgiApplication, path: str, body: object, *, key: str | None = None) -> Call:
    call = prepare("POST", path, body, key=key)
    await call.run(app)
    return call


@asynccontextmanager
async def calling(app: AsgiApplication, path: str, *bodies: object) -> AsyncIterator[list[Call]]:
    """Calls in flight, begun in order; cancelled at the end of the block if they still run."""
    async with trio.open_nursery() as nursery:
        calls = []
        for body in bodies:
            call = prepare("POST", path, body)
            calls.append(call)
            nursery.start_soon(call.run, app)
            await trio.testing.wait_all_tasks_blocked()
        yield calls
        nursery.cancel_scope.cancel()


def chat(text: str = "Tell me of the sea.", **more: object) -> dict[str, object]:
    return {"model": "reference", "messages": [{"role": "user", "content": text}], **more}


async def metric(app: AsgiApplication, sample: str, *, key: str | None = None) -> float:
    """The value of the one sample whose line begins with ``sample``."""
    page = (await get(app, "/metrics", key=key)).body.decode("utf-8")
    values = [float(line.rpartition(" ")[2]) for line in page.splitlines() if line.startswith(sample)]
    assert len(values) == 1, (sample, page)
    return values[0]
