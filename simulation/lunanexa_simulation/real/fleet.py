"""One controller, its agents and their engines, as processes of this machine."""

import json
import os
import signal
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final

import trio

from lunanexa_core.identity.token import EnrolmentToken, parse_token
from lunanexa_ports.children import ChildOrder, Children
from lunanexa_ports.http_client import HttpBroken, HttpClient, HttpUnreachable
from lunanexa_simulation.client import Client
from lunanexa_simulation.real.managed import Managed
from lunanexa_simulation.real.orders import Places, agent_order, controller_order, engine_binary, node_name
from lunanexa_simulation.real.plan import Part, Target
from lunanexa_simulation.real.proc import engines_in, ours_that_hold
from lunanexa_simulation.real.promises import POLL_S, ProcessCrashed, Promises
from lunanexa_simulation.real.view import lacking_nodes, lacking_replicas, replicas_of
from lunanexa_simulation.trace import Trace

ALIAS: Final = "tiny"
SERVED_NAME: Final = "reference"
SLOTS: Final = 4
ITL_MS: Final = 16
START_S: Final = 60.0
STOP_S: Final = 30.0
"""Agents give their engines ten seconds each."""
ASK_S: Final = 10.0
WATCH_S: Final = 0.25
LOG_BYTES_MAX: Final = 8 << 20
"""Of one process in one run, which says some hundred lines."""
_RESTARTS_MAX: Final = 1_000
"""More engines die here than anywhere else; none is to be given up for that."""


class Fleet:
    """Made once; its processes are killed and started at will. ``nursery`` watches them. Raises ``PortFault`` where
    there is no engine to start."""

    def __init__(
        self,
        places: Places,
        promises: Promises,
        *,
        children: Children,
        http: HttpClient,
        trace: Trace,
        nursery: trio.Nursery,
        environment: Mapping[str, str],
    ) -> None:
        self.places = places
        self.names = [node_name(number) for number in places.nodes]
        self._engine = engine_binary()
        self._promises = promises
        self._http = http
        self._trace = trace

        def managed(order: ChildOrder) -> Managed:
            return Managed(order, places.log(order.name), children, nursery)

        self.controller = managed(controller_order(places, environment))
        self.agents = [managed(agent_order(places, number, environment)) for number in places.nodes]
        self.secrets: dict[str, str] = {}
        """All that was made to be shown nowhere, by what it is."""

    async def begin(self) -> None:
        """Starts everything; returns when every node has a replica that is granted requests."""
        await self.start_controller()
        for number in self.places.nodes:
            await self._let_in(number)
            await self.agents[number - 1].start()
        await self._promises.until("every node has enrolled over mutual TLS", self._nodes_lacking, within_s=START_S)
        await self._deploy()
        lacking = partial(self.lacking, lacking_replicas)
        await self._promises.until("every node has an engine that serves", lacking, within_s=START_S)

    async def start_controller(self) -> None:
        """Returns when it serves."""
        await self.controller.start()
        await self._promises.until("the controller serves", self._not_serving, within_s=START_S)
        facts = json.loads(self.places.ready_file.read_bytes())
        self.secrets["the API key"], self.secrets["the operator token"] = facts["api_key"], facts["operator_token"]

    def client(self, name: str) -> Client:
        """One that has the API key."""
        return self._client(name, self.secrets["the API key"])

    async def ask(self, target: str, method: str = "GET", body: object = None) -> Any:
        """What the operator plane answers; nothing where it can't, refuses, or takes too long."""
        client = self._client("operator", self.secrets["the operator token"])
        with suppress(HttpUnreachable, HttpBroken), trio.move_on_after(ASK_S):
            status, document = await client.call(method, target, body=body)
            return document if status == 200 else None
        return None

    async def status(self) -> Any:
        """The status document, of a controller that leads; nothing where there is none."""
        status = await self.ask("/admin/v1/status")
        return status if status is not None and status["leading"] else None

    async def lacking(self, why: Callable[[Mapping[str, Any], Sequence[str]], str | None]) -> str | None:
        """What ``why`` says of the status and all nodes."""
        status = await self.status()
        return "the controller does not lead" if status is None else why(status, self.names)

    async def kill(self, target: Target) -> None:
        """SIGKILL. What is gone is not started again by this."""
        if target.part is Part.ENGINE:
            _kill(engines_in(self.places.node(target.node)))
        else:
            await self._managed(target).kill()

    async def start(self, target: Target) -> None:
        """What is ours to start; an engine is its agent's."""
        match target.part:
            case Part.CONTROLLER:
                await self.start_controller()
            case Part.AGENT:
                await self._managed(target).start()
            case Part.ENGINE:
                pass

    def pause(self, target: Target) -> None:
        """SIGSTOP: its sockets stay open, and nobody is there."""
        self._managed(target).signal(signal.SIGSTOP)

    def resume(self, target: Target) -> None:
        self._managed(target).signal(signal.SIGCONT)

    async def watch(self) -> None:
        """Looks at the machine again and again, until it is cancelled."""
        while True:
            self.look()
            await trio.sleep(WATCH_S)

    def look(self) -> None:
        """No node has two engines, and no log is flooded."""
        for number in self.places.nodes:
            engines = engines_in(self.places.node(number))
            fault = f"{node_name(number)} has processes {engines}" if len(engines) > 1 else None
            self._promises.check("a node has one engine at most", fault, often=True)
        for process in (self.controller, *self.agents):
            size = process.log.stat().st_size if process.log.exists() else 0
            fault = f"{process.log.name} has {size} bytes" if size > LOG_BYTES_MAX else None
            self._promises.check("no log is flooded", fault, often=True)

    async def end(self) -> None:
        """Agents first, which take their engines down; then the controller."""
        statuses: dict[str, int | None] = {}

        async def stop(process: Managed) -> None:
            statuses[process.name] = await process.stop(STOP_S)

        async with trio.open_nursery() as nursery:
            for agent in self.agents:
                nursery.start_soon(stop, agent)
        left = [pid for number in self.places.nodes for pid in engines_in(self.places.node(number))]
        self._promises.check("agents that are stopped leave no engine", left)
        await stop(self.controller)
        wrong = {name: status for name, status in statuses.items() if status != 0}
        self._promises.check("every process ends in order, with status 0", wrong)
        self._promises.check("no process is left", ours_that_hold(self.places.folder))

    async def crash(self) -> ProcessCrashed | None:
        """What ended untold, if anything did."""
        for process in (self.controller, *self.agents):
            crash = await process.crash()
            if crash is not None:
                return crash
        return None

    async def end_at_once(self) -> None:
        """Leaves no process behind, whatever went wrong."""
        for process in (self.controller, *self.agents):
            if process.pid is not None:
                await process.kill()
        while left := ours_that_hold(self.places.folder):  # Again and again: one may just be starting another.
            _kill(left)
            await trio.sleep(POLL_S)

    async def _let_in(self, number: int) -> None:
        minted = await self.ask(f"/admin/v1/nodes/{node_name(number)}/token", "POST", {})
        self._promises.check(f"a token is minted for {node_name(number)}", None if minted else "it was refused")
        file = os.open(self.places.token_file(number), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(file, "w") as token:
            token.write(minted["line"])
        known = parse_token(minted["line"])
        assert isinstance(known, EnrolmentToken), known
        self.secrets[f"the token of {node_name(number)}"] = known.secret

    async def _deploy(self) -> None:
        engine = {
            "driver": "reference",
            "served_name": SERVED_NAME,
            "binary": self._engine,
            "arguments": ["--itl-ms", str(ITL_MS)],
            "slots": SLOTS,
            "restart_budget": _RESTARTS_MAX,
        }
        body = {"alias": ALIAS, "replicas": len(self.names), "engine": engine}
        answer = await self.ask(f"/admin/v1/deployments/{ALIAS}", "PUT", body)
        self._promises.check("the deployment is accepted", None if answer else "it was refused")

    async def _nodes_lacking(self) -> str | None:
        return await self.lacking(lacking_nodes)

    async def _not_serving(self) -> str | None:
        try:
            facts = json.loads(self.places.ready_file.read_bytes())
        except FileNotFoundError:
            return "it has written no ready file"
        return None if facts["pid"] == self.controller.pid else "the ready file is another process's"

    def _client(self, name: str, secret: str) -> Client:
        front = self.places.front
        return Client(self._http, host=front.host, port=front.port, api_key=secret, trace=self._trace, name=name)

    def _managed(self, target: Target) -> Managed:
        return self.controller if target.part is Part.CONTROLLER else self.agents[target.node - 1]


def _kill(pids: Iterable[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def starts_of(status: Mapping[str, Any]) -> dict[str, tuple[str | None, int | None]]:
    """Start and process of each node's engine."""
    return {node: (replica.start, replica.pid) for node, replica in replicas_of(status).items()}
