"""The first scenario, from some seeds."""

import pytest

from lunanexa_simulation.checkers import INVARIANTS
from lunanexa_simulation.invariants.store import replay_equals_live
from lunanexa_simulation.scenarios import SCENARIOS
from lunanexa_simulation.verdicts import Verdict

FIRST_SLICE = SCENARIOS["first-slice"]


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_it_holds(seed: int) -> None:
    result = FIRST_SLICE.run(seed)
    assert result.verdict is Verdict.HELD, (result.problem, result.detail, *result.tail)
    assert all(promise.held for promise in result.promises)
    assert set(result.asked) == {check.__name__ for check in (*INVARIANTS, replay_equals_live)}
    assert min(result.asked[check.__name__] for check in INVARIANTS) >= result.instants - 5
    # Before the controller's death, and at the end.
    assert result.asked[replay_equals_live.__name__] == 2
