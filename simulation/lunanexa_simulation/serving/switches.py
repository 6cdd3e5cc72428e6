"""Faults that last until somebody says that it is enough; each returns when what it broke is well again."""

from collections.abc import Iterable, Sequence
from typing import Final

import attrs

from lunanexa_simulation.disk import DiskFaults, SimulatedDisk
from lunanexa_simulation.faults import Way, crash_agent, crash_controller, join, part, reboot_node, slow_link
from lunanexa_simulation.mishaps import Hands
from lunanexa_simulation.serving.case import Case, FaultKind, Parameter
from lunanexa_simulation.serving.front import STRANGER
from lunanexa_simulation.world import World

_BOTH, _TO_CONTROLLER, _TO_NODE, _TO_CLIENT = "both", "to-controller", "to-node", "to-client"
_WAYS: Final = {_BOTH: Way.BOTH, _TO_CONTROLLER: Way.TO_CONTROLLER, _TO_NODE: Way.TO_NODE}
_LATENCY: Final = Parameter(name="latency_ms", about="how long each packet takes", default=500, least=1, most=60_000)


def _way(*choices: str) -> Parameter:
    return Parameter(name="way", about="which packets are lost", default=_BOTH, choices=choices)


async def agent_down(case: Case) -> None:
    """The agent is killed, and stays away; its engines go on."""
    crash_agent(case.field.world, case.number)
    await case.healed()
    await case.field.world.start_agent(case.number)


async def node_off(case: Case) -> None:
    """The machine has no power: its agent and its engines are gone."""
    reboot_node(case.field.world, case.number)
    await case.healed()
    await case.field.world.start_agent(case.number)


async def engines_hung(case: Case) -> None:
    """The engines live and answer nothing."""
    node = case.field.world.nodes[case.number]
    hung = node.engines()
    for process in hung:
        case.field.world.trace(f"{node.name}: engine {process.start} hangs")
        process.hang()
    await case.healed()
    for process in hung:
        case.field.world.trace(f"{node.name}: engine {process.start} goes on")
        process.hang(on=False)


async def node_disk_full(case: Case) -> None:
    """Nothing can be written to the node's disk."""
    node = case.field.world.nodes[case.number]
    await _disk(case, node.name, node.disk, "is full", DiskFaults(full=True))


async def memory_taken(case: Case) -> None:
    """A stranger's process takes the machine's memory."""
    node = case.field.world.nodes[case.number]
    usual_mib = node.memory.used_mib
    node.memory.used_mib = max(usual_mib, node.memory.total_mib - case.int_of("left_mib"))
    case.field.world.trace(f"{node.name}: a stranger takes memory, {node.memory.used_mib} MiB are used")
    await case.healed()
    case.field.world.trace(f"{node.name}: its memory is as it was")
    node.memory.used_mib = usual_mib


async def node_cut(case: Case) -> None:
    """Agent and controllers don't hear each other; requests still reach the engines."""
    part(case.field.world, case.number, _WAYS[case.word_of("way")])
    await case.healed()
    join(case.field.world, case.number)


async def node_slow(case: Case) -> None:
    """Packets between the agent and controllers are slow."""
    slow_link(case.field.world, case.number, (case.int_of("latency_ms"),) * 2)
    await case.healed()
    slow_link(case.field.world, case.number, case.field.world.plan.latency_ms)


async def data_cut(case: Case) -> None:
    """Requests don't reach the node's engines; its agent is heard."""
    await _cut(case, case.field.world.nodes[case.number].data_host, _TO_NODE)


async def client_cut(case: Case) -> None:
    """Nothing passes between clients and controllers."""
    await _cut(case, STRANGER, _TO_CLIENT)


async def client_slow(case: Case) -> None:
    """Packets between clients and controllers are slow."""
    world, latency_ms = case.field.world, case.int_of("latency_ms")
    world.trace(f"clients: packets take {latency_ms} ms")
    _set_latency(world, _ways(world, STRANGER), (latency_ms, latency_ms))
    await case.healed()
    world.trace("clients: packets are as fast as they were")
    _set_latency(world, _ways(world, STRANGER), world.plan.latency_ms)


async def controller_down(case: Case) -> None:
    """The controller is killed, and stays away."""
    host = case.field.world.controllers[case.number]
    crash_controller(case.field.world, host)
    await case.healed()
    await case.field.start_controller(host)


async def journal_full(case: Case) -> None:
    """The journal can be read and not written."""
    await _journal(case, "is full", DiskFaults(full=True))


async def journal_away(case: Case) -> None:
    """The journal can't be reached."""
    await _journal(case, "is not there", DiskFaults(unavailable=True))


async def journal_slow(case: Case) -> None:
    """The journal takes long for each write."""
    await _journal(case, "is slow", DiskFaults(delay_ms=case.int_of("sync_ms")))


SWITCHES: Final[Sequence[FaultKind]] = tuple(
    FaultKind(
        name=befall.__name__.replace("_", "-"),
        hands=hands,
        about=befall.__doc__ or "",
        befall=befall,
        parameters=parameters,
    )
    for befall, hands, parameters in (
        (controller_down, Hands.CONTROLLER, ()),
        (journal_full, Hands.JOURNAL, ()),
        (journal_away, Hands.JOURNAL, ()),
        (
            journal_slow,
            Hands.JOURNAL,
            (Parameter(name="sync_ms", about="how long a write takes", default=1_000, least=1, most=60_000),),
        ),
        (agent_down, Hands.NODE, ()),
        (node_off, Hands.NODE, ()),
        (engines_hung, Hands.NODE, ()),
        (node_disk_full, Hands.NODE, ()),
        (
            memory_taken,
            Hands.MEMORY,
            (Parameter(name="left_mib", about="what is left", default=0, least=0, most=131_072),),
        ),
        (node_cut, Hands.LINK, (_way(*_WAYS),)),
        (node_slow, Hands.LINK, (_LATENCY,)),
        (data_cut, Hands.DATA_LINK, (_way(_BOTH, _TO_CONTROLLER, _TO_NODE),)),
        (client_cut, Hands.CALLERS, (_way(_BOTH, _TO_CONTROLLER, _TO_CLIENT),)),
        (client_slow, Hands.CALLERS, (_LATENCY,)),
    )
)
"""All of them."""


async def _journal(case: Case, told: str, faults: DiskFaults) -> None:
    async with case.field.store:
        await _disk(case, "the journal", case.field.world.controllers[0].disk, told, faults)


async def _disk(case: Case, name: str, disk: SimulatedDisk, told: str, faults: DiskFaults) -> None:
    world, usual = case.field.world, disk.faults
    world.trace(f"{name}: the disk {told}")
    disk.faults = attrs.evolve(faults, delay_ms=faults.delay_ms or usual.delay_ms)
    await case.healed()
    world.trace(f"{name}: the disk is well again")
    disk.faults = usual


async def _cut(case: Case, host: str, from_controllers: str) -> None:
    """``from_controllers``: what the way from them to ``host`` is called."""
    world, way = case.field.world, case.word_of("way")
    there = [(host, controller.host) for controller in world.controllers]
    back = [(controller.host, host) for controller in world.controllers]
    cut = {_BOTH: [*there, *back], _TO_CONTROLLER: there, from_controllers: back}[way]
    world.trace(f"{host}: nothing passes ({way})")
    for source, destination in cut:
        world.network.block(source, destination)
    await case.healed()
    world.trace(f"{host}: everything passes again")
    for source, destination in cut:
        world.network.heal(source, destination)


def _ways(world: World, host: str) -> Iterable[tuple[str, str]]:
    there = [(host, controller.host) for controller in world.controllers]
    return [*there, *((to, at) for at, to in there)]


def _set_latency(world: World, ways: Iterable[tuple[str, str]], latency_ms: tuple[int, int]) -> None:
    for source, destination in ways:
        world.network.set_latency(source, destination, latency_ms)
