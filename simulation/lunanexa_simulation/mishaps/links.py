"""What may befall the ways between machines, and their clocks."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import trio

from lunanexa_simulation.clock import SimulatedClock
from lunanexa_simulation.faults import Way, join, jump_clock, part, run_clock, slow_link
from lunanexa_simulation.links import HostLink
from lunanexa_simulation.mishaps.field import LONG_MS, Field, a_while
from lunanexa_simulation.rng import Stream

CALLERS: Final = "client"
"""The host of everybody who asks for answers."""
VERY_LONG_MS: Final = (20_000, 90_000)
"""Around what kernels keep a connection for on which nothing comes."""


async def nothing_passes(field: Field, number: int, draw: Stream) -> None:
    """Between the agent and all controllers; in both ways or in one."""
    part(field.world, number, draw.choice(tuple(Way)))
    await a_while(draw, 2 * LONG_MS)
    join(field.world, number)


async def nothing_passes_for_long(field: Field, number: int, draw: Stream) -> None:
    """Beyond what any kernel keeps a connection for."""
    part(field.world, number, draw.choice(tuple(Way)))
    await _very_long(draw)
    join(field.world, number)


async def packets_are_slow(field: Field, number: int, draw: Stream) -> None:
    slow_link(field.world, number, (draw.randint(0, 500), draw.randint(500, 2_000)))
    await a_while(draw)
    slow_link(field.world, number, field.world.plan.latency_ms)


async def packets_are_lost(field: Field, number: int, draw: Stream) -> None:
    await _spoilt(field, field.world.nodes[number].name, draw, _loses)


async def answers_are_lost(field: Field, number: int, draw: Stream) -> None:
    """What was asked was heard: who asks again says it twice."""
    await _spoilt(field, field.world.nodes[number].name, draw, _breaks)


async def link_is_narrow(field: Field, number: int, draw: Stream) -> None:
    await _spoilt(field, field.world.nodes[number].name, draw, _is_narrow)


async def data_link_is_bad(field: Field, number: int, draw: Stream) -> None:
    await _spoilt(field, field.world.nodes[number].data_host, draw, draw.choice((_loses, _breaks, _is_narrow)))


async def callers_link_is_bad(field: Field, _: int, draw: Stream) -> None:
    await _spoilt(field, CALLERS, draw, draw.choice((_loses, _breaks, _is_narrow)))


def _loses(link: HostLink, draw: Stream) -> None:
    link.spoil(loss_per_mille=draw.randint(20, 400))


def _breaks(link: HostLink, draw: Stream) -> None:
    link.spoil(breaks_per_mille=draw.randint(100, 700))


def _is_narrow(link: HostLink, draw: Stream) -> None:
    link.spoil(bytes_s=draw.randint(1_000, 20_000))


async def _spoilt(field: Field, host: str, draw: Stream, spoil: Callable[[HostLink, Stream], None]) -> None:
    """Between a host and all controllers, for a while; each way as bad as it is."""
    world = field.world
    ways = [(host, controller.host) for controller in world.controllers]
    ways += [(there, here) for here, there in ways]
    for source, destination in ways:
        link = world.network.link(source, destination)
        spoil(link, draw)
        world.trace(f"the network from {source} to {destination} {', '.join(link.troubles())}")
    await a_while(draw, 2 * LONG_MS)
    world.trace(f"between {host} and controllers the network is well again")
    for source, destination in ways:
        world.network.link(source, destination).spoil()


async def data_does_not_pass(field: Field, number: int, draw: Stream) -> None:
    """The node is heard, and its engines can't be reached: their data takes another way."""
    with _cut(field, field.world.nodes[number].data_host, draw):
        await a_while(draw)


async def data_does_not_pass_for_long(field: Field, number: int, draw: Stream) -> None:
    with _cut(field, field.world.nodes[number].data_host, draw):
        await _very_long(draw)


async def callers_are_cut_off(field: Field, _: int, draw: Stream) -> None:
    """Who waits for an answer, and who is being answered."""
    with _cut(field, CALLERS, draw):
        await _very_long(draw)


@contextmanager
def _cut(field: Field, host: str, draw: Stream) -> Iterator[None]:
    """Nothing passes between a host and all controllers, in both ways or in one."""
    world = field.world
    ways = [(controller.host, host) for controller in world.controllers]
    ways += [(there, here) for here, there in ways]
    cut = draw.choice((ways, ways[: len(world.controllers)], ways[len(world.controllers) :]))
    world.trace(f"{host}: nothing passes")
    for source, destination in cut:
        world.network.block(source, destination)
    yield
    world.trace(f"{host}: everything passes again")
    for source, destination in cut:
        world.network.heal(source, destination)


async def _very_long(draw: Stream) -> None:
    await trio.sleep(draw.randint(*VERY_LONG_MS) / 1_000)


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
