"""The agent is killed under running streams, for a moment and then for longer than its lease. Where engines are reached
on the controller's own machine no stream notices; nothing is granted once the node is lost, and each time the next
agent finds the same engine process and says from its first word on that it serves."""

from typing import Final

import trio

from lunanexa_core.events import Liveness
from lunanexa_core.observed import NodeReading
from lunanexa_core.southbound.heartbeat import ReplicaState
from lunanexa_simulation.client import Ending
from lunanexa_simulation.faults import crash_agent
from lunanexa_simulation.run import Run
from lunanexa_simulation.scenarios.steps import listed, served, until_listed
from lunanexa_simulation.world import World, open_world
from lunanexa_simulation.world_plan import WorldPlan

PLAN: Final = WorldPlan(doors=False)
"""A data listener would go with its agent."""
STREAMS: Final = 3


async def main(run: Run) -> None:
    """The scenario."""
    async with open_world(run, PLAN) as world:
        await world.start()
        await world.deploy()
        await until_listed(world, "at first")
        await _for_a_moment(world)
        await _longer_than_the_lease(world)
        await world.stop()


async def _for_a_moment(world: World) -> None:
    start, boot = world.newest_start(), _reading(world).boot
    async with world.streams(STREAMS, "while the agent is away") as streams:
        await world.dither("agent kill", 200)
        crash_agent(world)
        await world.dither("agent start", 2_000)
        await world.start_agent()
    for body, answer in streams:
        world.check("a stream outlives the agent", answer.ending is Ending.WHOLE, answer)
        world.check_answer("and is the engine's answer", body, answer)
    await world.until("the next agent is heard", lambda: _reading(world).boot != boot, within_ms=60_000)
    states = {report.state for report in _reading(world).heartbeat.replicas}
    world.check("it tells of an engine that serves", states == {ReplicaState.READY}, states)
    await until_listed(world, "once it has a lease")
    await _same_engine(world, start, "after a moment")


def _reading(world: World) -> NodeReading:
    return world.kernel.observed.nodes[world.nodes[0].name]


async def _longer_than_the_lease(world: World) -> None:
    start = world.newest_start()
    node, lease_ms = world.nodes[0].name, world.plan.policy.node_lease_ms
    crash_agent(world)
    await world.until(
        "a silent node is lost",
        lambda: world.kernel.state.nodes[node].liveness is Liveness.LOST,
        within_ms=lease_ms + 2_000,
    )
    world.check("a lost node's model is not listed", not await listed(world))
    await trio.sleep(20)
    await world.start_agent()
    await until_listed(world, "when its node is back")
    await _same_engine(world, start, "after the lease")


async def _same_engine(world: World, start: str | None, when: str) -> None:
    await served(world, when)
    world.check(f"it is the same engine process {when}", world.newest_start() == start, world.newest_start())
    restarts = [report.restarts for report in world.kernel.state.replicas.values()]
    world.check(f"and nothing was restarted {when}", restarts == [0], restarts)
