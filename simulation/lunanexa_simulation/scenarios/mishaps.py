"""What may befall a fleet at any time, each with its end: a mishap returns when what it broke is well again.

A mishap names what it has in its hands; no two have the same, so that a machine is not started while it starts."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Final, TypeAlias

import attrs
import trio

from lunanexa_core.ids import NodeId
from lunanexa_core.southbound.documents import Directive
from lunanexa_ports.http_client import HttpBroken, HttpUnreachable
from lunanexa_simulation.controller_host import HOST, PORT
from lunanexa_simulation.disk import DiskFaults, SimulatedDisk
from lunanexa_simulation.faults import (
    Way,
    crash_agent,
    crash_controller,
    crash_engine,
    join,
    jump_clock,
    part,
    reboot_node,
    run_clock,
    slow_link,
)
from lunanexa_simulation.rng import Stream
from lunanexa_simulation.world import World

Mishap: TypeAlias = Callable[[World, int, Stream], Awaitable[None]]
"""Of a world, the node with this number where it is one node's, and what else the seed has to say."""

LONG_MS: Final = 15_000
"""Longer than a lease."""
BACK_MS: Final = 300_000


async def _a_while(draw: Stream, at_most_ms: int = LONG_MS) -> None:
    await trio.sleep(draw.randint(50, at_most_ms) / 1_000)


# --- the controller ---


async def controller_dies(world: World, _: int, draw: Stream) -> None:
    crash_controller(world, keep_unsynced=draw.random() < 0.5)
    await _a_while(draw)
    await world.start_controller()


async def controllers_disk_fails(world: World, _: int, draw: Stream) -> None:
    await _disk(world, "the controller", world.controller.disk, draw)


async def controller_dies_with_a_full_disk(world: World, _: int, draw: Stream) -> None:
    usual = world.controller.disk.faults
    world.trace("the controller: the disk is full")
    world.controller.disk.faults = attrs.evolve(usual, full=True)
    await _a_while(draw)
    crash_controller(world)
    world.controller.disk.faults = usual
    await world.start_controller()


async def operator_changes_their_mind(world: World, _: int, draw: Stream) -> None:
    """Fewer replicas or more, with other settings: each change is a new generation for every node."""
    replicas, slots = draw.randint(1, len(world.nodes)), draw.randint(1, 3)
    try:
        status, answer = await world.ask_to_deploy(replicas=replicas, slots=slots)
    except (HttpUnreachable, HttpBroken):
        world.trace("the operator finds nobody")
    else:
        world.check("an operator is obeyed, or told to come again", status in (200, 503), answer)


async def operator_empties_a_node(world: World, _: int, draw: Stream) -> None:
    """Whatever else befalls it; it is given back in the end, however long there is nobody to be told."""
    node, directive = draw.choice(world.nodes).name, draw.choice((Directive.DRAIN, Directive.CORDON))
    await _directed(world, node, directive)
    await _a_while(draw, 2 * LONG_MS)
    await world.until_told(
        "the node is given back", lambda: _directed(world, node, Directive.ACTIVE), within_ms=BACK_MS, every_ms=500
    )


async def _directed(world: World, node: NodeId, directive: Directive) -> bool:
    try:
        status, answer = await world.operate("PUT", f"/admin/v1/nodes/{node}/directive", {"directive": directive.value})
    except (HttpUnreachable, HttpBroken):
        return False
    world.check("an operator who directs a node is obeyed, or told to come again", status in (200, 503), answer)
    return status == 200


async def connections_break(world: World, _: int, _draw: Stream) -> None:
    world.trace("the controller: every connection to it breaks")
    world.network.cut(HOST, PORT)


# --- a node ---


async def agent_dies(world: World, number: int, draw: Stream) -> None:
    crash_agent(world, number)
    await _a_while(draw)
    await world.start_agent(number)


async def engine_dies(world: World, number: int, draw: Stream) -> None:
    machine = world.nodes[number].machine
    machine.faults.spawn_failures = draw.randint(0, 1)
    for _, start in world.nodes[number].running():
        crash_engine(world, start, number)


async def engine_hangs(world: World, number: int, draw: Stream) -> None:
    for process in world.nodes[number].engines():
        world.trace(f"{world.nodes[number].name}: engine {process.start} hangs")
        process.hang()
        await _a_while(draw, 2 * LONG_MS)
        process.hang(on=False)


async def machine_reboots(world: World, number: int, draw: Stream) -> None:
    node = world.nodes[number]
    reboot_node(world, number, keep_unsynced=draw.random() < 0.5)
    world.check(f"no process of {node.name} outlives the power", not node.engines(), node.running())
    await _numbers_reused(world, number, draw)


async def both_die(world: World, number: int, draw: Stream) -> None:
    """Agent and engine; strangers get the engine's number before the next agent comes."""
    crash_agent(world, number)
    for _, start in world.nodes[number].running():
        crash_engine(world, start, number)
    await trio.sleep(world.plan.linger_ms / 1_000 + 0.01)
    await _numbers_reused(world, number, draw)


async def nodes_disk_fails(world: World, number: int, draw: Stream) -> None:
    node = world.nodes[number]
    await _disk(world, node.name, node.disk, draw)


async def _numbers_reused(world: World, number: int, draw: Stream) -> None:
    machine = world.nodes[number].machine
    gone = [start for start, identity in machine.intents.items() if identity is not None and not machine.living(start)]
    strangers = [machine.reuse_pid(start) for start in gone]
    await _a_while(draw)
    await world.start_agent(number)
    await _a_while(draw, 3_000)
    for stranger in strangers:
        world.check("no stranger got a signal", stranger.exit is None and not stranger.terminated.is_set())
        stranger.crash(code=0)


async def _disk(world: World, name: str, disk: SimulatedDisk, draw: Stream) -> None:
    usual = disk.faults
    faults = draw.choice(
        (
            DiskFaults(full=True, delay_ms=usual.delay_ms),
            DiskFaults(unavailable=True, delay_ms=usual.delay_ms),
            DiskFaults(unknown_outcomes=draw.randint(1, 4), delay_ms=usual.delay_ms),
            DiskFaults(delay_ms=draw.randint(50, 4_000)),
        )
    )
    world.trace(f"{name}: the disk has {faults}")
    disk.faults = faults
    await _a_while(draw)
    world.trace(f"{name}: the disk is well again")
    disk.faults = usual


# --- between them ---


async def nothing_passes(world: World, number: int, draw: Stream) -> None:
    part(world, number, draw.choice(tuple(Way)))
    await _a_while(draw, 2 * LONG_MS)
    join(world, number)


async def packets_are_slow(world: World, number: int, draw: Stream) -> None:
    slow_link(world, number, (draw.randint(0, 500), draw.randint(500, 2_000)))
    await _a_while(draw)
    slow_link(world, number, world.plan.latency_ms)


# --- clocks ---


async def clock_lies(world: World, number: int, draw: Stream) -> None:
    name, clock = str(world.nodes[number].name), world.nodes[number].clock
    if draw.random() < 0.5:
        name, clock = "the controller", world.clock
    if draw.random() < 0.5:
        jump_clock(world, name, clock, draw.randint(-1_200_000, 1_200_000))
    else:
        run_clock(world, name, clock, draw.randint(-50_000, 50_000))


MISHAPS: Final[Mapping[str, tuple[Mishap, ...]]] = {
    "controller": (
        controller_dies,
        controllers_disk_fails,
        controller_dies_with_a_full_disk,
        connections_break,
    ),
    "operator": (operator_changes_their_mind, operator_empties_a_node),
    "node": (agent_dies, engine_dies, engine_hangs, machine_reboots, both_die, nodes_disk_fails),
    "link": (nothing_passes, packets_are_slow),
    "clock": (clock_lies,),
}
"""By what they have in their hands. There is one controller and one operator; of the others there is one a node."""
