"""An exclusive deployment on three nodes: never two living engines, whatever is cut, dies or is told to move.

The node that has it is cut off in both ways, in one and in the other: it ends its engine by itself, and only then a
successor starts elsewhere. A controller and an agent die meanwhile. What comes back in time goes on as it was.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import trio

from lunanexa_core.deployment import Assignment
from lunanexa_core.events import Liveness
from lunanexa_core.ids import AssignmentId, StartId
from lunanexa_core.southbound.documents import Directive
from lunanexa_core.southbound.lease import cut_off_bound_ms, run_out_ms
from lunanexa_simulation.faults import Way, crash_agent, crash_controller, join, part
from lunanexa_simulation.node_host import NodeHost
from lunanexa_simulation.run import Run
from lunanexa_simulation.scenarios.steps import at_rest, served, until_listed
from lunanexa_simulation.trace import virtual_ms
from lunanexa_simulation.world import World, open_world
from lunanexa_simulation.world_plan import WorldPlan

KEEP_MS: Final = 4_000
STOP_MS: Final = 10_000
"""What an engine's specification says by itself."""
PLAN: Final = WorldPlan(nodes=3, specification={"exclusive": True, "cut_off_keep_ms": KEEP_MS})
SILENCE_MS: Final = run_out_ms(PLAN.policy.node_lease_ms, cut_off_bound_ms(KEEP_MS, STOP_MS)) or 0
LOADING_MS: Final = 2_000
LOADED_MS: Final = 5_000
BACK_MS: Final = 40_000
LOST_MS: Final = 3 * PLAN.policy.node_lease_ms
"""What a node says that hears nothing arrives at first: by each connection that it had."""


async def main(run: Run) -> None:
    """The scenario."""
    await play(run, PLAN)


async def play(run: Run, plan: WorldPlan) -> None:
    """The same in another world."""
    async with open_world(run, plan) as world:
        for node in world.nodes:
            node.machine.faults.spawn_ms = LOADING_MS
        await world.start()
        await world.deploy()
        await _until_serves(world, "at first")
        await until_listed(world, "at first")
        for way in Way:
            await _cut_off(world, way, f"after a cut {way.value}")
        await _back_in_time(world)
        await _back_as_its_successor_loads(world)
        await _cut_off(world, Way.BOTH, "though a controller died", meanwhile=_controller_dies)
        await _cut_off(world, Way.BOTH, "though its agent died", meanwhile=_agent_dies)
        await _agent_dies_in_touch(world)
        await _moved(world)
        await _changed(world)
        await at_rest(world, "after all")
        await world.stop()


async def _cut_off(
    world: World, way: Way, when: str, *, meanwhile: Callable[[World, int], Awaitable[None]] | None = None
) -> None:
    """Its node is cut off until another has it, and comes back to find nothing to do."""
    host = _holder(world)
    number = world.nodes.index(host)
    await world.dither("cut", 1_500)
    began_ms = virtual_ms()
    part(world, number, way)
    await _until(world, host, Liveness.LOST, LOST_MS)
    if meanwhile is not None:
        await meanwhile(world, number)
    await world.until(f"its node ends it by itself {when}", lambda: not host.engines(), within_ms=SILENCE_MS)
    world.trace(f"gone {virtual_ms() - began_ms} ms after the cut")
    await world.until(
        f"another node has it {when}",
        lambda: world.routable() == 1 and _place(world).node != host.name,
        within_ms=2 * SILENCE_MS,
    )
    world.trace(f"served elsewhere {virtual_ms() - began_ms} ms after the cut")
    join(world, number)
    await _until(world, host, Liveness.READY, BACK_MS)
    await world.until(f"nothing is left over {when}", lambda: not world.kernel.state.leaving, within_ms=BACK_MS)
    world.check(f"its node starts nothing {when}", not host.engines(), host.running())
    await served(world, when)


async def _controller_dies(world: World, _: int) -> None:
    crash_controller(world)
    await world.dither("controller start", 2_000)
    await world.start_controller()


async def _agent_dies(world: World, number: int) -> None:
    """The next one knows until when its predecessor had a lease."""
    crash_agent(world, number)
    await world.dither("agent start", KEEP_MS // 2)
    await world.start_agent(number)


async def _back_in_time(world: World) -> None:
    host, engines = _holder(world), _engines(world)
    number = world.nodes.index(host)
    part(world, number, Way.BOTH)
    await _until(world, host, Liveness.LOST, LOST_MS)
    join(world, number)
    await _until(world, host, Liveness.READY, BACK_MS)
    await _until_serves(world, "when it is back in time")
    world.check("what came back in time goes on", _engines(world) == engines, _engines(world))


async def _back_as_its_successor_loads(world: World) -> None:
    """Its place is another's by then, though nobody serves yet."""
    host = _holder(world)
    number = world.nodes.index(host)
    part(world, number, Way.BOTH)
    await world.until("its engine has gone", lambda: not host.engines(), within_ms=SILENCE_MS)
    await world.until("its successor is there", lambda: bool(_engines(world)), within_ms=2 * SILENCE_MS)
    ((_, start),) = _engines(world)
    successor = _holder(world).machine.main_process(start)
    assert successor is not None, start
    successor.hang()
    join(world, number)
    await _until(world, host, Liveness.READY, BACK_MS)
    await trio.sleep(LOADED_MS / 1_000)
    successor.hang(on=False)
    await _until_serves(world, "when its successor has loaded")
    world.check("who came back starts nothing", not host.engines(), host.running())
    world.check("and its successor is the one that was", [start] == [one for _, one in _engines(world)], start)


async def _agent_dies_in_touch(world: World) -> None:
    host, engines = _holder(world), _engines(world)
    number = world.nodes.index(host)
    crash_agent(world, number)
    await world.dither("agent start", KEEP_MS)
    await world.start_agent(number)
    await _until(world, host, Liveness.READY, BACK_MS)
    await _until_serves(world, "with another agent")
    world.check("another agent keeps what runs", _engines(world) == engines, _engines(world))


async def _moved(world: World) -> None:
    """A drain: the old one ends first."""
    host = _holder(world)
    await world.operate("PUT", f"/admin/v1/nodes/{host.name}/directive", {"directive": Directive.DRAIN.value})
    await world.until(
        "it has moved", lambda: world.routable() == 1 and _place(world).node != host.name, within_ms=BACK_MS
    )
    await world.operate("PUT", f"/admin/v1/nodes/{host.name}/directive", {"directive": Directive.ACTIVE.value})
    await served(world, "after a drain")


async def _changed(world: World) -> None:
    """Another engine, then more places, then fewer."""
    engines = _engines(world)
    await world.deploy(slots=2)
    await world.until("it is another engine", lambda: set(_engines(world)).isdisjoint(engines), within_ms=BACK_MS)
    await _until_serves(world, "when its engine was changed")
    await world.deploy(slots=2, replicas=2)
    await world.until("there are two", lambda: world.routable() == 2, within_ms=BACK_MS)
    await world.deploy(slots=2)
    await world.until("there is one", lambda: len(_engines(world)) == 1, within_ms=BACK_MS)
    await _until_serves(world, "when it has one place again")
    await served(world, "after changes")


# --- what is seen ---


def _place(world: World) -> Assignment:
    return next(assignment for _, assignment in sorted(world.kernel.state.assignments.items()))


def _holder(world: World) -> NodeHost:
    name = _place(world).node
    return next(host for host in world.nodes if host.name == name)


def _engines(world: World) -> Sequence[tuple[AssignmentId, StartId]]:
    return [pair for host in world.nodes for pair in host.running()]


async def _until_serves(world: World, when: str) -> None:
    await world.until(f"it serves {when}", lambda: world.routable() == 1, within_ms=BACK_MS)


async def _until(world: World, host: NodeHost, liveness: Liveness, within_ms: int) -> None:
    await world.until(
        f"{host.name} is {liveness.value}",
        lambda: world.kernel.state.nodes[host.name].liveness is liveness,
        within_ms=within_ms,
    )
