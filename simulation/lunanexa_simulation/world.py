"""A whole fleet in one process, with a client, and the checkers that look at everything: what scenarios do with it, and
what they see of it."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

import trio

from lunanexa_apps.controller.kernel import Kernel
from lunanexa_apps.engine.settings import EngineSettings
from lunanexa_core.events import Liveness
from lunanexa_core.identity.token import EnrolmentToken, parse_token
from lunanexa_core.ids import DeploymentId, NodeId, StartId
from lunanexa_core.nodes.liveness import is_heard
from lunanexa_core.workload import Receipt
from lunanexa_ports.http_client import HttpBroken, HttpUnreachable
from lunanexa_simulation.checkers import Checkers
from lunanexa_simulation.client import Answer, Client, Oracle
from lunanexa_simulation.controller_host import HOST, PORT, ControllerHost
from lunanexa_simulation.engine_program import BINARY, MODEL
from lunanexa_simulation.eyes import Eyes
from lunanexa_simulation.fleet import Fleet
from lunanexa_simulation.http_client import SimulatedHttpClient
from lunanexa_simulation.installation import PROMPT_SECRET
from lunanexa_simulation.run import Run
from lunanexa_simulation.websocket_client import StreamCaller
from lunanexa_simulation.world_plan import WorldPlan

MODEL_ALIAS: Final = "tiny"
SERVED_NAME: Final = "reference"
DEPLOYMENT: Final = "tiny"
TOKENS: Final = 64
"""What every answer has."""


class World(Fleet):
    """Made by :func:`open_world`."""

    def __init__(self, run: Run, nursery: trio.Nursery, plan: WorldPlan) -> None:
        super().__init__(run, nursery, plan)
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
        return all(host.name in known and known[host.name].liveness is Liveness.READY for host in self.nodes)

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
