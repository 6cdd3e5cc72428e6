"""What a fleet's reports cost when there is nothing in them: the timers and task switches of idle nodes alone.

A node waits its interval, asks, and has its answer after two ways through a link; between them as many task steps as a
real report takes from the agent's loop through client, listener and kernel and back. No byte is encoded, nothing
decided or checked. It is the least that Trio needs for such a world, whatever is simulated in it.
"""

import time
from typing import Final

import trio

from lunanexa_apps.node.settings import HEARTBEAT_MS

LINK_S: Final = 0.002
SERVER_STEPS: Final = 6
AGENT_STEPS: Final = 3


class _Clock(trio.abc.Clock):
    """Stands at the next deadline when no task can go on, as a simulated run's does."""

    def __init__(self) -> None:
        self._now_s = 0.0

    def start_clock(self) -> None:
        """It starts at 0, where it is."""

    def current_time(self) -> float:
        return self._now_s

    def deadline_to_sleep_time(self, deadline: float) -> float:
        if not trio.lowlevel.current_statistics().tasks_runnable:
            self._now_s = max(self._now_s, deadline)
        return 0.0


def bare_virtual_seconds_a_second(nodes: int, for_s: float) -> float:
    """How much time such a world passes in a second of this process."""
    began_s = time.process_time()
    trio.run(_fleet, nodes, for_s, clock=_Clock())
    return for_s / (time.process_time() - began_s)


async def _fleet(nodes: int, for_s: float) -> None:
    async with trio.open_nursery() as nursery:
        for _ in range(nodes):
            nursery.start_soon(_node, for_s)
            await trio.sleep(HEARTBEAT_MS / 1_000 / nodes)


async def _node(for_s: float) -> None:
    asking, asked = trio.open_memory_channel[trio.Event](1)
    async with trio.open_nursery() as nursery, asking:
        nursery.start_soon(_serve, asked)
        while trio.current_time() < for_s:
            with trio.move_on_after(HEARTBEAT_MS / 1_000):
                await trio.sleep_forever()
            answered = trio.Event()
            await asking.send(answered)
            with trio.move_on_after(HEARTBEAT_MS / 1_000):
                await answered.wait()
            await trio.sleep(LINK_S)
            await _steps(AGENT_STEPS)


async def _serve(asked: trio.MemoryReceiveChannel[trio.Event]) -> None:
    async for answered in asked:
        await trio.sleep(LINK_S)
        await _steps(SERVER_STEPS)
        answered.set()


async def _steps(count: int) -> None:
    for _ in range(count):
        await trio.lowlevel.checkpoint()
