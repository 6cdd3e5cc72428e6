"""Seeds that once found a fault never find it again."""

from pathlib import Path

import pytest

from lunanexa_simulation.scenarios import SCENARIOS
from lunanexa_simulation.verdicts import Verdict

SEEDS = Path(__file__).with_name("seeds.txt")


def kept() -> list[tuple[str, int]]:
    lines = [line.partition("#")[0].split() for line in SEEDS.read_text(encoding="utf-8").splitlines()]
    return [(line[0], int(line[1])) for line in lines if line]


@pytest.mark.slow
def test_every_kept_seed_holds(subtests: pytest.Subtests) -> None:
    for name, seed in kept():
        with subtests.test(scenario=name, seed=seed):
            result = SCENARIOS[name].run(seed)
            assert result.verdict is Verdict.HELD, (result.problem, *result.tail)
