"""What may befall a world, each as one call, and each a line of its trace."""

from lunanexa_core.ids import StartId
from lunanexa_simulation.processes import SIGKILL
from lunanexa_simulation.world import World


def crash_controller(world: World, *, keep_unsynced: bool = False) -> None:
    """kill -9 of the controller. What it had committed is compared with a full replay before it goes."""
    world.checkers.look_back()
    world.trace("the controller is killed")
    world.controller.crash(keep_unsynced=keep_unsynced)


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
