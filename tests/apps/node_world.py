"""One simulated machine with an agent, a small controller that speaks the node plane, and engines to run.

The controller is a double for the agent's tests alone: it signs what it is told to, and notes what it hears.
"""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import attrs
import trio
from trio.testing import MockClock

from lunanexa_apps.codec import decode, encode
from lunanexa_apps.node.service import NodeAgent, run_node_agent
from lunanexa_apps.node.settings import NodePorts, NodeSettings, Shutdown
from lunanexa_core.deployment import EngineSpec
from lunanexa_core.drivers.specification import EngineAddress
from lunanexa_core.ids import AssignmentId, ClusterId, DeploymentId, NodeId
from lunanexa_core.southbound.documents import DesiredAssignment, DesiredState, Directive, SignedDocument
from lunanexa_core.southbound.heartbeat import (
    Enrolled,
    Enrolment,
    Heartbeat,
    HeartbeatAnswer,
    ReplicaReport,
    ReplicaState,
)
from lunanexa_ports.asgi import AsgiApplication, Receive, Scope, Send
from lunanexa_ports.node_store import NodeStore
from lunanexa_ports.processes import Processes
from lunanexa_ports.signing import Signer, Verifier
from lunanexa_simulation.clock import SimulatedClock
from lunanexa_simulation.disk import SimulatedDisk
from lunanexa_simulation.http_client import SimulatedHttpClient, SimulatedNetwork
from lunanexa_simulation.ids import SimulatedIds
from lunanexa_simulation.memory import SimulatedMemory
from lunanexa_simulation.node_store import SimulatedNodeStore
from lunanexa_simulation.processes import SimulatedHost, SimulatedProcess
from lunanexa_simulation.rng import Streams
from lunanexa_simulation.signing import SimulatedKeyring, SimulatedVerifier

NODE = NodeId("node-1")
CLUSTER = ClusterId("cluster-1")
BEARER = "bearer of the tests"
BINARY = "/opt/engine"
ENGINE_KEY = "engine key of the tests"


def assignment(name: str = "as_1", generation: int = 1, **changes: object) -> DesiredAssignment:
    engine = EngineSpec(driver="reference", served_name="tiny", binary=BINARY, start_timeout_ms=60_000)
    return DesiredAssignment(
        assignment=AssignmentId(name),
        generation=generation,
        deployment=DeploymentId("de_1"),
        engine=attrs.evolve(engine, **changes),  # type: ignore[arg-type]  # the test's business
        engine_key=ENGINE_KEY,
    )


async def answer(send: Send, status: int, body: bytes = b"", headers: tuple[tuple[bytes, bytes], ...] = ()) -> None:
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def whole_body(receive: Receive) -> bytes:
    body: bytes = b""
    while True:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body", False):
            return body


class TinyController:
    """Signs the document that it is given, under the address ``controller:8400``."""

    def __init__(self, signer: Signer, verifier: Verifier, *, bearer: str = BEARER) -> None:
        self.bearer = bearer
        self.signer = signer
        self.verifier = verifier
        self.document = DesiredState(cluster=CLUSTER, node=NODE, epoch=1, generation=0)
        self.offered: SignedDocument | None = None
        self.heartbeats: list[Heartbeat] = []
        self.enrolments: list[Enrolment] = []
        self.cluster = CLUSTER
        self.known_key: str | None = None
        self.forgetful = False
        """Takes every enrolment, and then knows of none."""
        self.retired = False
        """Refuses heartbeats for good, and still tells what shall be."""
        self._news = trio.Event()

    def desire(self, *assignments: DesiredAssignment, directive: Directive = Directive.ACTIVE) -> None:
        self.document = attrs.evolve(
            self.document, generation=self.document.generation + 1, assignments=assignments, directive=directive
        )
        self.offer(self.signer.sign(encode(self.document)))

    def offer(self, document: SignedDocument) -> None:
        """Whatever it is, it is given to whoever asks."""
        self.offered = document
        self._wake()

    def report(self, name: str = "as_1") -> ReplicaReport | None:
        """The newest word on one assignment."""
        if not self.heartbeats:
            return None
        return next((one for one in self.heartbeats[-1].replicas if one.assignment == name), None)

    async def until(self, condition: Callable[[], object]) -> None:
        """Waits for heartbeats until one makes ``condition`` true."""
        while not condition():
            await self._news.wait()

    async def until_state(
        self, state: ReplicaState, name: str = "as_1", generation: int | None = None
    ) -> ReplicaReport:
        def reached() -> bool:
            report = self.report(name)
            return report is not None and report.state is state and generation in (None, report.generation)

        await self.until(reached)
        report = self.report(name)
        assert report is not None
        return report

    def _wake(self) -> None:
        self._news.set()
        self._news = trio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send, /) -> None:
        if scope["type"] != "http":
            return
        headers = dict(scope["headers"])
        assert headers[b"authorization"] == b"Bearer " + self.bearer.encode()
        assert scope["path"].startswith(f"/node/v1/{NODE}/")
        match scope["path"].rpartition("/")[2]:
            case "enrol":
                document = self._signed(headers, await whole_body(receive))
                enrolment = decode(Enrolment, document.payload)
                assert self.verifier.verify(document, {document.key_id: enrolment.public_key})
                self.enrolments.append(enrolment)
                self.known_key = enrolment.public_key
                keys = {self.signer.key_id: self.signer.public_key}
                await answer(send, 200, encode(Enrolled(cluster=self.cluster, epoch=1, signing_keys=keys)))
                self._wake()
            case "heartbeat":
                await self._hear(self._signed(headers, await whole_body(receive)), send)
            case "desired":
                await self._tell(scope["query_string"].decode(), send)
            case _:
                await answer(send, 404)

    def _signed(self, headers: dict[bytes, bytes], payload: bytes) -> SignedDocument:
        signature = bytes.fromhex(headers[b"x-lunanexa-signature"].decode())
        return SignedDocument(payload=payload, key_id=headers[b"x-lunanexa-key-id"].decode(), signature=signature)

    async def _hear(self, document: SignedDocument, send: Send) -> None:
        if self.known_key is None or self.forgetful:
            await answer(send, 403, b'{"error": {"code": "permission_denied"}}')
            return
        if self.retired:
            await answer(send, 403, b'{"error": {"code": "node_retired"}}')
            return
        assert self.verifier.verify(document, {document.key_id: self.known_key})
        heartbeat = decode(Heartbeat, document.payload)
        earlier = [one.sequence for one in self.heartbeats if one.boot == heartbeat.boot]
        assert not earlier or heartbeat.sequence > max(earlier)
        self.heartbeats.append(heartbeat)
        word = HeartbeatAnswer(
            boot=heartbeat.boot,
            sequence=heartbeat.sequence,
            epoch=self.document.epoch,
            generation=self.document.generation,
            lease_ms=10_000,
        )
        await answer(send, 200, encode(word))
        self._wake()

    async def _tell(self, query: str, send: Send) -> None:
        after_text, wait_text = (part.partition("=")[2] for part in query.split("&"))
        epoch, generation = map(int, after_text.split("."))
        with trio.move_on_after(int(wait_text) / 1_000):
            while self.offered is None or not self._newer(epoch, generation):
                await self._news.wait()
            offered = self.offered
            signature = offered.signature.hex().encode()
            head = ((b"x-lunanexa-key-id", offered.key_id.encode()), (b"x-lunanexa-signature", signature))
            await answer(send, 200, offered.payload, head)
            return
        await answer(send, 204)

    def _newer(self, epoch: int, generation: int) -> bool:
        """What is no document of ours is given at any time."""
        assert self.offered is not None
        honest = self.offered.payload == encode(self.document)
        return not honest or self.document.order > (epoch, generation)


class SimulatedEngine:
    """Every engine of the world: an application as its process serves it, and its switches."""

    def __init__(self, network: SimulatedNetwork) -> None:
        self.network = network
        self.health = 200
        self.names: tuple[str, ...] | None = None
        """Listed instead of those on the command line."""
        self.running = 0
        self.exit_code: int | None = None
        """Every engine exits at once with it."""
        self.started: list[SimulatedProcess] = []

    async def __call__(self, process: SimulatedProcess) -> int:
        others = [one for one in process.host.living() if one is not process and one.argv[0] == BINARY]
        same = [one for one in others if one.log_name == process.log_name]
        assert not same, f"{process.start} runs beside {[one.start for one in same]}"
        self.started.append(process)
        process.print(f"engine {process.start} starts")
        if self.exit_code is not None:
            return self.exit_code
        process.handles_terminate = True
        port = int(process.option("--port"))
        with process.listening(port):
            self.network.listen("127.0.0.1", port, self.serve(process))
            try:
                await process.terminated.wait()
                return 0
            finally:
                self.network.kill("127.0.0.1", port)

    def serve(self, process: SimulatedProcess | None) -> AsgiApplication:
        """What one engine answers; without a process it is one that runs elsewhere."""
        argv = () if process is None else process.argv
        told = tuple(argv[place + 1] for place, word in enumerate(argv) if word == "--alias")

        async def app(scope: Scope, _: Receive, send: Send) -> None:
            if process is not None:
                await process.while_hung()
            names = self.names or told
            match scope["path"]:
                case "/health":
                    await answer(send, self.health)
                case "/v1/models":
                    cards = ",".join(f'{{"id": "{name}"}}' for name in names)
                    await answer(send, 200, f'{{"data": [{cards}]}}'.encode())
                case "/metrics":
                    text = f"vllm:num_requests_running {self.running}\nvllm:num_requests_waiting 0\n"
                    await answer(send, 200, text.encode())
                case _:
                    await answer(send, 404)

        return app


@attrs.define
class RunningAgent:
    """One life of the agent."""

    agent: NodeAgent
    shutdown: Shutdown
    kill: Callable[[], None]
    ended: trio.Event


class NodeWorld:
    """Made by :func:`node_world`. Agents may be started again and again on the same machine."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self._streams = Streams(7)
        self.network = SimulatedNetwork(nursery, self._streams)
        self.host = SimulatedHost(nursery)
        self.engine = SimulatedEngine(self.network)
        self.host.programs[BINARY] = self.engine
        self.disk = SimulatedDisk()
        self.clock = SimulatedClock()
        self.memory = SimulatedMemory(1_000, 200)
        keyring = SimulatedKeyring()
        self._key = keyring.new_key(self._streams.stream("node"))
        self.verifier = SimulatedVerifier(keyring)
        self.stranger = keyring.new_key(self._streams.stream("stranger"))
        self.controller = TinyController(keyring.new_key(self._streams.stream("controller")), self.verifier)
        self.network.listen("controller", 8400, self.controller)
        self._lives = 0

    async def start(
        self,
        wrap_store: Callable[[NodeStore], NodeStore] = lambda store: store,
        wrap_processes: Callable[[Processes], Processes] = lambda processes: processes,
        controllers: Sequence[EngineAddress] = (EngineAddress("controller", 8400),),
    ) -> RunningAgent:
        self._lives += 1
        mount, view = self.disk.mount(), self.host.view()
        http = SimulatedHttpClient(self.network, NODE)
        scope, ended, shutdown = trio.CancelScope(), trio.Event(), Shutdown()
        ports = NodePorts(
            http=http,
            clock=self.clock,
            ids=SimulatedIds(self._streams.stream(f"ids/{self._lives}"), self.clock),
            store=wrap_store(SimulatedNodeStore(mount)),
            processes=wrap_processes(view),
            memory=self.memory,
            signer=self._key,
            verifier=self.verifier,
        )
        settings = NodeSettings(
            node=NODE,
            version="test",
            controllers=controllers,
            bearer=BEARER,
            working_directory="/",
        )

        async def live(*, task_status: trio.TaskStatus[NodeAgent]) -> None:
            with scope:
                await run_node_agent(ports, settings, shutdown, task_status=task_status)
            ended.set()

        def kill() -> None:
            """As kill -9: first nothing gets out any more, then it stops."""
            mount.kill()
            http.kill()
            view.die()
            scope.cancel()

        running = RunningAgent(None, shutdown, kill, ended)  # type: ignore[arg-type]  # known once it runs
        self.newest = running
        running.agent = await self._nursery.start(live)
        return running


@asynccontextmanager
async def node_world(clock: MockClock, limit_s: float = 3_600) -> AsyncIterator[NodeWorld]:
    """A world on ``clock``, which is virtual; a test that would wait for ever fails at ``limit_s``."""
    assert trio.current_time() == clock.current_time(), "the test does not run on its clock"
    with trio.fail_after(limit_s):
        async with trio.open_nursery() as nursery:
            yield NodeWorld(nursery)
            nursery.cancel_scope.cancel()
