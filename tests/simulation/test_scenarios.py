"""The other scenarios, each from one seed."""

import pytest

from lunanexa_simulation.scenarios import SCENARIOS
from lunanexa_simulation.verdicts import Verdict

ONE_SEED = ("cancellation", *(pytest.param(name, marks=pytest.mark.thorough) for name in ("overload", "reboot")))
"""What shows most in a second; all others run with those of many seeds."""


@pytest.mark.parametrize("name", ONE_SEED)
def test_it_holds(name: str) -> None:
    result = SCENARIOS[name].run(1)
    assert result.verdict is Verdict.HELD, (result.problem, result.detail, *result.tail)
    assert result.asked["replay_equals_live"] >= 1


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(SCENARIOS))
def test_it_holds_from_many_seeds(name: str) -> None:
    for seed in range(100, 102):
        result = SCENARIOS[name].run(seed)
        assert result.verdict is Verdict.HELD, (seed, result.problem, result.detail, *result.tail)
