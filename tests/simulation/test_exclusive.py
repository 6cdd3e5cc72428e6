"""The exclusive deployment in a simulated fleet whose engine does not go when it is asked to: it is killed in time, and
where even that does not help the invariant sees it."""

from functools import partial
from typing import Final

import attrs
import pytest

from lunanexa_core.ids import DeploymentId
from lunanexa_simulation.faults import Way, join, part
from lunanexa_simulation.run import Run, RunResult, run_simulated
from lunanexa_simulation.scenarios.exclusive import PLAN, SILENCE_MS, play
from lunanexa_simulation.verdicts import Verdict
from lunanexa_simulation.world import DEPLOYMENT, World, open_world
from lunanexa_simulation.world_plan import WorldPlan

pytestmark = pytest.mark.slow

STUBBORN: Final = attrs.evolve(PLAN, engine_arguments=(*PLAN.engine_arguments, "--fault", "slow-stop=60000"))


def run(plan: WorldPlan) -> RunResult:
    return run_simulated(partial(play, plan=plan), 1, horizon_ms=600_000)


def test_an_engine_that_does_not_go_is_killed_before_its_successor_starts() -> None:
    result = run(STUBBORN)
    assert result.verdict is Verdict.HELD, (result.problem, result.detail, *result.tail)


def test_an_engine_that_outlives_its_kill_is_seen_beside_its_successor() -> None:
    """No agent can end what its kernel does not let go."""
    result = run(attrs.evolve(STUBBORN, linger_ms=10 * SILENCE_MS))
    assert result.verdict is Verdict.SAFETY_BROKEN, (result.problem, *result.tail)
    assert result.problem is not None
    assert result.problem.startswith("exclusive_alone: ")


async def fewer_places(run: Run) -> None:
    """Two places; one node is cut off, and only then one place is wanted, with another engine."""
    async with open_world(run, attrs.evolve(PLAN, nodes=2)) as world:
        await world.start()
        await world.deploy(replicas=2)
        await world.until("both serve", lambda: world.routable() == 2, within_ms=60_000)
        part(world, 0, Way.BOTH)
        await world.until("its node ends it", lambda: not world.nodes[0].engines(), within_ms=SILENCE_MS)
        await world.deploy(replicas=1, slots=2)
        join(world, 0)
        await world.until("one serves", lambda: _slots(world) == [2], within_ms=60_000)


def _slots(world: World) -> list[int]:
    """Of each replica that serves."""
    return [report.slots for report in world.sight.routable(world.kernel, DeploymentId(DEPLOYMENT))]


def test_a_place_that_is_wanted_no_more_is_not_filled_when_its_node_returns() -> None:
    for seed in range(3):
        result = run_simulated(fewer_places, seed, horizon_ms=600_000)
        assert result.verdict is Verdict.HELD, (result.problem, result.detail, *result.tail)
