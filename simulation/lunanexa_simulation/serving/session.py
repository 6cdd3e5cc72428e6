"""One session: a world is made, serves until it is told to stop, and is stopped in order."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final, Protocol

import attrs
import trio

from lunanexa_core.placement.specification import REPLICAS_MAX
from lunanexa_simulation.ids import SimulatedIds
from lunanexa_simulation.rng import Streams
from lunanexa_simulation.run import Run, logs_to
from lunanexa_simulation.serving.application import ServingApp
from lunanexa_simulation.serving.board import FaultBoard
from lunanexa_simulation.serving.console import Console
from lunanexa_simulation.serving.feed import Feed
from lunanexa_simulation.serving.front import Front
from lunanexa_simulation.serving.real_time import RealTime
from lunanexa_simulation.serving.status import Access
from lunanexa_simulation.serving.tools import Listening
from lunanexa_simulation.serving.watch import Watch
from lunanexa_simulation.trace import LogBuffer, Trace, virtual_ms
from lunanexa_simulation.verdicts import SafetyBroken, Verdict, detail_of, first_cause, problem_of, verdict_of
from lunanexa_simulation.world import World, open_world
from lunanexa_simulation.world_plan import WorldPlan

READY_MS: Final = 120_000
HEAL_S: Final = 5.0
STOP_S: Final = 20.0
_SHOW_S: Final = 0.5


class Board(Protocol):
    """Where it is told."""

    def show(self, line: str) -> None: ...

    def say(self, line: str) -> None: ...


@attrs.frozen(kw_only=True)
class ServeOrder:
    """What is wanted."""

    seed: int
    nodes: int
    controllers: int
    for_s: float | None
    """It stops by itself after so long."""


@attrs.frozen(kw_only=True)
class ServeResult:
    """What came of it."""

    verdict: Verdict
    problem: str | None
    detail: str
    served_ms: int
    instants: int
    asked: Mapping[str, int]
    broken: Mapping[str, str]
    happened: Mapping[str, int]
    tail: tuple[str, ...]


def plan_of(order: ServeOrder) -> WorldPlan:
    """A world for people: an engine that failed often is started all the same, and nothing is slow without a fault."""
    return WorldPlan(
        nodes=order.nodes,
        controllers=order.controllers,
        restart_budget=1_000,
        snapshot_rows=1_000,
        linger_ms=50,
    )


class Session:
    """Runs once, on a loop whose clock is ``time``."""

    def __init__(
        self,
        order: ServeOrder,
        time: RealTime,
        listening: Listening,
        board: Board,
        announce: Callable[[Access, WorldPlan], None],
    ) -> None:
        """``announce``: called when everything serves."""
        self._order = order
        self._time = time
        self._listening = listening
        self._board = board
        self._announce = announce
        self._starting = trio.CancelScope()
        self._stopping = trio.Event()
        self._watch: Watch | None = None
        self._served_ms = 0

    def stop(self) -> None:
        """In order, whatever it does now."""
        self._starting.cancel("it is told to stop")
        self._stopping.set()

    async def run(self) -> ServeResult:
        """Until it is told to stop, its time is over, or a service crashed."""
        trace = Trace()
        run = Run(self._order.seed, Streams(self._order.seed), trace, LogBuffer(trace), [])
        broken: BaseException | None = None
        with logs_to(run.logs):
            try:
                await self._live(run)
            except BaseExceptionGroup as group:
                broken = first_cause(group)
        watched = {} if self._watch is None else self._watch.broken
        if broken is None and watched:
            name, told = next(iter(watched.items()))
            broken = SafetyBroken(f"{name}: {told}")
        return ServeResult(
            verdict=verdict_of(broken),
            problem=None if broken is None else problem_of(broken),
            detail="" if verdict_of(broken) is not Verdict.CRASHED or broken is None else detail_of(broken),
            served_ms=self._served_ms,
            instants=run.instants,
            asked=dict(run.asked),
            broken=watched,
            happened=dict(run.happened),
            tail=trace.tail,
        )

    async def _live(self, run: Run) -> None:
        plan = plan_of(self._order)
        feed = Feed(run.trace)
        async with trio.open_nursery() as around, open_world(run, plan) as world:
            watch = self._watch = Watch(world, self._time.held, self._board.say)
            around.start_soon(watch.run)
            faults = FaultBoard(world, around, watch, self._board.say)
            with self._starting:
                await self._start(world)
            if not self._starting.cancelled_caught:
                await self._serve(world, plan, faults, watch, feed)
            self._board.show("it stops")
            await self._end(world, faults, watch)
            around.cancel_scope.cancel("the session is over")

    async def _start(self, world: World) -> None:
        self._board.show(f"{len(world.nodes)} nodes enrol")
        await world.start()
        await world.start_standbys()
        replicas = min(len(world.nodes), REPLICAS_MAX)
        await world.deploy(replicas=replicas)
        self._board.show(f"{replicas} engines start")
        await world.until("every replica is routable", lambda: world.routable() == replicas, within_ms=READY_MS)

    async def _serve(self, world: World, plan: WorldPlan, faults: FaultBoard, watch: Watch, feed: Feed) -> None:
        access = Access(
            base_url=f"http://{self._listening.address}/v1",
            api_key=world.secrets.api_key,
            operator_token=world.secrets.operator_token,
        )
        ids = SimulatedIds(world.run.streams.stream("front"), world.clock)
        app = ServingApp(world, Front(world), Console(world, access, faults, watch, feed), ids)
        shutdown = trio.Event()
        fault = partial(world.run.trace.record, "front")
        async with trio.open_nursery() as around:
            async with trio.open_nursery() as serving:
                await serving.start(partial(self._listening.serve, app, shutdown=shutdown, fault=fault))
                began_ms = virtual_ms()
                self._announce(access, plan)
                around.start_soon(self._show, world, faults)
                with trio.move_on_after(float("inf") if self._order.for_s is None else self._order.for_s):
                    await self._stopping.wait()
                self._served_ms = virtual_ms() - began_ms
                shutdown.set()
            around.cancel_scope.cancel("nobody is served any more")

    async def _show(self, world: World, faults: FaultBoard) -> None:
        while True:
            open_now = len(world.controller.kernel.state.open) if world.controller.up else 0
            asked = sum(count for name, count in world.run.happened.items() if name.endswith("asked"))
            told = ", ".join(one.told for one in faults.in_force.values()) or "no fault in force"
            self._board.show(f"{asked} asked, {open_now} open, {told}")
            await trio.sleep(_SHOW_S)

    async def _end(self, world: World, faults: FaultBoard, watch: Watch) -> None:
        """What was broken is mended first. What can't be stopped in order ends as it stands."""
        with trio.move_on_after(HEAL_S):
            await faults.heal_all()
        whole = not faults.in_force and world.controller.up and all(node.up for node in world.nodes)
        if not whole:
            self._board.say("stopped as it stands: it was not whole")
            return
        with trio.move_on_after(STOP_S) as patience:
            try:
                await _stop(world)
            except SafetyBroken as broken:
                watch.note(broken)
        if patience.cancelled_caught:
            self._board.say(f"stopped as it stands: not all had ended after {STOP_S:.0f} seconds")


async def _stop(world: World) -> None:
    """All agents at once, which stop their engines; then the controllers."""
    async with trio.open_nursery() as nursery:
        for node in world.nodes:
            nursery.start_soon(node.stop)
    for node in world.nodes:
        world.check(f"{node.name} has stopped, and left no engine", not node.engines(), node.running())
    world.checkers.look_back()
    for host in [host for host in world.controllers if host.up]:
        await host.stop()
