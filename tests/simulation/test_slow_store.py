"""A store that takes its time and succeeds: nobody could be heard meanwhile, so nobody is blamed for silence."""

import pytest
import trio

from lunanexa_apps.controller.kernel import STALL_MS
from lunanexa_core.events import KIND_OF_TYPE, LivenessChanged
from lunanexa_core.policy import Policy
from lunanexa_core.workload import WorkloadState
from lunanexa_simulation.client import Answer, Ending
from lunanexa_simulation.run import Run, run_simulated
from lunanexa_simulation.scenarios.steps import until_listed
from lunanexa_simulation.verdicts import Verdict
from lunanexa_simulation.world import World, open_world
from lunanexa_simulation.world_plan import WorldPlan

pytestmark = pytest.mark.thorough

POLICY = Policy()
SLOW_MS = max(POLICY.session_lease_ms, POLICY.node_lease_ms) + STALL_MS
PLAN = WorldPlan(policy=POLICY, doors=False, engine_arguments=("--ttft-ms", "32", "--itl-ms", "300"))
"""Streams outlast the slow append by far: 64 tokens, 300 ms each. A data listener would cut them, for its
node's lease lapses while nobody may answer it."""


def verdicts(world: World) -> int:
    """How often the controller changed its mind about a node."""
    return sum(row.action == KIND_OF_TYPE[LivenessChanged].action for row in world.sight.rows)


async def one_slow_append(world: World) -> None:
    """The admission of a request takes longer than every lease."""
    disk = world.controller.disk
    quick_ms, head = disk.faults.delay_ms, world.kernel.head.sequence
    disk.faults.delay_ms = SLOW_MS
    answers: list[Answer] = []

    async def ask() -> None:
        answers.append(await world.client.chat(world.prompt("while the store is slow", stream=True)))

    async with trio.open_nursery() as nursery:
        began_s = trio.current_time()
        nursery.start_soon(ask)
        # The first append has taken its delay when it begins; those that follow it are quick again.
        await trio.sleep(1)
        disk.faults.delay_ms = quick_ms
        await world.until("the slow append succeeds", lambda: world.kernel.head.sequence > head, within_ms=600_000)
        assert trio.current_time() - began_s > (SLOW_MS - 1_000) / 1000
        assert world.kernel.store_ok
        # Whoever would be blamed is blamed by the next ticks.
        await trio.sleep(STALL_MS / 1000)
        assert world.kernel.observed.sessions
        assert world.routable() == 1
    # Longer than a caller is kept waiting: what was admitted all the same is settled at once.
    assert [answer.ending for answer in answers] == [Ending.REFUSED]


def test_a_slow_append_that_succeeds_blames_nobody() -> None:
    async def main(run: Run) -> None:
        async with open_world(run, PLAN) as world:
            await world.start()
            await world.deploy()
            await until_listed(world, "at first")
            assert verdicts(world) == 1  # That the node is ready.
            async with world.streams(2, "all the while") as streams:
                await one_slow_append(world)
            for body, answer in streams:
                world.check_answer("the answer is whole", body, answer)
                world.check("the stream was not cut", answer.ending is Ending.WHOLE, answer)
            assert verdicts(world) == 1
            late, *others = sorted(world.receipts, key=lambda receipt: receipt.state is WorkloadState.SUCCEEDED)
            assert late.settlement.detail == "not_admitted_in_time"
            assert [receipt.state for receipt in others] == [WorkloadState.SUCCEEDED] * 2
            assert world.kernel.epoch == 1

    result = run_simulated(main, 1, horizon_ms=600_000)
    assert result.verdict is Verdict.HELD, (result.problem, result.detail, *result.tail)
    assert result.virtual_ms > SLOW_MS
