"""What may befall one node: its agent, its engines, its disk, its memory, the whole machine."""

from typing import Final

import trio

from lunanexa_simulation.faults import crash_agent, crash_engine, reboot_node
from lunanexa_simulation.machine import HostFaults
from lunanexa_simulation.mishaps.disks import disk_fails
from lunanexa_simulation.mishaps.field import LONG_MS, Field, a_while
from lunanexa_simulation.rng import Stream

FORBIDDEN: Final = (
    "programs = []",
    'drivers = ["vllm"]',
    'arguments_refused = ["--itl"]',
    "replicas = 0",
    "memory_mib = 1",
)
"""Owners' policies, by each of which no engine of this world may run."""


async def agent_dies(field: Field, number: int, draw: Stream) -> None:
    crash_agent(field.world, number)
    await a_while(draw)
    await field.world.start_agent(number)


async def owner_forbids_engines(field: Field, number: int, draw: Stream) -> None:
    """By the next agent's policy nothing may be started; what runs is ended, or is what the owner still lets be."""
    world, node = field.world, field.world.nodes[number]
    crash_agent(world, number)
    await a_while(draw)
    node.policy_file = draw.choice(FORBIDDEN)
    former = {engine.start for engine in node.engines()}

    def trespass() -> str | None:
        began = [engine.start for engine in node.engines() if engine.start not in former]
        return f"{node.name} starts {began} against {node.policy_file!r}" if began else None

    world.trace(f"{node.name}: its owner says {node.policy_file!r}")
    with world.watched("nothing starts against an owner's word", trespass):
        await world.start_agent(number)
        await a_while(draw, 2 * LONG_MS)
        crash_agent(world, number)
    node.policy_file = ""
    world.trace(f"{node.name}: its owner has no word any more")
    await a_while(draw)
    await world.start_agent(number)


async def engine_dies(field: Field, number: int, draw: Stream) -> None:
    node = field.world.nodes[number]
    node.machine.faults.spawn_failures = draw.randint(0, 1)
    for _, start in node.running():
        crash_engine(field.world, start, number)


async def engine_hangs(field: Field, number: int, draw: Stream) -> None:
    node = field.world.nodes[number]
    for process in node.engines():
        field.world.trace(f"{node.name}: engine {process.start} hangs")
        process.hang()
        await a_while(draw, 2 * LONG_MS)
        field.world.trace(f"{node.name}: engine {process.start} goes on")
        process.hang(on=False)


async def machine_reboots(field: Field, number: int, draw: Stream) -> None:
    world, node = field.world, field.world.nodes[number]
    reboot_node(world, number, keep_unsynced=draw.random() < 0.5)
    world.check(f"no process of {node.name} outlives the power", not node.engines(), node.running())
    await _numbers_reused(field, number, draw)


async def machine_goes_silent(field: Field, number: int, draw: Stream) -> None:
    """For longer than a lease; perhaps for longer than a kernel keeps a connection on which nothing comes."""
    reboot_node(field.world, number, keep_unsynced=draw.random() < 0.5)
    await a_while(draw, 4 * LONG_MS)
    await field.world.start_agent(number)


async def agent_and_engine_die(field: Field, number: int, draw: Stream) -> None:
    """Strangers get the engine's number before the next agent comes."""
    crash_agent(field.world, number)
    for _, start in field.world.nodes[number].running():
        crash_engine(field.world, start, number)
    await trio.sleep(field.world.plan.linger_ms / 1_000 + 0.01)
    await _numbers_reused(field, number, draw)


async def nodes_disk_fails(field: Field, number: int, draw: Stream) -> None:
    node = field.world.nodes[number]
    await disk_fails(field.world, node.name, node.disk, draw)


async def memory_is_taken(field: Field, number: int, draw: Stream) -> None:
    """By somebody who is none of ours; or nobody can say how much there is."""
    node = field.world.nodes[number]
    usual_mib = node.memory.used_mib
    if draw.random() < 0.3:
        field.world.trace(f"{node.name}: nobody can read its memory")
        node.memory.readable = False
    else:
        node.memory.used_mib = node.memory.total_mib - draw.randint(0, 16_384)
        field.world.trace(f"{node.name}: a stranger takes memory, {node.memory.used_mib} MiB are used")
    await a_while(draw, 2 * LONG_MS)
    field.world.trace(f"{node.name}: its memory is as it was")
    node.memory.readable, node.memory.used_mib = True, usual_mib


async def processes_are_slow(field: Field, number: int, draw: Stream) -> None:
    """They start late, don't end when they are asked to, and give their memory back late."""
    node = field.world.nodes[number]
    usual = node.machine.faults
    node.machine.faults = HostFaults(
        spawn_ms=draw.randint(0, 3_000),
        ignore_terminate=draw.random() < 0.5,
        linger_ms=draw.randint(0, 5_000),
        release_ms=draw.randint(0, 5_000),
        resident_mib=usual.resident_mib,
    )
    field.world.trace(f"{node.name}: processes are slow to start, to end and to give back")
    await a_while(draw, 2 * LONG_MS)
    field.world.trace(f"{node.name}: processes are as they were")
    node.machine.faults = usual


async def _numbers_reused(field: Field, number: int, draw: Stream) -> None:
    world, machine = field.world, field.world.nodes[number].machine
    gone = [start for start, identity in machine.intents.items() if identity is not None and not machine.living(start)]
    strangers = [machine.reuse_pid(start) for start in gone]
    await a_while(draw)
    await world.start_agent(number)
    await a_while(draw, 3_000)
    for stranger in strangers:
        world.check("no stranger got a signal", stranger.exit is None and not stranger.terminated.is_set())
        stranger.crash(code=0)
