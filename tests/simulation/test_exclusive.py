"""The exclusive deployment in a simulated fleet whose engine does not go when it is asked to: it is killed in time, and
where even that does not help the invariant sees it."""

from functools import partial
from typing import Final

import attrs
import pytest

from lunanexa_simulation.run import RunResult, run_simulated
from lunanexa_simulation.scenarios.exclusive import PLAN, SILENCE_MS, play
from lunanexa_simulation.verdicts import Verdict
from lunanexa_simulation.world import WorldPlan

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
