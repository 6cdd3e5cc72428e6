"""After a test that had a journal: what its rows make is what its kernel ended with."""

from lunanexa_apps.controller.kernel import Kernel
from lunanexa_simulation.checkers import replay_equals_live
from lunanexa_simulation.disk import SimulatedDisk
from lunanexa_simulation.journal import JournalState


def check_replay(kernel: Kernel, disk: SimulatedDisk) -> None:
    """Replays the rows of ``disk`` from nothing, up to where ``kernel`` stands."""
    rows = [row for row in disk.state(JournalState).rows if row.sequence <= kernel.head.sequence]
    problem = replay_equals_live(rows, kernel.state)
    assert problem is None, problem
