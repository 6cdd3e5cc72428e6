"""Seeds that once found a fault never find it again."""

from functools import partial
from pathlib import Path

import attrs
import pytest

from lunanexa_simulation.mishaps import NEWEST
from lunanexa_simulation.scenarios import SCENARIOS, Scenario, many_faults
from lunanexa_simulation.verdicts import Verdict

SEEDS = Path(__file__).with_name("seeds.txt")
DRAWS = "many-faults"


def kept() -> list[tuple[Scenario, int]]:
    """A seed of what draws its mishaps means something only with the drawing of its time."""
    found = []
    for line in SEEDS.read_text(encoding="utf-8").splitlines():
        match line.partition("#")[0].split():
            case [name, seed, drawing]:
                assert name == DRAWS, line
                assert 1 <= int(drawing) <= NEWEST, line
                as_then = attrs.evolve(SCENARIOS[name], main=partial(many_faults.main, drawing=int(drawing)))
                found.append((as_then, int(seed)))
            case [name, seed]:
                assert name != DRAWS, line
                found.append((SCENARIOS[name], int(seed)))
            case words:
                assert not words, line
    return found


def test_every_line_can_be_read() -> None:
    assert len(kept()) >= 6


@pytest.mark.slow
def test_every_kept_seed_holds(subtests: pytest.Subtests) -> None:
    for scenario, seed in kept():
        with subtests.test(scenario=scenario.name, seed=seed):
            result = scenario.run(seed)
            assert result.verdict is Verdict.HELD, (result.problem, *result.tail)
