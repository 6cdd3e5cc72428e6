"""A gateway over the real kernel, with real reference engines or scripted ones, in memory and on virtual time."""

import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import attrs
import trio
from trio.abc import Clock

from lunanexa_apps.controller.dispatch import KernelDispatch
from lunanexa_apps.controller.gateway.service import Gateway
from lunanexa_apps.controller.gateway.settings import GatewaySettings
from lunanexa_apps.controller.janitor import run_janitor
from lunanexa_apps.controller.kernel import Kernel
from lunanexa_apps.controller.secrets import begin_with
from lunanexa_core.commands import ApplyDeployment, Begin, Command, Reconcile, ReportHeartbeat
from lunanexa_core.ids import AssignmentId, NodeId, RequestId, StartId
from lunanexa_core.keys import ApiKey, derive_engine_key
from lunanexa_core.openai.response import document
from lunanexa_core.outcomes import Refusal
from lunanexa_core.policy import Policy
from lunanexa_core.sse import SseSplitter, data_of
from lunanexa_core.terms import Terms, terms_of_headers
from lunanexa_core.workload import Dialect, Receipt
from lunanexa_ports.asgi import AsgiApplication, Receive, Scope, Send
from lunanexa_ports.gateway import InferenceCall, News, ResponseSink
from lunanexa_simulation.answers import SimulatedAnswers
from lunanexa_simulation.clock import SimulatedClock
from lunanexa_simulation.disk import SimulatedDisk
from lunanexa_simulation.fleet_keys import SimulatedFleetKeys
from lunanexa_simulation.http_client import SimulatedHttpClient, SimulatedNetwork
from lunanexa_simulation.ids import SimulatedIds
from lunanexa_simulation.journal import SimulatedJournal
from lunanexa_simulation.metrics import SimulatedMetrics
from lunanexa_simulation.rng import Streams
from lunanexa_simulation.signing import SimulatedKeyring
from lunanexa_simulation.workers import SimulatedWorkers
from tests.apps.engine_driver import engine
from tests.core.builders import (
    NODE,
    SEAT,
    SECRET,
    SESSION,
    api_key,
    begin,
    certificate,
    heartbeat,
    joining,
    report,
    reported,
    spec,
)
from tests.core.builders import engine as engine_spec
from tests.replayed import check_replay

HOST = "127.0.0.1"
FIRST_PORT = 9000
NODES = (NODE, NodeId("node-2"))
NEWCOMER = NodeId("node-3")
ASSIGNMENTS = (AssignmentId("asg_1"), AssignmentId("asg_2"))


def _terms(headers: dict[str, str]) -> Terms:
    terms = terms_of_headers(headers)
    assert isinstance(terms, Terms), terms
    return terms


class Sink(ResponseSink):
    """Keeps what it is told. ``room`` unset makes a reader that does not read."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.writes: list[bytes] = []
        self.ended = False
        self.cut = False
        """It ended without its end."""
        self.refusal: Refusal | None = None
        self.news: list[News] = []
        self.room = trio.Event()
        self.room.set()
        self._news = trio.Event()

    @property
    def begun(self) -> bool:
        return self.status != 0

    @property
    def closed_because(self) -> str | None:
        return None

    async def begin(self, status: int, headers: Sequence[tuple[str, str]]) -> None:
        await trio.lowlevel.checkpoint()
        assert not self.begun
        self.status = status
        self.headers = dict(headers)
        assert len(self.headers) == len(headers)
        self._tell()

    async def write(self, data: bytes) -> None:
        assert self.begun
        assert not self.ended
        assert data
        await trio.lowlevel.checkpoint()
        await self.room.wait()
        self.writes.append(data)
        self._tell()

    async def end(self, *, whole: bool = True) -> None:
        await trio.lowlevel.checkpoint()
        assert self.begun
        assert not self.ended
        self.ended = True
        self.cut = not whole
        self._tell()

    async def tell(self, news: News) -> None:
        await trio.lowlevel.checkpoint()
        self.news.append(news)

    async def refuse(self, refusal: Refusal, headers: Sequence[tuple[str, str]] = ()) -> None:
        await trio.lowlevel.checkpoint()
        assert not self.begun
        self.status = refusal.row.http_status
        self.headers = dict(headers)
        self.refusal = refusal
        self.ended = True
        self._tell()

    def _tell(self) -> None:
        self._news.set()
        self._news = trio.Event()

    async def until(self, condition: Callable[["Sink"], bool]) -> None:
        while not condition(self):
            await self._news.wait()

    @property
    def body(self) -> bytes:
        return b"".join(self.writes)

    def json(self) -> Any:
        found = document(self.body)
        assert found is not None, self.body
        return found

    def events(self) -> list[bytes]:
        splitter = SseSplitter(1 << 24)
        events = splitter.feed(self.body)
        assert splitter.rest() == b""
        return events

    def data(self) -> list[bytes]:
        return [data for event in self.events() if (data := data_of(event)) is not None]

    def text(self) -> str:
        """The text that the stream told."""
        parts: list[str] = []
        for data in self.data():
            choices = (document(data) or {}).get("choices", ())
            parts += [choice["delta"].get("content") or "" for choice in choices]
        return "".join(parts)

    def error(self) -> Any:
        """The error that the stream ended with."""
        assert self.ended
        found = document(self.data()[-1])
        assert found is not None
        return found["error"]


@attrs.frozen
class Part:
    """What a scripted engine does next: send bytes, wait, or end."""

    data: bytes = b""
    wait_s: float = 0.0


class ScriptedEngine(AsgiApplication):
    """Answers each call with the next script; ``None`` for its end is a cut."""

    def __init__(self, *scripts: "Script") -> None:
        self.scripts = list(scripts)
        self.bodies: list[bytes] = []
        self.headers: list[dict[bytes, bytes]] = []
        self.departures = 0
        self.in_progress = 0
        self.asked = trio.Event()
        self.departed = trio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send, /) -> None:
        script = self.scripts.pop(0)
        body = b""
        more = True
        while more:
            message = await receive()
            body += message["body"]
            more = message["more_body"]
        self.bodies.append(body)
        self.headers.append(dict(scope["headers"]))
        self.asked.set()
        self.in_progress += 1
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watch, receive, nursery.cancel_scope)
            await script.play(send)
            nursery.cancel_scope.cancel()
        self.in_progress -= 1

    async def _watch(self, receive: Receive, scope: trio.CancelScope) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self.departures += 1
        self.departed.set()
        scope.cancel()


@attrs.frozen(kw_only=True)
class Script:
    """One answer of a scripted engine. ``whole`` false: the body is cut."""

    status: int = 200
    content_type: str = "text/event-stream"
    before_s: float = 0.0
    parts: tuple[Part, ...] = ()
    whole: bool = True
    stuck: bool = False

    async def play(self, send: Send) -> None:
        if self.before_s:
            await trio.sleep(self.before_s)
        headers = [(b"content-type", self.content_type.encode()), (b"x-secret-topology", b"gpu-7")]
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        for part in self.parts:
            if part.wait_s:
                await trio.sleep(part.wait_s)
            if part.data:
                await send({"type": "http.response.body", "body": part.data, "more_body": True})
        if self.stuck:
            await trio.sleep_forever()
        if self.whole:
            await send({"type": "http.response.body", "body": b"", "more_body": False})


def frame(**values: Any) -> bytes:
    return b"data: " + json.dumps(values).encode() + b"\n\n"


def delta(text: str, finish: str | None = None) -> bytes:
    return frame(choices=[{"index": 0, "delta": {"content": text}, "finish_reason": finish}])


USAGE = frame(choices=[], usage={"prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 9})
DONE = b"data: [DONE]\n\n"


@attrs.frozen(kw_only=True)
class Fleet:
    """A gateway that serves, and everything around it."""

    kernel: Kernel
    dispatch: KernelDispatch
    gateway: Gateway
    network: SimulatedNetwork
    metrics: SimulatedMetrics
    disk: SimulatedDisk
    clock: SimulatedClock
    keyring: SimulatedKeyring
    fleet_keys: SimulatedFleetKeys

    def call(
        self,
        body: bytes | dict[str, Any],
        dialect: Dialect = Dialect.CHAT,
        *,
        api_key: str | None = SECRET,
        headers: dict[str, str] | None = None,
        request: str = "req_1",
        content_type: str = "application/json",
    ) -> InferenceCall:
        return InferenceCall(
            request=RequestId(request),
            dialect=dialect,
            api_key=api_key,
            terms=_terms(headers or {}),
            body=body if isinstance(body, bytes) else json.dumps(body).encode(),
            content_type=content_type,
            received_mono_ms=self.clock.now().mono_ms,
        )

    async def ask(self, body: bytes | dict[str, Any], dialect: Dialect = Dialect.CHAT, **call: Any) -> Sink:
        """One whole call."""
        sink = Sink()
        await self.gateway.infer(self.call(body, dialect, **call), sink)
        assert sink.ended
        return sink

    def receipts(self) -> list[Receipt]:
        return list(self.kernel.state.receipts.values())

    def receipt(self) -> Receipt:
        (receipt,) = self.receipts()
        return receipt

    def at_rest(self) -> bool:
        """Nothing is held anywhere."""
        kernel = self.kernel
        return not kernel.state.open and not kernel.observed.held and not any(map(len, kernel.observed.queues.values()))


PATIENT = Policy(lease_ms=600_000)
"""A store that takes longer than the lease can't be led; these tests are of what stands before it."""


@asynccontextmanager
async def fleet(
    time: Clock,
    *engines: AsgiApplication,
    driver: str = "reference",
    slots: int = 4,
    policy: Policy | None = None,
    settings: GatewaySettings | None = None,
    key: ApiKey | None = None,
    more_keys: tuple[ApiKey, ...] = (),
    answers: SimulatedDisk | None = None,
    answers_bytes: int = 1 << 20,
    disk: SimulatedDisk | None = None,
    keys_of: "Fleet | None" = None,
    seed: int = 1,
    replays: bool = True,
) -> AsyncIterator[Fleet]:
    """One deployment with a replica for each engine (a reference engine unless told), on virtual ``time``. At its end
    the journal is replayed and must give the kernel's state, unless a test lays hands on either (``replays``)."""
    assert time.current_time() == trio.current_time()
    replicas = engines or (reference(),)
    clock, metrics, streams = SimulatedClock(), SimulatedMetrics(), Streams(seed)
    answers, disk = answers or SimulatedDisk(), disk or SimulatedDisk()
    keyring = SimulatedKeyring() if keys_of is None else keys_of.keyring
    fleet_keys = SimulatedFleetKeys(keyring, streams.stream("fleet keys")) if keys_of is None else keys_of.fleet_keys
    first = begin_with(begin(keys=(key or api_key(), *more_keys)), fleet_keys)
    async with _kernel(disk, clock, policy or PATIENT, first, replays) as kernel, trio.open_nursery() as world:
        dispatch = KernelDispatch(kernel, SECRET)
        network = SimulatedNetwork(world, streams)
        for number, replica in enumerate(replicas):
            network.listen(HOST, FIRST_PORT + number, replica)
        await _deploy(kernel, len(replicas), driver, slots)
        world.start_soon(_beat, kernel, slots)
        await world.start(run_janitor, kernel)
        gateway = Gateway(
            dispatch=dispatch,
            client=SimulatedHttpClient(network, "gateway"),
            clock=clock,
            ids=SimulatedIds(streams.stream("ids"), clock),
            metrics=metrics,
            workers=SimulatedWorkers(),
            session=SESSION,
            answers=SimulatedAnswers(answers.mount(), answers_bytes),
            settings=settings or GatewaySettings(),
        )
        await world.start(gateway.run)
        yield Fleet(
            kernel=kernel,
            dispatch=dispatch,
            gateway=gateway,
            network=network,
            metrics=metrics,
            disk=disk,
            clock=clock,
            keyring=keyring,
            fleet_keys=fleet_keys,
        )
        world.cancel_scope.cancel("the test is over")


@asynccontextmanager
async def _kernel(
    disk: SimulatedDisk, clock: SimulatedClock, policy: Policy, begin: Begin, replays: bool
) -> AsyncIterator[Kernel]:
    """It ends after everybody who may still ask it something."""
    store = SimulatedJournal(disk.mount())
    kernel = Kernel(store, store, clock, policy, SEAT)
    async with trio.open_nursery() as nursery:
        await nursery.start(kernel.run, begin)
        yield kernel
        nursery.cancel_scope.cancel("the test is over")
    if replays:
        check_replay(kernel, disk)


def reference(number: int = 0, **settings: Any) -> AsgiApplication:
    """A reference engine with the key that the kernel derives for this replica."""
    names = ("tiny", f"st_{number + 1}")
    return engine(names=names, api_key=derive_engine_key(SECRET, ASSIGNMENTS[number], 1), **settings)


def _heartbeats(kernel: Kernel, sequence: int, slots: int) -> list[ReportHeartbeat]:
    beats = []
    for assignment_id, assignment in kernel.state.assignments.items():
        number = ASSIGNMENTS.index(assignment_id)
        ready = report(
            assignment=assignment_id,
            start=StartId(f"st_{number + 1}"),
            host=HOST,
            port=FIRST_PORT + number,
            slots=slots,
        )
        beats.append(reported(heartbeat(sequence, ready, node=assignment.node)))
    return beats


async def _deploy(kernel: Kernel, count: int, driver: str, slots: int) -> None:
    changes: dict[str, Any] = {"driver": driver, "slots": slots}
    if driver == "llama_cpp":
        changes["model_path"] = "/models/tiny.gguf"
    commands: list[Command] = [
        *(
            command
            for node in NODES
            for command in joining(node, again=True, certificate=certificate(issued=kernel.now()))
        ),
        ApplyDeployment(spec=spec(engine=engine_spec(**changes), replicas=count)),
        *(Reconcile((assignment,)) for assignment in ASSIGNMENTS[:count]),
    ]
    for command in commands:
        answer = await kernel.ask(command, "test")
        assert not isinstance(answer, Refusal), answer
    assert len(kernel.state.assignments) == count
    for beat in _heartbeats(kernel, 1, slots):
        await kernel.ask(beat, "test")


async def _beat(kernel: Kernel, slots: int) -> None:
    sequence = 1
    while True:
        await trio.sleep(2)
        sequence += 1
        for beat in _heartbeats(kernel, sequence, slots):
            await kernel.ask(beat, "test")
