"""One simulated machine with an agent, a small controller that speaks the node plane, and engines to run."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import attrs
import trio
from trio.testing import MockClock

from lunanexa_apps.node.enrolment import Admission
from lunanexa_apps.node.once import Round, run_node_once
from lunanexa_apps.node.service import NodeAgent, run_node_agent
from lunanexa_apps.node.settings import NodePorts, NodeSettings, Shutdown
from lunanexa_core.deployment import EngineSpec
from lunanexa_core.drivers.specification import EngineAddress
from lunanexa_core.identity.token import EnrolmentToken
from lunanexa_core.ids import AssignmentId, DeploymentId
from lunanexa_core.nodes.policy import NO_RULES
from lunanexa_core.southbound.documents import DesiredAssignment
from lunanexa_ports.asgi import AsgiApplication, Receive, Scope, Send
from lunanexa_ports.node_store import NodeStore
from lunanexa_ports.processes import Processes
from lunanexa_simulation.clock import SimulatedClock
from lunanexa_simulation.credentials import IdentityFolder, SimulatedCredentials
from lunanexa_simulation.disk import SimulatedDisk
from lunanexa_simulation.fleet_keys import SimulatedFleetKeys
from lunanexa_simulation.http_client import SimulatedHttpClient, SimulatedNetwork
from lunanexa_simulation.ids import SimulatedIds
from lunanexa_simulation.machine import SimulatedHost
from lunanexa_simulation.memory import SimulatedMemory
from lunanexa_simulation.node_store import SimulatedNodeStore
from lunanexa_simulation.process import SimulatedProcess
from lunanexa_simulation.processes import SimulatedProcesses
from lunanexa_simulation.rng import Streams
from lunanexa_simulation.signing import SimulatedKeyring, SimulatedVerifier
from tests.apps.tiny_controller import CLUSTER, NODE, TinyController, answer

__all__ = ["CLUSTER", "NODE", "TinyController", "answer"]

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


@attrs.frozen
class AgentParts:
    """The ports of one life, and what ends them as a kill does."""

    ports: NodePorts
    settings: NodeSettings
    kill: Callable[[], None]


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
        self.keyring = SimulatedKeyring()
        self._key = self.keyring.new_key(self._streams.stream("node"))
        self.verifier = SimulatedVerifier(self.keyring)
        self.stranger = self.keyring.new_key(self._streams.stream("stranger"))
        self.identity = IdentityFolder()
        self.controller_clock = SimulatedClock()
        self.controller = self.controller_of("controller")
        self.serve(self.controller)
        self.token: EnrolmentToken | None = self.controller.mint()
        self.policy = NO_RULES
        """Of the machine's owner, as the next agent finds it."""
        self.spent = 0
        """How often the agent said that its token is used."""
        self._lives = 0

    def controller_of(self, name: str) -> TinyController:
        """A controller with keys of its own."""
        keys = SimulatedFleetKeys(self.keyring, self._streams.stream(f"{name}/keys"))
        return TinyController(keys, self.verifier, self.controller_clock)

    def credentials(self, clock: SimulatedClock, folder: IdentityFolder | None = None) -> SimulatedCredentials:
        """Of one process."""
        return SimulatedCredentials(self.keyring, self._streams.stream("credentials"), clock, folder)

    def serve(
        self,
        controller: TinyController,
        host: str = "controller",
        app: AsgiApplication | None = None,
        credentials: SimulatedCredentials | None = None,
    ) -> SimulatedCredentials:
        """Puts a controller on the network; ``app`` stands in its place."""
        if credentials is None:
            credentials = self.credentials(self.controller_clock)
            controller.serve_as(credentials, host)
        self.network.listen(host, 8400, app or controller, credentials=credentials)
        return credentials

    async def start(
        self,
        wrap_store: Callable[[NodeStore], NodeStore] = lambda store: store,
        wrap_processes: Callable[[Processes], Processes] = lambda processes: processes,
        controllers: Sequence[EngineAddress] = (EngineAddress("controller", 8400),),
        data_address: str | None = None,
    ) -> RunningAgent:
        parts = self.parts(controllers)
        ports = attrs.evolve(
            parts.ports, store=wrap_store(parts.ports.store), processes=wrap_processes(parts.ports.processes)
        )
        scope, ended, shutdown = trio.CancelScope(), trio.Event(), Shutdown()
        admission = self.admission(data_address)

        async def live(*, task_status: trio.TaskStatus[NodeAgent]) -> None:
            with scope:
                await run_node_agent(ports, parts.settings, shutdown, admission=admission, task_status=task_status)
            ended.set()

        def kill() -> None:
            """As kill -9: first nothing gets out any more, then it stops."""
            parts.kill()
            scope.cancel()

        running = RunningAgent(None, shutdown, kill, ended)  # type: ignore[arg-type]  # known once it runs
        self.newest = running
        running.agent = await self._nursery.start(live)
        return running

    async def round(self, limit_s: float = 60) -> Round:
        """An agent that goes after one round."""
        parts = self.parts()
        return await run_node_once(parts.ports, parts.settings, admission=self.admission(), limit_s=limit_s)

    def parts(self, controllers: Sequence[EngineAddress] = (EngineAddress("controller", 8400),)) -> "AgentParts":
        """What one life of an agent stands on."""
        self._lives += 1
        mount, view = self.disk.mount(), SimulatedProcesses(self.host)
        credentials = self.credentials(self.clock, self.identity)
        http = SimulatedHttpClient(self.network, NODE)
        control = SimulatedHttpClient(self.network, NODE, credentials=credentials)
        ports = NodePorts(
            http=http,
            control=control,
            credentials=credentials,
            clock=self.clock,
            ids=SimulatedIds(self._streams.stream(f"ids/{self._lives}"), self.clock),
            store=SimulatedNodeStore(mount),
            processes=view,
            memory=self.memory,
            signer=self._key,
            verifier=self.verifier,
        )
        settings = NodeSettings(
            node=NODE, version="test", controllers=controllers, working_directory="/", policy=self.policy
        )

        def kill() -> None:
            mount.kill()
            http.kill()
            control.kill()
            view.die()

        return AgentParts(ports, settings, kill)

    def admission(self, data_address: str | None = None) -> Admission | None:
        """By the world's token."""
        if self.token is None:
            return None
        return Admission(token=self.token, data_address=data_address, used=self._spend)

    def _spend(self) -> None:
        self.spent += 1


@asynccontextmanager
async def node_world(clock: MockClock, limit_s: float = 3_600) -> AsyncIterator[NodeWorld]:
    """A world on ``clock``, which is virtual; a test that would wait for ever fails at ``limit_s``."""
    assert trio.current_time() == clock.current_time(), "the test does not run on its clock"
    with trio.fail_after(limit_s):
        async with trio.open_nursery() as nursery:
            yield NodeWorld(nursery)
            nursery.cancel_scope.cancel()
