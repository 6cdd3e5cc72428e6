"""Two nodes with a replica each. One engine dies under load: calls without output go to the other replica and
succeed, streams with output end honestly, nobody's answer is put together from two engines."""

from collections.abc import Mapping
from typing import Any, Final

import trio

from lunanexa_core.ids import StartId
from lunanexa_simulation.client import Answer, Ending
from lunanexa_simulation.faults import crash_engine
from lunanexa_simulation.run import Run
from lunanexa_simulation.scenarios.steps import receipt_of, served, until_listed
from lunanexa_simulation.world import World, open_world
from lunanexa_simulation.world_plan import WorldPlan

STREAMS: Final = 4
CALLS: Final = 4


async def main(run: Run) -> None:
    """The scenario."""
    async with open_world(run, WorldPlan(nodes=2)) as world:
        await world.start()
        await world.deploy(replicas=2)
        await world.until("both replicas are routable", lambda: world.routable() == 2, within_ms=60_000)
        await until_listed(world, "at first")
        await _one_engine_dies(world)
        await world.until("both replicas are routable again", lambda: world.routable() == 2, within_ms=60_000)
        await served(world, "by both again")
        await world.stop()


async def _one_engine_dies(world: World) -> None:
    calls: list[tuple[Mapping[str, Any], Answer]] = []

    async def call(number: int) -> None:
        body = world.prompt(f"a call ({number})")
        calls.append((body, await world.client.chat(body)))

    async with trio.open_nursery() as nursery:
        for number in range(CALLS):
            nursery.start_soon(call, number)
        async with world.streams(STREAMS, "over two replicas") as streams:
            await world.dither("engine crash", 300)
            start = _engine_of_a_call(world)
            crash_engine(world, start, _node_of(world, start))
    for body, answer in calls:
        world.check("a call without output outlives its engine", answer.ending is Ending.WHOLE, answer)
        world.check_answer("and is one engine's answer", body, answer)
    for body, answer in streams:
        world.check("a stream ends whole or says that it failed", answer.ending in _HONEST, answer)
        world.check_answer("and is one engine's answer or its beginning", body, answer)
    attempts = [_attempts(world, answer) for _, answer in (*calls, *streams)]
    world.check("some call took a second attempt", 2 in attempts, attempts)
    broken = [answer for _, answer in streams if answer.ending is Ending.ERROR_FRAME]
    world.check("a stream with output is not tried again", all(_attempts(world, answer) == 1 for answer in broken))


def _engine_of_a_call(world: World) -> StartId:
    """An engine that works on a call without a stream."""
    state, observed = world.kernel.state, world.kernel.observed
    return next(held.start for workload, held in observed.held.items() if not state.open[workload].request.stream)


def _node_of(world: World, start: StartId) -> int:
    return next(number for number, node in enumerate(world.nodes) if node.machine.living(start))


_HONEST: Final = (Ending.WHOLE, Ending.ERROR_FRAME)


def _attempts(world: World, answer: Answer) -> int:
    receipt = receipt_of(world, answer.workload)
    world.check("every answer has its receipt", receipt is not None, answer)
    assert receipt is not None
    return len(receipt.settlement.attempts)
