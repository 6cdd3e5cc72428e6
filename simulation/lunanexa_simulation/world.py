"""A whole fleet in one process: a controller and its nodes, each with its disk and its clock, a
network between them, a client, and the checkers that look at everything.

Times of two machines are never compared, so each machine has a clock of its own, which starts elsewhere.
Every name, port and secret is drawn from the seed or written here.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

import attrs
import trio

from lunanexa_apps.controller.gateway.settings import GatewaySettings
from lunanexa_apps.controller.kernel import Kernel
from lunanexa_apps.engine.settings import EngineSettings
from lunanexa_core.events import Liveness
from lunanexa_core.identity.token import EnrolmentToken, parse_token
from lunanexa_core.ids import ClusterId, DeploymentId, NodeId, StartId
from lunanexa_core.nodes.liveness import is_heard
from lunanexa_core.policy import Policy
from lunanexa_core.workload import Receipt
from lunanexa_ports.http_client import HttpBroken, HttpUnreachable
from lunanexa_simulation.checkers import Checkers
from lunanexa_simulation.client import Answer, Client, Oracle
from lunanexa_simulation.clock import EPOCH_WALL_MS, SimulatedClock
from lunanexa_simulation.controller_host import HOST, PORT, ControllerHost
from lunanexa_simulation.disk import SimulatedDisk
from lunanexa_simulation.engine_program import BINARY, MODEL
from lunanexa_simulation.eyes import Eyes
from lunanexa_simulation.fleet_keys import SimulatedFleetKeys
from lunanexa_simulation.http_client import SimulatedHttpClient, SimulatedNetwork
from lunanexa_simulation.ids import SimulatedIds
from lunanexa_simulation.installation import PROMPT_SECRET, Installation, Secrets
from lunanexa_simulation.journal import JournalState
from lunanexa_simulation.node_host import PORTS_EACH, NodeHost
from lunanexa_simulation.promises import Promises
from lunanexa_simulation.run import Run
from lunanexa_simulation.sight import Sight
from lunanexa_simulation.signing import SimulatedKeyring, SimulatedVerifier
from lunanexa_simulation.websocket_client import StreamCaller

MODEL_ALIAS: Final = "tiny"
SERVED_NAME: Final = "reference"
DEPLOYMENT: Final = "tiny"
DATA_PORT: Final = 8500
NODES_MAX: Final = 100
_PORTS: Final = 25_000
"""Of all engines together."""
TOKENS: Final = 64
"""What every answer has."""


@attrs.frozen(kw_only=True)
class WorldPlan:
    """What a scenario's world is made of."""

    nodes: int = attrs.field(
        default=1, validator=attrs.validators.and_(attrs.validators.ge(1), attrs.validators.le(NODES_MAX))
    )
    latency_ms: tuple[int, int] = (1, 4)
    sync_ms: int = 2
    """How long a disk takes until a write is durable."""
    policy: Policy = attrs.Factory(Policy)
    snapshot_rows: int = 20
    """Few, so that runs of seconds are restarted from snapshots."""
    gateway: GatewaySettings = attrs.Factory(GatewaySettings)
    engine_arguments: tuple[str, ...] = ("--ttft-ms", "32", "--itl-ms", "16")
    engine_slots: int = 4
    restart_budget: int = 5
    engine_memory: Mapping[str, int] = attrs.Factory(dict)
    """What the engine's specification says of memory, by member."""
    specification: Mapping[str, object] = attrs.Factory(dict)
    """What the deployment's specification says beside its engine."""
    linger_ms: int = 3_000
    """How long a killed process stays in the kernel's hands."""
    doors: bool = True
    """Whether each node has a data listener, over mutual TLS; else its engines are reached in the clear."""
    controllers: int = 1
    """How many share the journal; one of them leads."""
    controllers_told: int | None = None
    """Of how many, from the first on, nodes are told at enrolment; ``None``: of all."""


class World(Promises):
    """Made by :func:`open_world`."""

    def __init__(self, run: Run, nursery: trio.Nursery, plan: WorldPlan) -> None:
        super().__init__(run)
        self.plan = plan
        self._nursery = nursery
        self.network = SimulatedNetwork(nursery, run.streams, latency_ms=plan.latency_ms)
        self.clock = SimulatedClock(mono_ms=1_000_000, wall_ms=EPOCH_WALL_MS)
        ids = SimulatedIds(run.streams.stream("installation"), self.clock)
        self.secrets = Secrets.draw(ids)
        self.keyring = keyring = SimulatedKeyring()
        self.fleet_keys = SimulatedFleetKeys(keyring, run.streams.stream("controller/keys"))
        installation = Installation(
            begin=self.secrets.begin(ClusterId(ids.new("cl")), self.fleet_keys),
            engine_secret=self.secrets.engine,
            keyring=keyring,
            fleet_keys=self.fleet_keys,
            verifier=SimulatedVerifier(keyring),
            policy=attrs.evolve(plan.policy, snapshot_rows=plan.snapshot_rows),
            gateway=plan.gateway,
        )
        disk = SimulatedDisk()
        disk.faults.delay_ms = plan.sync_ms
        self.sight = Sight(rows=disk.state(JournalState).rows)
        self.clocks = [self.clock]
        """Of each controller's machine."""
        for number in range(2, plan.controllers + 1):
            self.clocks.append(SimulatedClock(mono_ms=number * 3_333_333, wall_ms=EPOCH_WALL_MS - number))
        self.controllers = [
            ControllerHost(
                nursery=nursery,
                network=self.network,
                streams=run.streams,
                clock=clock,
                installation=installation,
                disk=disk,
                sight=self.sight,
                host=HOST if number == 1 else f"{HOST}-{number}",
            )
            for number, clock in enumerate(self.clocks, start=1)
        ]
        self.nodes = [
            NodeHost(
                nursery=nursery,
                network=self.network,
                streams=run.streams,
                keyring=keyring,
                name=NodeId(f"sim-dgx-{number}"),
                number=number,
                controllers=[host.node_address for host in self.controllers[: plan.controllers_told]],
                data_port=DATA_PORT if plan.doors else None,
                sync_ms=plan.sync_ms,
                linger_ms=plan.linger_ms,
                ports_each=min(PORTS_EACH, _PORTS // plan.nodes),
            )
            for number in range(1, plan.nodes + 1)
        ]
        self.client = Client(
            SimulatedHttpClient(self.network, "client"),
            host=HOST,
            port=PORT,
            api_key=self.secrets.api_key,
            trace=run.trace,
            name="client",
        )
        self.caller = StreamCaller(
            self.network, host=HOST, port=PORT, api_key=self.secrets.api_key, trace=run.trace, name="caller"
        )
        self.oracle = Oracle(EngineSettings(names=(SERVED_NAME,)), MODEL)
        self.checkers = Checkers(self.sight, asked=run.asked)
        self._eyes = Eyes(run, self.checkers, controllers=self.controllers, nodes=self.nodes, secrets=self.secrets)
        run.checks.append(self._look)

    # --- what scenarios do ---

    async def start(self) -> None:
        """Powers everything on; returns when the controller serves and every node has enrolled."""
        await self.start_controller()
        for number in range(len(self.nodes)):
            await self.let_in(number)
            await self.start_agent(number)
        await self.until("every node is enrolled and heard", self._all_heard, within_ms=30_000)

    def _all_heard(self) -> bool:
        known = self.kernel.state.nodes
        return len(known) == len(self.nodes) and all(node.liveness is Liveness.READY for node in known.values())

    async def let_in(self, number: int = 0, *, again: bool = False) -> None:
        """Has a token minted, by which the node's next agent enrols."""
        self.check(f"a token is minted for {self.nodes[number].name}", await self.try_to_let_in(number, again=again))

    async def try_to_let_in(self, number: int = 0, *, again: bool = False) -> bool:
        """The same where it may be that nobody answers."""
        name = self.nodes[number].name
        try:
            status, minted = await self.operate(
                "POST", f"/admin/v1/nodes/{name}/token", {"again": again, "loopback": not self.plan.doors}
            )
        except (HttpUnreachable, HttpBroken):
            return False
        if status != 200:
            return False
        token = parse_token(minted["line"])
        assert isinstance(token, EnrolmentToken), token
        self._eyes.plant(f"the token {token.token}", token.secret)
        self.nodes[number].token = token
        return True

    async def start_controller(self) -> None:
        """Starts the controller from its disk."""
        await self.controller.start()
        self.trace(f"controller serves in epoch {self.kernel.epoch}")

    async def start_standbys(self) -> None:
        """Starts the other controllers; they follow the one that leads."""
        for host in self.controllers:
            if not host.up:
                await host.start()
                self.trace(f"{host.host} follows")

    def turn_clients(self) -> None:
        """The client's calls go to the controller that leads, as a load balancer has them go."""
        self.client.turn_to(self.controller.host)

    async def start_agent(self, number: int = 0) -> None:
        """Starts one node's agent from its disk."""
        await self.nodes[number].start()
        self.trace(f"{self.nodes[number].name}: agent started")

    async def stop(self) -> None:
        """Ends everything in order: the agents stop their engines, then the controller goes."""
        for node in self.nodes:
            await node.stop()
            self.trace(f"{node.name}: agent stopped")
            self.check("a stopped agent leaves no engine", not node.engines(), node.running())
        self.checkers.look_back()
        for host in [host for host in self.controllers if host.up]:
            await host.stop()
        self.trace("controller stopped")

    async def deploy(self, *, replicas: int = 1, slots: int | None = None) -> None:
        """Deploys the reference engine, through the operator plane; again: changes it."""
        status, answer = await self.ask_to_deploy(replicas=replicas, slots=slots or self.plan.engine_slots)
        self.check("the deployment is accepted", status == 200, answer)

    async def ask_to_deploy(self, *, replicas: int, slots: int) -> tuple[int, Any]:
        """The same, whatever the answer."""
        document = {
            "alias": MODEL_ALIAS,
            "replicas": replicas,
            **self.plan.specification,
            "engine": {
                "driver": "reference",
                "served_name": SERVED_NAME,
                "binary": BINARY,
                "arguments": list(self.plan.engine_arguments),
                "slots": slots,
                "restart_budget": self.plan.restart_budget,
                **self.plan.engine_memory,
            },
        }
        return await self.operate("PUT", f"/admin/v1/deployments/{DEPLOYMENT}", document)

    async def operate(self, method: str, target: str, body: object = None) -> tuple[int, Any]:
        """A call of the operator plane."""
        return await self.client.call(method, target, self.secrets.operator_token, body)

    async def make_key(self, name: str, **limits: object) -> tuple[str, Client]:
        """A key made by the operator plane: its identifier, and a client that has it."""
        status, made = await self.operate("POST", "/admin/v1/keys", {"name": name, **limits})
        self.check(f"the key {name} is made", status == 200, made)
        self._eyes.plant(name, made["secret"])
        http = SimulatedHttpClient(self.network, name)
        client = Client(http, host=HOST, port=PORT, api_key=made["secret"], trace=self.run.trace, name=name)
        return made["key"], client

    def prompt(self, about: str, **more: object) -> dict[str, object]:
        """The body of a chat request. What it says is planted: it may be shown nowhere."""
        return {
            "model": MODEL_ALIAS,
            "messages": [{"role": "user", "content": f"{PROMPT_SECRET}: {about}"}],
            "max_tokens": TOKENS,
            "ignore_eos": True,
            **more,
        }

    @asynccontextmanager
    async def streams(
        self, count: int, about: str, **more: object
    ) -> AsyncIterator[list[tuple[Mapping[str, Any], Answer]]]:
        """``count`` streams that run inside: each has brought text when the block begins. After it the list holds
        what was asked and what came of it."""
        ended: list[tuple[Mapping[str, Any], Answer]] = []

        async def one(number: int) -> None:
            body = self.prompt(f"{about} ({number})", stream=True, **more)
            ended.append((body, await self.client.chat(body)))

        async with trio.open_nursery() as nursery:
            running = self.client.begun + count
            for number in range(count):
                nursery.start_soon(one, number)
            await self.until("the streams run", lambda: self.client.begun == running, within_ms=60_000)
            yield ended

    def check_answer(self, name: str, body: Mapping[str, Any], answer: Answer) -> None:
        """The answer's text is what the engine says, or where it was cut a beginning of it."""
        fault = self.oracle.fault(body, answer)
        self.check(name, fault is None, fault)

    # --- what scenarios see ---

    @property
    def controller(self) -> ControllerHost:
        """The one that leads; while none does, the first that runs, or the first of all."""
        up = [host for host in self.controllers if host.up]
        leading = [host for host in up if host.kernel.leading]
        if leading:
            return max(leading, key=lambda host: host.kernel.epoch)
        return (up or self.controllers)[0]

    @property
    def kernel(self) -> Kernel:
        """The live kernel; there is none while the controller is down."""
        return self.controller.kernel

    @property
    def receipts(self) -> Sequence[Receipt]:
        """All receipts, from the ledger's rows, in order."""
        self.sight.catch_up()
        return [receipt for receipts in self.sight.shadow.receipts.values() for receipt in receipts]

    def heard(self, node: NodeId) -> bool:
        """Whether the leader heard a node within its lease."""
        return is_heard(self.kernel.observed, self.plan.policy, node, self.kernel.now())

    def routable(self) -> int:
        """How many replicas would be granted a request now."""
        return len(self.sight.routable(self.kernel, DeploymentId(DEPLOYMENT)))

    def newest_start(self) -> StartId | None:
        """The start of the one replica that was reported last."""
        reports = list(self.kernel.state.replicas.values())
        return reports[0].start if reports else None

    def _look(self) -> None:
        if not self._nursery.cancel_scope.cancel_called:  # A world that is torn down keeps no promises.
            self._eyes.look()


@asynccontextmanager
async def open_world(run: Run, plan: WorldPlan | None = None) -> AsyncIterator[World]:
    """A world with everything switched off. At its end every invariant is asked once more, with a full replay."""
    async with trio.open_nursery() as nursery:
        world = World(run, nursery, WorldPlan() if plan is None else plan)
        run.manner.attend(world)
        yield world
        world.checkers.look()
        world.checkers.look_back()
        nursery.cancel_scope.cancel("the scenario is over")
