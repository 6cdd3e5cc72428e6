"""What may befall a world, each as one call, and each a line of its trace."""

import enum

from lunanexa_core.ids import StartId
from lunanexa_simulation.clock import SimulatedClock
from lunanexa_simulation.controller_host import ControllerHost
from lunanexa_simulation.process import SIGKILL
from lunanexa_simulation.world import World


def crash_controller(world: World, host: ControllerHost | None = None, *, keep_unsynced: bool = False) -> None:
    """kill -9 of the controller that leads, or of one of them. What the leader had committed is compared with a full
    replay before it goes."""
    host = host or world.controller
    _look_back(world, host)
    world.trace(f"{host.host}: the controller is killed")
    host.crash(keep_unsynced=keep_unsynced)


def lose_controller(world: World, host: ControllerHost, *, keep_unsynced: bool = False) -> None:
    """Power loss of one controller's machine: whoever is connected with it hears nothing."""
    _look_back(world, host)
    world.trace(f"{host.host}: the machine is gone")
    host.lose_power(keep_unsynced=keep_unsynced)


def _look_back(world: World, host: ControllerHost) -> None:
    if host.up and host.kernel is world.sight.kernel:
        world.checkers.look_back()


def cut_from_journal(world: World, host: ControllerHost, *, cut: bool = True) -> None:
    """One controller's way to the journal is cut, or mended."""
    world.trace(f"{host.host}: the journal is {'out of reach' if cut else 'in reach again'}")
    host.cut(cut)


def crash_agent(world: World, number: int = 0) -> None:
    """kill -9 of one node's agent; the engines of its machine go on."""
    node = world.nodes[number]
    world.trace(f"{node.name}: the agent is killed")
    node.crash()


def crash_engine(world: World, start: StartId, number: int = 0) -> None:
    """kill -9 of the engine process of one start."""
    node = world.nodes[number]
    process = node.machine.main_process(start)
    assert process is not None, f"{start} does not run"
    world.trace(f"{node.name}: engine {start} is killed")
    process.crash(signal=SIGKILL)


def reboot_node(world: World, number: int = 0, *, keep_unsynced: bool = False) -> None:
    """Power loss of one node: whoever is connected with it hears nothing. It comes up again with its next agent."""
    node = world.nodes[number]
    world.trace(f"{node.name}: the machine reboots")
    node.reboot(keep_unsynced=keep_unsynced)


class Way(enum.Enum):
    """Which packets between a node and the controller are lost."""

    BOTH = "in both ways"
    TO_CONTROLLER = "towards the controller"
    TO_NODE = "towards the node"


def part(world: World, number: int, way: Way) -> None:
    """Agent and controller don't hear each other any more. Engines listen elsewhere: requests still reach them."""
    node = world.nodes[number].name
    world.trace(f"{node}: nothing passes {way.value}")
    for host in world.controllers:
        if way is not Way.TO_NODE:
            world.network.block(node, host.host)
        if way is not Way.TO_CONTROLLER:
            world.network.block(host.host, node)


def join(world: World, number: int) -> None:
    """The end of :func:`part`; what was held back on the way arrives now."""
    node = world.nodes[number].name
    world.trace(f"{node}: everything passes again")
    for host in world.controllers:
        world.network.heal(node, host.host)
        world.network.heal(host.host, node)


def slow_link(world: World, number: int, latency_ms: tuple[int, int]) -> None:
    """From now on packets between a node and the controller take so long, each way."""
    node = world.nodes[number].name
    world.trace(f"{node}: packets take {latency_ms[0]} to {latency_ms[1]} ms")
    for host in world.controllers:
        world.network.set_latency(node, host.host, latency_ms)
        world.network.set_latency(host.host, node, latency_ms)


def jump_clock(world: World, name: str, clock: SimulatedClock, by_ms: int) -> None:
    """Somebody sets the wall clock of the machine ``name``."""
    world.trace(f"{name}: the clock jumps by {by_ms} ms")
    clock.jump_wall(by_ms)


def run_clock(world: World, name: str, clock: SimulatedClock, rate_ppm: int) -> None:
    """From now on the oscillator of the machine ``name`` is so many parts per million too fast."""
    world.trace(f"{name}: the clock runs {rate_ppm} ppm fast")
    clock.set_rate(rate_ppm)
