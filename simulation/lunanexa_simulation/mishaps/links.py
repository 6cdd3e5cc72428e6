"""What may befall the ways between machines, and their clocks."""

from lunanexa_simulation.clock import SimulatedClock
from lunanexa_simulation.faults import Way, join, jump_clock, part, run_clock, slow_link
from lunanexa_simulation.mishaps.field import LONG_MS, Field, a_while
from lunanexa_simulation.rng import Stream


async def nothing_passes(field: Field, number: int, draw: Stream) -> None:
    """Between the agent and all controllers; in both ways or in one."""
    part(field.world, number, draw.choice(tuple(Way)))
    await a_while(draw, 2 * LONG_MS)
    join(field.world, number)


async def packets_are_slow(field: Field, number: int, draw: Stream) -> None:
    slow_link(field.world, number, (draw.randint(0, 500), draw.randint(500, 2_000)))
    await a_while(draw)
    slow_link(field.world, number, field.world.plan.latency_ms)


async def data_does_not_pass(field: Field, number: int, draw: Stream) -> None:
    """The node is heard, and its engines can't be reached: their data takes another way."""
    world, node = field.world, field.world.nodes[number]
    ways = [(host.host, node.data_host) for host in world.controllers]
    ways += [(there, here) for here, there in ways]
    cut = draw.choice((ways, ways[: len(world.controllers)], ways[len(world.controllers) :]))
    world.trace(f"{node.name}: its data does not pass")
    for source, destination in cut:
        world.network.block(source, destination)
    await a_while(draw)
    world.trace(f"{node.name}: its data passes again")
    for source, destination in cut:
        world.network.heal(source, destination)


async def nodes_clock_lies(field: Field, number: int, draw: Stream) -> None:
    node = field.world.nodes[number]
    await _clock_lies(field, str(node.name), node.clock, draw)


async def controllers_clock_lies(field: Field, number: int, draw: Stream) -> None:
    await _clock_lies(field, field.world.controllers[number].host, field.world.clocks[number], draw)


async def _clock_lies(field: Field, name: str, clock: SimulatedClock, draw: Stream) -> None:
    """It is set wrong, or runs too fast or slow; somebody sets it right later."""
    if draw.random() < 0.5:
        by_ms = draw.randint(-1_200_000, 1_200_000)
        jump_clock(field.world, name, clock, by_ms)
        await a_while(draw, 2 * LONG_MS)
        jump_clock(field.world, name, clock, -by_ms)
    else:
        run_clock(field.world, name, clock, draw.randint(-50_000, 50_000))
        await a_while(draw, 2 * LONG_MS)
        run_clock(field.world, name, clock, 0)
